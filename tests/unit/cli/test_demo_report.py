from __future__ import annotations

import io
import pathlib

import pytest
from rich.console import Console

from rmq.cli.demo.report import (
    Delivery,
    Results,
    check_order,
    files_table,
    flow_table,
    latencies,
    order_line,
    print_parts,
    share_table,
)
from rmq.cli.demo.rows import Row

ROWS = [Row(number, key, key.encode()) for number, key in enumerate("aababb")]


def came(*numbers: int, intact: bool = True) -> list[Delivery]:
    return [Delivery(number % 2, number, 0, float(number), intact) for number in numbers]


def printed(*parts: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_parts(console, *parts)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_order_is_kept_when_keys_interleave_differently() -> None:
    check = check_order(ROWS, came(2, 0, 4, 1, 5, 3))

    assert (check.has_passed, check.keys, check.kept, check.first_wrong) == (True, 2, 2, "")


def test_two_rows_of_one_key_the_wrong_way_round_are_found() -> None:
    check = check_order(ROWS, came(0, 3, 1, 2, 4, 5))

    assert (check.has_passed, check.kept) == (False, 1)
    assert check.first_wrong == "a: rows [0, 1, 3] came as [0, 3, 1]"
    assert (
        order_line(check, "id")
        == "Ordering: BROKEN: 1 of 2 values of id came in the order they were published."
    )


@pytest.mark.parametrize(
    ("deliveries", "said"),
    [
        (came(0, 1, 2, 3, 4), "1 of 2 values of id came in the order they were published, 1 missing"),
        (came(0, 1, 2, 3, 4, 5, 5), "1 of 2 values of id came in the order they were published, 1 repeated"),
        (
            came(0, 1, 2, 3, 4, 5, intact=False),
            "2 of 2 values of id came in the order they were published, 6 altered",
        ),
    ],
)
def test_missing_repeated_and_altered_rows_fail_the_check(deliveries: list[Delivery], said: str) -> None:
    check = check_order(ROWS, deliveries)

    assert not check.has_passed
    assert order_line(check, "id") == f"Ordering: BROKEN: {said}."


def test_the_tally_is_complete_when_each_row_has_come() -> None:
    results = Results(ROWS)
    for delivery in came(0, 1, 2, 3, 4, 4):
        results.delivered(delivery)
    assert not results.is_complete

    results.delivered(came(5)[0])
    assert results.is_complete


def test_latency_is_from_send_to_first_delivery() -> None:
    results = Results(ROWS[:2], sent_at={0: 1.0, 1: 2.0}, acknowledged_at={0: 1.5, 1: 2.25})
    for at, row in ((3.0, 0), (2.5, 1), (9.0, 0)):
        results.delivered(Delivery(0, row, 0, at, True))

    assert latencies(results) == ([0.25, 0.5], [0.5, 2.0])


def test_the_tables_show_rates_and_shares() -> None:
    results = Results(ROWS, dict.fromkeys(range(6), 0.0), dict.fromkeys(range(6), 2.0))
    for number in range(6):
        results.delivered(Delivery(number // 4, number, number % 4, 3.0, True))

    flow = printed(flow_table(results))
    shared = printed(share_table(results, ["consumer-1", "consumer-2"], "id"))

    assert cells(flow, "published") == ["6", "2.00", "3", "2000.0", "2000.0", "2000.0", "2000.0"]
    assert cells(flow, "consumed") == ["6", "3.00", "2", "3000.0", "3000.0", "3000.0", "3000.0"]
    assert cells(shared, "consumer-1") == ["4", "67%", "2", "0 1 2 3"]
    assert cells(shared, "consumer-2") == ["2", "33%", "1", "0 1"]


def cells(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if name in line]
    return [cell.strip() for cell in line.split("│")[2:-1]]


def test_files_are_counted_with_their_bytes_on_disk(tmp_path: pathlib.Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with (tmp_path / "commitlog" / "0").open("wb") as sparse:
        sparse.write(b"x" * 4096)
        sparse.truncate(1 << 30)

    text = printed(files_table(tmp_path))

    name, what, count, used = (cell.strip() for cell in text.splitlines()[4].split("│")[1:-1])
    assert (name, count) == ("commitlog", "1")
    assert "messages" in what
    assert int(used.split()[0].replace(",", "")) < 1024


def test_a_long_line_is_not_cut() -> None:
    assert printed("x" * 300, width=80) == "x" * 300 + "\n"
