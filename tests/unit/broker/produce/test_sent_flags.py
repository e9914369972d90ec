"""Flags of a sender about hosts and transactions: the written record always fits itself."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.message import RETRY_PREFIX, StoredMessage
from rmq.plugin import Hooks
from rmq.protocol.codes import SYS_BORNHOST_V6, SYS_HOST_BITS, SYS_STOREHOST_V6, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import EndTransactionRequestHeader
from rmq.protocol.record import decode_record, encode_record, host_bytes, record_of
from rmq.store.audit.audit import check
from rmq.store.config import StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from ..rig import ADDRESS, START, Rig, Wire, batch, send

ODD = [SYS_BORNHOST_V6, SYS_STOREHOST_V6, SYS_HOST_BITS, -1, -(2**31), 2**31 - 1]
HALF = "UNIQ_KEY\x01AC7\x02TRAN_MSG\x01true\x02PGROUP\x01producers"


def messages(rig: Rig, topic: str) -> list[StoredMessage]:
    """The messages of queue 0, with their bodies as they lie in the log: odd flags call them compressed."""
    found = []
    for offset in range(rig.store.max_offset(topic, 0)):
        unit = rig.store.unit(topic, 0, offset)
        record = None if unit is None else rig.store.read(unit[0])
        assert record is not None
        found.append(decode_record(record, decompressed=False))
    return found


def bodies(rig: Rig, topic: str) -> list[bytes]:
    return [message.body for message in messages(rig, topic)]


def check_all(rig: Rig, topic: str, wanted: list[bytes]) -> None:
    """The messages are there, on a slave too, after a kill and a clean stop; nothing is found amiss."""
    assert bodies(rig, topic) == wanted
    slave = Store(
        MemoryDisk(),
        rig.store_config,
        store_host=host_bytes("[::1]:10911"),
        now_ms=lambda: rig.now_ms,
    )
    slave.load()
    slave.append_raw(0, rig.store.read_raw(0, 1 << 20))
    assert slave.max_offset(topic, 0) == len(wanted)
    rig.one(send("Behind", b"behind"))
    rig.store.abandon()
    again = Rig(disk=rig.disk)
    assert (bodies(again, topic), bodies(again, "Behind")) == (wanted, [b"behind"])
    again.store.close()
    assert check(rig.disk, "/store").counts == {}
    assert bodies(Rig(disk=rig.disk), topic) == wanted


def step_to(rig: Rig, now_ms: int) -> None:
    rig.now_ms = now_ms
    rig.broker.steps.schedule()


@pytest.mark.parametrize("peer", ["10.0.0.1:40001", "[2001:db8::7]:40001"])
@pytest.mark.parametrize("flags", ODD)
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_send_brings_no_host_bits(flags: int, peer: str, code: int) -> None:
    rig = Rig()
    assert rig.one(send(sys_flag=flags, code=code), wire=Wire(peer)).code == 0
    rig.ask(send(sys_flag=flags, body=b"unasked", oneway=True), wire=Wire(peer))
    for message in messages(rig, "Orders"):
        assert message.born_host == peer
        assert message.sys_flag & SYS_HOST_BITS == (SYS_BORNHOST_V6 if "[" in peer else 0)
    check_all(rig, "Orders", [b"hello", b"unasked"])


@pytest.mark.parametrize("flags", [SYS_BORNHOST_V6, SYS_STOREHOST_V6, SYS_HOST_BITS, ~12])
@pytest.mark.parametrize("by_one", [False, True])
def test_a_batch_brings_no_host_bits(flags: int, by_one: bool) -> None:
    rig = Rig()
    if by_one:
        rig.broker.use_plugins(Hooks(stored=(lambda event: None,)))
    assert rig.one(batch(sys_flag=flags)).code == 0
    check_all(rig, "Orders", [b"a", b"b", b"c"])


@pytest.mark.parametrize("flags", ODD)
@pytest.mark.parametrize("when", ["DELAY\x011", "TIMER_DELAY_MS\x011000"])
def test_a_message_that_waits_brings_no_host_bits(flags: int, when: str) -> None:
    rig = Rig()
    assert rig.one(send(sys_flag=flags, properties=f"UNIQ_KEY\x01AC\x02{when}")).code == 0
    step_to(rig, START + 1000)
    check_all(rig, "Orders", [b"hello"])


@pytest.mark.parametrize("flags", ODD)
def test_a_half_message_brings_no_host_bits(flags: int) -> None:
    rig = Rig()
    answer = rig.one(send(sys_flag=flags, properties=HALF))
    place = int(answer.ext["msgId"][16:], 16)
    end = EndTransactionRequestHeader("producers", 0, place, 8, msg_id="AC7")
    assert rig.one(Command.request(RequestCode.END_TRANSACTION, end)).code == 0
    check_all(rig, "Orders", [b"hello"])


@pytest.mark.parametrize("flags", ODD)
def test_a_reply_brings_no_host_bits(flags: int) -> None:
    rig = Rig()
    properties = "UNIQ_KEY\x01AC12\x02REPLY_TO_CLIENT\x01gone@1"
    rig.ask(send(sys_flag=flags, code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=properties))
    check_all(rig, "Orders", [b"hello"])


def another_family(peer: str) -> Rig:
    """A broker with an IPv4 address over a store that it, or another, wrote with an IPv6 one."""
    disk = MemoryDisk(1)
    settings: dict[str, Any] = {
        "store_path_root_dir": "/store",
        "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 64,
        "max_index_num": 1024,
    }
    store = Store(
        disk, StoreConfig(**settings), store_host=host_bytes("[2001:db8::9]:10911"), now_ms=lambda: START
    )
    store.load()
    message = StoredMessage("Orders", 0, 0, 0, 0, b"hello", {"UNIQ_KEY": "AC"}, born_host=peer)
    store.put(record_of(message, "Orders", 0, message.properties))
    store.commit()
    store.close()
    return Rig(disk=disk)


@pytest.mark.parametrize("peer", ["10.0.0.1:40001", "[2001:db8::7]:40001"])
def test_a_message_of_an_ipv6_store_is_sent_back_to_an_ipv4_one(peer: str) -> None:
    rig = another_family(peer)
    assert messages(rig, "Orders")[0].sys_flag & SYS_STOREHOST_V6
    header = {"offset": "0", "group": "billing", "delayLevel": "0"}
    assert rig.one(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    step_to(rig, START + 10_000)
    (message,) = messages(rig, f"{RETRY_PREFIX}billing")
    assert (message.born_host, message.store_host) == (peer, ADDRESS)
    check_all(rig, f"{RETRY_PREFIX}billing", [b"hello"])


@pytest.mark.parametrize("bits", ODD)
@pytest.mark.parametrize("born", ["10.0.0.1:4", "[::1]:4"])
@pytest.mark.parametrize("stored", ["10.0.0.9:4", "[::9]:4"])
def test_a_record_tells_of_its_own_hosts(bits: int, born: str, stored: str) -> None:
    message = StoredMessage("Orders", 0, 0, 0, 0, b"hello", {"a": "b"}, sys_flag=bits, born_host=born)
    record = record_of(message, "Orders", 0, message.properties)
    read = decode_record(encode_record(record, host_bytes(stored)), decompressed=False)
    assert (read.body, read.born_host, read.store_host) == (b"hello", born, stored)
