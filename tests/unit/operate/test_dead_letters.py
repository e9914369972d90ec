"""Dead letters: counts, pages, reasons and copies."""

from __future__ import annotations

import csv
import io
import json

import pytest

import rmq
from rmq.operate.messages import dead_letters
from rmq.testing.cluster import Cluster

from .conftest import send


@pytest.fixture
async def letters(cluster: Cluster, client: rmq.Client) -> None:
    """Five dead letters of the group billing, from two topics: one has a body that is no text."""
    async with client.producer("p") as producer:
        for number in range(4):
            await producer.send(rmq.Message("Orders", b"%d" % number, keys=[f"=k{number}"]))
            await cluster.advance(1)
        await producer.send(rmq.Message("Orders", b"\xff"))
    options = {"consume_from": "first", "max_reconsume_times": 0, "on_error": "retry"}
    async with client.consumer("billing", {"Orders": "*"}, **options) as consumer:  # type: ignore[arg-type]
        for _ in range(5):
            async with await anext(consumer) as message:
                if message.body == b"\xff":
                    raise TypeError("no text")
                raise ValueError(f"no customer {message.body.decode()}")
    await cluster.advance(1)


async def test_groups_with_letters_are_counted(client: rmq.Client, letters: None) -> None:
    await send(client, "%DLQ%audit", 1)
    found = await dead_letters.groups_with_letters(client.admin)
    assert [(one.group, one.count) for one in found] == [("billing", 5), ("audit", 1)]
    assert all(one.last_ms > 0 for one in found)


async def test_letters_come_in_pages_and_by_choice(client: rmq.Client, letters: None) -> None:
    first = await dead_letters.read_letters(client, "billing", count=3)
    assert (len(first.letters), first.total) == (3, 5)
    second = await dead_letters.read_letters(client, "billing", count=3, cursor=first.cursor)
    assert (len(second.letters), second.cursor) == (2, None)
    chosen = rmq.Letters(where=lambda letter: "customer 2" in letter.reason)
    (one,) = (await dead_letters.read_letters(client, "billing", chosen)).letters
    assert (one.message.body, one.topic) == (b"2", "Orders")
    assert (await dead_letters.read_letters(client, "nobody")).letters == []


async def test_reasons_that_differ_in_numbers_are_one(client: rmq.Client, letters: None) -> None:
    customers, text = await dead_letters.by_reason(client, "billing")
    assert (customers.text, customers.count, customers.topics) == (
        "ValueError: no customer #",
        4,
        frozenset({"Orders"}),
    )
    assert customers.sample in {f"ValueError: no customer {number}" for number in range(4)}
    assert customers.first_ms <= customers.last_ms
    assert (text.text, text.count) == ("TypeError: no text", 1)
    assert sum(one.count for one in await dead_letters.by_reason(client, "billing", most=2)) == 2


async def test_letters_are_copied_as_json_lines(client: rmq.Client, letters: None) -> None:
    lines = [line async for line in dead_letters.exported(client, "billing")]
    rows = [json.loads(line) for line in lines]
    assert sorted(row.get("body", "") for row in rows) == ["", "0", "1", "2", "3"]
    assert [row["body_base64"] for row in rows if "body_base64" in row] == ["/w=="]
    assert [row["died_at_ms"] for row in rows] == sorted(row["died_at_ms"] for row in rows)
    assert {(row["group"], row["topic"]) for row in rows} == {("billing", "Orders")}


async def test_a_csv_file_has_a_head_and_no_formulas(client: rmq.Client, letters: None) -> None:
    text = "".join([line async for line in dead_letters.exported(client, "billing", form="csv")])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 5
    assert list(rows[0]) == list(dead_letters.FIELDS)
    assert "'=k0" in {row["keys"] for row in rows}
    assert not any(row["keys"].startswith("=") for row in rows)


async def test_a_copy_reads_page_by_page(
    client: rmq.Client, letters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAGE", 2)
    assert len([line async for line in dead_letters.exported(client, "billing")]) == 5
