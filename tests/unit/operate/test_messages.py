"""Pages of messages, single messages, and traces as timelines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import trio

import rmq
from rmq.errors import ConfigError, QueryNotFound
from rmq.message import MessageQueue, StoredMessage
from rmq.operate.messages import lookup, pages, traces
from rmq.operate.messages.pages import Page, read_page
from rmq.protocol.trace import TraceBean, TraceContext, TraceType
from rmq.testing.cluster import Cluster

from .conftest import consume, send


async def all_pages(client: rmq.Client, topic: str, count: int, **how: Any) -> list[Page]:
    """All pages of a topic, from the first on."""
    found = [await read_page(client, topic, count=count, **how)]
    while found[-1].cursor is not None:
        found.append(await read_page(client, topic, count=count, cursor=found[-1].cursor, **how))
        assert len(found) < 100
    return found


def bodies(found: Sequence[Page]) -> list[int]:
    return [int(message.body) for page in found for message in page.messages]


@pytest.fixture
async def spread(cluster: Cluster, client: rmq.Client) -> list[int]:
    """100 messages over four queues, one a second; returns the time of each."""
    times = []
    async with client.producer("p") as producer:
        for number in range(100):
            times.append(cluster.now_ms())
            await producer.send(rmq.Message("Orders", b"%d" % number, tags="odd" if number % 2 else "even"))
            await cluster.advance(1)
    return times


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("count", [7, 40, 100, 1000])
async def test_pages_have_each_message_once_in_the_order_of_time(
    client: rmq.Client, spread: list[int], newest_first: bool, count: int
) -> None:
    found = await all_pages(client, "Orders", count, newest_first=newest_first)
    wanted = list(range(100))
    assert bodies(found) == (wanted[::-1] if newest_first else wanted)
    assert all(len(page.messages) == count for page in found[:-1])
    assert {page.total for page in found} == {100}


@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_page_ends_at_the_times_that_are_given(
    client: rmq.Client, spread: list[int], newest_first: bool
) -> None:
    span = {"since_ms": spread[20], "until_ms": spread[50], "newest_first": newest_first}
    found = await all_pages(client, "Orders", 8, **span)
    assert sorted(bodies(found)) == list(range(20, 50))
    assert found[0].total == 30
    nothing = await read_page(client, "Orders", since_ms=spread[50], until_ms=spread[50])
    assert (nothing.messages, nothing.total, nothing.cursor) == ([], 0, None)


async def test_a_page_reads_little_of_a_long_topic(client: rmq.Client, spread: list[int]) -> None:
    page = await read_page(client, "Orders", count=4)
    assert bodies([page]) == [99, 98, 97, 96]
    assert page.looked_at <= 4 * 4 * 2
    assert page.cursor is not None


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_filter_by_tag_by_condition_and_by_queue(
    client: rmq.Client, spread: list[int], newest_first: bool
) -> None:
    odd = await all_pages(client, "Orders", 9, expression="odd", newest_first=newest_first)
    assert sorted(bodies(odd)) == list(range(1, 100, 2))
    seven = await all_pages(
        client, "Orders", 3, where=lambda one: one.body.endswith(b"7"), newest_first=newest_first
    )
    assert sorted(bodies(seven)) == list(range(7, 100, 10))
    queue = MessageQueue("Orders", "a", 1)
    one = await all_pages(client, "Orders", 10, queues=[queue], newest_first=newest_first)
    assert len(bodies(one)) == 25
    assert {message.queue_id for page in one for message in page.messages} == {1}
    with pytest.raises(ConfigError, match="a queue of topic Orders"):
        await read_page(client, "Orders", queues=[MessageQueue("Orders", "a", 9)])


async def test_a_condition_that_nothing_meets_ends_a_page_early(
    client: rmq.Client, spread: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LOOKED_AT_MAX", 30)
    found = await all_pages(client, "Orders", 5, where=lambda one: one.body == b"0")
    assert bodies(found) == [0]
    assert len(found) > 1
    assert all(page.looked_at <= 64 for page in found)


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("how", [{}, {"expression": "odd"}, {"where": lambda one: one.body.endswith(b"7")}])
async def test_a_page_whose_time_is_over_ends_with_what_it_has_and_the_next_one_goes_on(
    client: rmq.Client, spread: list[int], newest_first: bool, how: dict[str, Any]
) -> None:
    whole = bodies(await all_pages(client, "Orders", 1000, newest_first=newest_first, **how))
    found = await all_pages(client, "Orders", 9, newest_first=newest_first, within_seconds=0, **how)
    assert bodies(found) == whole
    assert len(found) > 3
    assert all(page.looked_at <= 4 * 4 for page in found)


@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_page_counts_the_messages_that_the_next_pages_read(
    client: rmq.Client, spread: list[int], newest_first: bool
) -> None:
    found = await all_pages(client, "Orders", 30, newest_first=newest_first)
    assert [page.left for page in found] == [70, 40, 10, 0]
    sevens = await all_pages(
        client, "Orders", 3, newest_first=newest_first, where=lambda one: one.body.endswith(b"7")
    )
    left = [page.left for page in sevens]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0


async def test_new_messages_do_not_move_older_pages(client: rmq.Client, spread: list[int]) -> None:
    first = await read_page(client, "Orders", count=10)
    async with client.producer("p") as producer:
        for number in range(100, 110):
            await producer.send(rmq.Message("Orders", b"%d" % number))
    second = await read_page(client, "Orders", count=10, cursor=first.cursor)
    assert bodies([second]) == list(range(89, 79, -1))


@pytest.mark.parametrize(
    "text", ["", "x", "é", "bnVsbA", "WzEsdHJ1ZSx7ImEiOltbMCwtMV1dfV0", "W10", "A" * 2_000_000]
)
async def test_a_cursor_that_is_none_is_refused(client: rmq.Client, text: str) -> None:
    with pytest.raises(ConfigError, match="the cursor of the page before"):
        await read_page(client, "Orders", cursor=text)


async def test_a_cursor_of_the_other_direction_is_refused(client: rmq.Client, spread: list[int]) -> None:
    page = await read_page(client, "Orders", count=4)
    with pytest.raises(ConfigError, match="with the same order"):
        await read_page(client, "Orders", cursor=page.cursor, newest_first=False)
    with pytest.raises(ConfigError, match="at most 1000"):
        await read_page(client, "Orders", count=1001)


# --- single messages ---


async def test_a_message_is_found_by_id_and_key_with_its_tracks(cluster: Cluster, client: rmq.Client) -> None:
    await send(client, "Orders", 3)
    await cluster.advance(1)
    found = await lookup.find(client.admin, "Orders", "k1", now_ms=cluster.now_ms())
    (message,) = found.messages
    assert message.body == b"1"
    by_id = await lookup.find(client.admin, "Orders", message.message_id, now_ms=cluster.now_ms())
    assert [one.body for one in by_id.messages] == [b"1"]
    async with client.consumer("billing", {"Orders": "*"}):
        seen = await lookup.detail(client.admin, message.message_id, "Orders")
    assert (seen.message.body, seen.body.text, seen.body.json) == (b"1", "1", "1")
    assert [track.group for track in seen.tracks] == ["billing"]
    with pytest.raises(QueryNotFound):
        await lookup.detail(client.admin, "A" * 32, "Orders")


async def test_a_message_is_given_to_a_member_and_sent_again(cluster: Cluster, client: rmq.Client) -> None:
    await send(client, "Orders", 1)
    await consume(client, "billing", "Orders", 1)
    (message,) = (await read_page(client, "Orders")).messages
    got: list[StoredMessage] = []
    async with (
        client.consumer("billing", {"Orders": "*"}) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def handle(given: StoredMessage) -> None:
            got.append(given)

        nursery.start_soon(consumer.run, handle)
        await cluster.advance(1)
        result = await lookup.give_to_member(client.admin, "billing", message.message_id, "Orders")
        nursery.cancel_scope.cancel()
    assert lookup.is_consumed(result)
    assert [one.body for one in got] == [b"0"]
    sent = await lookup.send_again(client, message)
    assert sent.message_id != message.message_id
    copies = (await read_page(client, "Orders")).messages
    assert [(one.body, one.keys) for one in copies] == [(b"0", message.keys)] * 2
    with pytest.raises(ConfigError, match="a topic of users"):
        await lookup.send_again(client, message, "SCHEDULE_TOPIC_XXXX")


@pytest.mark.parametrize(
    ("body", "text", "pretty"),
    [
        (
            b'{"b":1,"a":[1.50,null]}',
            '{"b":1,"a":[1.50,null]}',
            '{\n  "b": 1,\n  "a": [\n    1.50,\n    null\n  ]\n}',
        ),
        (b'{"big":12345678901234567890123}', None, '{\n  "big": 12345678901234567890123\n}'),
        (b"{}", "{}", "{}"),
        (b"hello", "hello", None),
        (b"\xff\x00", None, None),
        (b"[" * 100_000, None, None),
        (b'{"a":NaN}', None, None),
    ],
)
def test_a_body_is_shown_as_far_as_it_is_text_and_json(
    body: bytes, text: str | None, pretty: str | None
) -> None:
    view = lookup.view_body(body)
    assert view.json == pretty
    assert view.size == len(body)
    if text is not None or body[0] == 255:
        assert view.text == text


def test_a_long_body_is_cut_between_characters() -> None:
    view = lookup.view_body("é".encode() * 100, most=101)
    assert (view.text, view.is_cut, view.json, view.size) == ("é" * 50, True, None, 200)


def test_a_hex_dump_has_offsets_and_printable_characters() -> None:
    first, second = lookup.hex_dump(b"0123456789abcdef\x00\x1b<").splitlines()
    assert re.fullmatch(r"00000000  30 31 .* 66  0123456789abcdef", first)
    assert first.index("0123456789") == second.index("..<")


# --- traces ---


def test_both_events_of_a_delivery_are_one_step() -> None:
    bean = TraceBean("Orders", "M", store_host="h:1", client_host="c")
    other = TraceBean("Orders", "N")
    events = [
        TraceContext(TraceType.SUB_BEFORE, (bean, other), 2000, group="billing", request_id="r1"),
        TraceContext(TraceType.SUB_AFTER, (bean, other), 2030, cost_ms=30, success=False, request_id="r1"),
        TraceContext(TraceType.PUB, (bean,), 1000, group="p", cost_ms=5),
        TraceContext(TraceType.SUB_BEFORE, (bean,), 9000, group="billing", request_id="r2"),
    ]
    line = traces.timeline_of(type("T", (), {"message_id": "M", "events": events})())  # type: ignore[arg-type]
    assert [(one.kind, one.begin_ms, one.cost_ms, one.success) for one in line.steps] == [
        ("send", 1000, 5, True),
        ("consume", 2000, 30, False),
        ("consume", 9000, 0, None),
    ]
    assert (line.begin_ms, line.end_ms) == (1000, 9000)
    assert list(line.lanes) == [("send", "p", "c"), ("consume", "billing", "c")]


async def test_a_traced_message_has_a_timeline(cluster: Cluster) -> None:
    async with cluster.connect(plugins=[rmq.MessageTrace()]) as client:
        async with client.producer("p") as producer:
            sent = await producer.send(rmq.Message("Orders", b"x"))
        await cluster.advance(10)
        line = await traces.timeline(client.admin, sent.message_id)
        assert [one.kind for one in line.steps] == ["send"]
        assert (await traces.timeline(client.admin, "none")).steps == []
