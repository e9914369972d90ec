"""AMQP 1.0: bytes of hostile peers. The codec needs no extra, the connection does."""

from __future__ import annotations

import contextlib
import random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rmq_amqp import sasl, values
from rmq_amqp.messages import to_client, to_store
from rmq_amqp.sections import VALUE, Sections, build, parse
from rmq_amqp.values import Malformed
from trio.testing import MockClock

from rmq.message import StoredMessage, with_properties
from tests.unit.amqp.client import ACCEPTED
from tests.unit.amqp.messages import PORT, client, cluster, text
from tests.unit.amqp.odd_values import anything, simple


@given(anything)
def test_a_value_is_read_as_it_was_written(value: object) -> None:
    data = values.encode(value)
    again, end = values.decode(data)
    assert (again, type(again), end) == (value, type(value), len(data))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_value_or_message_are_malformed(data: bytes) -> None:
    for read in (values.decode, parse):
        with contextlib.suppress(Malformed):
            read(data)


@given(st.dictionaries(st.text(max_size=10), simple, max_size=5), st.text(max_size=20))
def test_any_properties_come_back_as_they_were(properties: dict[str, object], body: str) -> None:
    sent = parse(build(Sections(VALUE, body, message_id="ID:1", properties=dict(properties))))
    stored = to_store(sent, "T", 1, "client")
    record = StoredMessage("T", 0, 0, 0, 0, stored.body, kept(with_properties(stored, {})))
    got = to_client(record, 1, "T", 0, 1)
    assert (got.body, got.properties) == (body, properties)
    assert [*map(type, got.properties.values())] == [type(properties[name]) for name in got.properties]


def kept(properties: dict[str, str]) -> dict[str, str]:
    """The properties as the log keeps them."""
    for name, value in properties.items():
        assert name
        assert value
        assert not set("\0\1\2") & set(name + value)
    return properties


@pytest.mark.parametrize("seed", range(6))
async def test_broken_bytes_end_their_connection_and_cost_nobody_else(
    autojump_clock: MockClock, seed: int
) -> None:
    chance = random.Random(seed)
    async with cluster() as running, client(running, "good") as good:
        session = await good.session()
        producer = await good.producer(session, "Orders")
        address = f"{running['a'].address.partition(':')[0]}:{PORT}"
        for _ in range(10):
            stream = await running.network.host("10.0.8.9").dial(address)  # type: ignore[attr-defined]
            login = sasl.frame(sasl.INIT, [values.Symbol("ANONYMOUS"), b"x", "broker"])
            size = chance.choice((8, 16, 64, 512, 1 << 20))
            frame = size.to_bytes(4, "big") + bytes((2, 0, 0, 0)) + chance.randbytes(chance.randrange(64))
            data = bytearray(sasl.SASL_HEADER + login + sasl.AMQP_HEADER + frame * 3)
            for _ in range(chance.randrange(4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            try:
                await stream.send_all(bytes(data))
                with anyio.move_on_after(5):
                    while await stream.receive_some(65_536):
                        pass
            except anyio.BrokenResourceError:
                pass
            await stream.aclose()
        assert (await producer.send(text("m"))).remote_state == ACCEPTED
