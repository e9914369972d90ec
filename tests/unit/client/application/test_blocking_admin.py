from __future__ import annotations

import inspect
import pathlib

import pytest

from rmq.client import admin, blocking
from rmq.errors import NoRoute
from tests.masters import running


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_method_is_there_under_its_name() -> None:
    assert public(admin.Admin) == public(blocking.Admin)
    waiting = {
        name for name in public(admin.Admin) if inspect.iscoroutinefunction(getattr(admin.Admin, name))
    }
    assert len(waiting) > 50


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_calls_wait_for_their_answers(backend: str, tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as masters, blocking.connect(masters.namesrv, backend=backend) as client:
        assert client.admin.name_servers == [masters.namesrv]
        made = client.admin.create_topic("Orders", cluster="DefaultCluster", queues=2)
        assert sorted(made) == sorted([masters.first, masters.second])
        assert len(client.admin.topic_stats("Orders")) == 4
        with pytest.raises(NoRoute):
            client.admin.topic_route("Nowhere")
