"""`rmq proxy` with accounts: each client does what its own account may do, and nothing of the proxy's or of
another account."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rmq_grpc import schema
from trio.testing import MockClock

from rmq.client import client as client_module
from rmq.errors import ConfigError
from rmq.message import dlq_topic
from rmq.proxy.config import ProxyConfig, account_of_proxy
from tests.unit.grpc.calls import (
    acking,
    ending,
    message,
    producer,
    received,
    receiving,
    request,
    sending,
    signed,
    word,
)
from tests.unit.grpc.proxied import ProxiedCluster, client

ACCOUNTS = """accounts:
  - {accessKey: writer01, secretKey: writer-secret-1, topicPerms: [Orders=PUB, Secret=PUB]}
  - {accessKey: writer02, secretKey: writer-secret-2, topicPerms: [Orders=PUB]}
  - {accessKey: writer03, secretKey: writer-secret-3, topicPerms: [Orders=PUB, Refunds=PUB]}
  - {accessKey: reader01, secretKey: reader-secret-1, topicPerms: [Orders=SUB], groupPerms: [G=SUB]}
"""
BROKERS = """accounts:
  - accessKey: theproxy
    secretKey: proxy-secret-1
    topicPerms: [Orders=PUB|SUB, Secret=PUB|SUB]
    groupPerms: [G=SUB]
"""


@asynccontextmanager
async def guarded(folder: pathlib.Path, **more: Any) -> AsyncIterator[ProxiedCluster]:
    """A broker that takes the proxy's account only, and a proxy with the accounts of the clients."""
    for name, text in (("clients.yml", ACCOUNTS), ("brokers.yml", BROKERS), ("secret", "proxy-secret-1\n")):
        (folder / name).write_text(text)
    brokers = {"acl_enable": True, "acl_file": str(folder / "brokers.yml"), "plugins": ("acl",)}
    own = {
        "acl_enable": True,
        "acl_file": str(folder / "clients.yml"),
        "proxy_access_key": "theproxy",
        "proxy_secret_file": str(folder / "secret"),
    }
    made = ProxiedCluster("a", proxy_settings=own, **brokers | more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "wall_clock_ms", made.now_ms)  # signatures have a date
        async with made as running:
            await _ready(running)
            yield running


def forwarding(handle: str, topic: str = "Orders") -> Any:
    return request("ForwardMessageToDeadLetterQueue", group="G", topic=topic, receipt_handle=handle)


async def _ready(running: ProxiedCluster) -> None:
    """Make the topic."""
    broker: Any = running["a"].server
    broker.topics.create_for_send("Orders", "TBW102", 2, "test")
    await running.advance(700)  # it registers seldom in tests


async def test_an_account_may_do_its_own_and_nothing_of_the_proxys(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    writer, reader = signed("writer01", "writer-secret-1"), signed("reader01", "reader-secret-1")
    async with guarded(tmp_path) as running:
        async with client(running) as one:
            assert word(await one.one("SendMessage", sending(message()))) == "UNAUTHORIZED"
            assert (await received(one, receiving()))[0] == "UNAUTHORIZED"
            wrong = signed("writer01", "no such secret")
            assert word(await one.one("SendMessage", sending(message()), **wrong)) == "UNAUTHORIZED"
        async with client(running, "w") as one:
            assert word(await one.one("SendMessage", sending(message()), **writer)) == "OK"
            assert (await received(one, receiving(), **writer))[0] == "UNAUTHORIZED"
        async with client(running, "r") as one:
            status, (taken,) = await received(one, receiving(), **reader)
            assert status == "OK"
            assert word(await one.one("SendMessage", sending(message()), **reader)) == "UNAUTHORIZED"
            handle = taken.system_properties.receipt_handle
            assert word(await one.one("AckMessage", acking(handle), **reader)) == "OK"
            other = acking(handle, group="Other")
            assert word(await one.one("AckMessage", other, **reader)) == "UNAUTHORIZED"


async def test_a_handle_with_the_place_of_another_topics_message_makes_no_dead_letter(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    writer, reader = signed("writer01", "writer-secret-1"), signed("reader01", "reader-secret-1")
    async with guarded(tmp_path) as running:
        broker: Any = running["a"].server
        broker.topics.create_for_send("Secret", "TBW102", 1, "test")
        await running.advance(700)
        async with client(running, "w") as one:
            for topic in ("Orders", "Secret"):
                assert word(await one.one("SendMessage", sending(message(topic=topic)), **writer)) == "OK"
        place, *_ = broker.store.unit("Secret", 0, 0)
        async with client(running, "r") as one:
            _, (taken,) = await received(one, receiving(), **reader)
            handle = taken.system_properties.receipt_handle
            forged = " ".join([*handle.split(" ")[:8], str(place)])
            answer = await one.one("ForwardMessageToDeadLetterQueue", forwarding(forged), **reader)
            assert word(answer) == "INVALID_RECEIPT_HANDLE"
            assert dlq_topic("G") not in broker.topics.table
            other = forwarding(handle, topic="Secret")
            assert word(await one.one("ForwardMessageToDeadLetterQueue", other, **reader)) == "UNAUTHORIZED"
            answer = await one.one("ForwardMessageToDeadLetterQueue", forwarding(handle), **reader)
            assert word(answer) == "OK"
            assert broker.store.max_offset(dlq_topic("G"), 0) == 1


async def test_the_brokers_permissions_bound_those_of_the_proxys_accounts(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    async with guarded(tmp_path) as running, client(running) as one:
        (tmp_path / "clients.yml").write_text(
            ACCOUNTS.replace("Orders=SUB], groupPerms: [G", "Orders=SUB], groupPerms: [H")
        )
        await running.advance(5)
        reader = signed("reader01", "reader-secret-1")
        assert (await received(one, receiving(group="H"), **reader))[0] == "FORBIDDEN"


async def test_a_transaction_is_ended_by_its_own_account_alone(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    first, second = signed("writer01", "writer-secret-1"), signed("writer02", "writer-secret-2")
    times = {"transaction_time_out": 6_000, "transaction_check_interval": 3_000}
    async with (
        guarded(tmp_path, **times) as running,
        client(running, "one") as one,
        client(running, "two") as two,
    ):
        command = schema.message("TelemetryCommand")(
            settings=schema.message("Settings")(**producer("Orders"))
        )
        calls = []
        for each, account in ((one, first), (two, second)):
            call = await each.begin("Telemetry", **account)
            await call.send(command)
            await call.until(1)
            calls.append(call)
        sent = await one.one("SendMessage", sending(message(b"half", type="TRANSACTION")), **first)
        asked = ending(sent.entries[0].message_id, sent.entries[0].transaction_id)
        assert word(await two.one("EndTransaction", asked, **second)) == "UNAUTHORIZED"
        await running.advance(60)
        assert len(calls[1].messages) == 1  # it was never asked
        assert len(calls[0].messages) > 1
        theirs = await two.one("SendMessage", sending(message(b"half", type="TRANSACTION")), **second)
        mark = theirs.entries[0].transaction_id.split(".")[2]
        place, offset, _, broker = sent.entries[0].transaction_id.split(".")
        forged = ending(sent.entries[0].message_id, f"{place}.{offset}.{mark}.{broker}", "ROLLBACK")
        assert word(await two.one("EndTransaction", forged, **second)) == "UNAUTHORIZED"
        assert word(await one.one("EndTransaction", asked, **first)) == "OK"


async def test_a_transaction_is_ended_under_its_own_topic_alone(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    writer = signed("writer03", "writer-secret-3")
    async with guarded(tmp_path) as running, client(running) as one:
        sent = await one.one("SendMessage", sending(message(b"half", type="TRANSACTION")), **writer)
        asked = ending(sent.entries[0].message_id, sent.entries[0].transaction_id, topic="Refunds")
        assert word(await one.one("EndTransaction", asked, **writer)) == "UNAUTHORIZED"


async def test_a_message_is_recalled_by_its_own_account_alone(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    first, second = signed("writer01", "writer-secret-1"), signed("writer02", "writer-secret-2")
    async with guarded(tmp_path) as running, client(running) as one:
        late = message(b"late", type="DELAY", delivery_ms=running.now_ms() + 60_000)
        sent = await one.one("SendMessage", sending(late), **first)
        handle = sent.entries[0].recall_handle
        for text in (handle, handle.partition(".")[0]):
            asked = request("RecallMessage", topic="Orders", recall_handle=text)
            assert word(await one.one("RecallMessage", asked, **second)) == "UNAUTHORIZED"
        asked = request("RecallMessage", topic="Orders", recall_handle=handle)
        assert word(await one.one("RecallMessage", asked, **first)) == "OK"


def test_an_account_of_the_proxy_needs_accounts_of_its_clients(tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret").write_text("proxy-secret-1\n")
    given = {"proxy_access_key": "theproxy", "proxy_secret_file": str(tmp_path / "secret")}
    with pytest.raises(ConfigError, match="aclEnable"):
        account_of_proxy(ProxyConfig(**given))
    found = account_of_proxy(ProxyConfig(acl_enable=True, **given))
    assert found is not None
    assert found.secret_key == "proxy-secret-1"
    with pytest.raises(ConfigError, match="proxySecretFile"):
        account_of_proxy(ProxyConfig(acl_enable=True, proxy_access_key="theproxy"))
