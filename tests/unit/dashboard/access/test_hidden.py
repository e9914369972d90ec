"""Secret values among the settings of servers, as brokers of RocketMQ 5.x have them."""

from __future__ import annotations

import pathlib

import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.client.admin import Admin
from rmq.dashboard.access.hidden import is_secret
from rmq.errors import SystemFailure
from rmq.testing.cluster import Cluster

from ..site import site, text_of

NAME = "innerClientAuthenticationCredentials"
SECRET = "key-of-the-broker"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NAME, True),
        ("initAuthenticationUser", True),
        ("tls.server.keyPassword", True),
        ("clusterSecretFile", False),
        ("brokerName", False),
        ("authenticationEnabled", False),
    ],
)
def test_a_secret_is_known_by_the_name_of_its_setting(name: str, expected: bool) -> None:
    assert is_secret(name) is expected


async def test_secret_settings_are_shown_nowhere(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {NAME: SECRET, "brokerName": "shop-a"}
    taken: list[dict[str, str]] = []

    async def config(self: Admin, address: str = "") -> dict[str, str]:
        return dict(settings)

    async def of_name_servers(self: Admin) -> dict[str, dict[str, str]]:
        return {"10.0.0.1:9876": dict(settings)}

    async def update(self: Admin, changes: dict[str, str], *, broker: str = "") -> list[str]:
        taken.append(changes)
        if changes.get(NAME) == f"{SECRET}-wrong":
            raise SystemFailure(1, "not now", "10.0.0.1:10911")
        return ["10.0.0.1:10911"]

    monkeypatch.setattr(Admin, "broker_config", config)
    monkeypatch.setattr(Admin, "namesrv_config", of_name_servers)
    monkeypatch.setattr(Admin, "update_broker_config", update)
    log = tmp_path / "audit.log"
    async with Cluster("shop-a") as cluster, site(cluster, audit_file=log) as made:
        admin = await made.admin()
        form = f"/c/test/brokers/shop-a/setting?name={NAME}"
        pages = [(await admin.get(f"/c/test/brokers/shop-a{path}")).text for path in ("", "?show=settings")]
        pages += [(await admin.get(path)).text for path in (form, "/c/test/name-servers")]
        assert all("(not shown)" in page for page in pages)
        for value in (SECRET, f"{SECRET}-wrong"):
            await admin.post("/c/test/brokers/shop-a/setting", name=NAME, value=value)
            pages.append((await admin.get("/c/test/changes")).text)
        pages.append((await admin.http.get("/api/v1/clusters/test/brokers/shop-a")).text)
        assert [one[NAME] for one in taken] == [SECRET, f"{SECRET}-wrong"]
        assert "change_setting" in text_of(pages[-2])
        assert SECRET not in "".join(pages) + log.read_text()
