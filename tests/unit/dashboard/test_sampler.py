"""What sampling costs a broker."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.dashboard.history.sampler import ROW_SECONDS, SHARE, pause_after
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import Cluster

from .site import site


@pytest.mark.parametrize("rows", [0, 100, 5_000, 10_000, 200_000])
def test_a_broker_spends_at_most_its_share_on_being_sampled(rows: int) -> None:
    pause = pause_after(rows, 30.0)
    assert pause >= 30
    assert rows * ROW_SECONDS / pause <= SHARE * (1 + 1e-9)


def test_few_queues_are_sampled_as_often_as_asked_for() -> None:
    assert pause_after(1_000, 30.0) == 30
    assert pause_after(10_000, 30.0) == pytest.approx(60)


async def test_pages_use_the_progress_of_all_groups_that_was_sampled() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 2}) as cluster,
        site(cluster, sample_seconds=30) as made,
    ):
        await cluster.advance(31)
        asked = cluster["shop-a"].count(RequestCode.GET_BROKER_CONSUME_STATS)
        browser = made.browser()
        for path in ("", "/groups", "/streams"):
            assert (await browser.get(f"/c/test{path}")).status_code == 200
        assert cluster["shop-a"].count(RequestCode.GET_BROKER_CONSUME_STATS) == asked == 2
