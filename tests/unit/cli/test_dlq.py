"""`rmq dlq` and `rmq transactions`, in another thread than the cluster they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from click.testing import CliRunner, Result

from rmq import embedded
from rmq.cli.messages.dlq import dlq
from rmq.cli.messages.transactions import transactions
from rmq.client import blocking
from rmq.message import Message, MessageQueue

PLACE = MessageQueue("%DLQ%billing", "broker-a", 0)


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal("trio") as made:
        yield made


@pytest.fixture(scope="module")
def names(portal: BlockingPortal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster with three dead letters, of which one does not know its topic."""
    folder = tmp_path_factory.mktemp("embedded")
    with portal.wrap_async_context_manager(embedded.open(folder)) as made:
        with blocking.connect(made.namesrv_address) as client, client.producer("p") as producer:
            for body in (b"1", b"2"):
                producer.send(Message("Orders", body, keys=[body.decode()]))
            options = {"consume_from": "first", "max_reconsume_times": 0, "on_error": "retry"}
            with client.consumer("billing", {"Orders": "*"}, **options) as consumer:
                for _ in range(2):
                    delivery = consumer.take(20)
                    assert delivery is not None
                    with delivery as message:
                        raise_it(message.body)
            producer.send(Message("%DLQ%billing", b"3"))
        yield made.namesrv_address


def raise_it(body: bytes) -> None:
    raise ValueError(f"no customer {body.decode()}")


def call(command: object, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments])  # type: ignore[arg-type]


def test_letters_are_listed_and_sent_again(names: str) -> None:
    rows = json.loads(call(dlq, "list", "billing", "-n", names, "-o", "json").stdout)
    assert sorted((row["body"], row["topic"], row["reason"]) for row in rows) == [
        ("1", "Orders", "ValueError: no customer 1"),
        ("2", "Orders", "ValueError: no customer 2"),
        ("3", "", ""),
    ]
    one = next(row for row in rows if row["body"] == "1")
    assert (one["times"], one["keys"]) == (1, ["1"])
    table = call(dlq, "list", "billing", "-n", names, "--reason", "customer 2").stdout
    assert "no customer 2" in table
    assert "no customer 1" not in table

    done = call(dlq, "redrive", "billing", "-n", names, "--id", one["message_id"])
    assert (done.exit_code, done.stdout) == (
        0,
        "1 sent again, 0 sent before, 0 failed, of 3 dead letters looked at\n",
    )
    done = call(dlq, "redrive", "billing", "-n", names, "--all")
    assert (done.exit_code, done.stdout) == (
        1,
        "1 sent again, 1 sent before, 1 failed, of 3 dead letters looked at\n",
    )
    assert "does not name its original topic" in done.stderr
    done = call(dlq, "redrive", "billing", "-n", names, "--all", "--to", "Repair", "--since", "-1h")
    assert (done.exit_code, done.stdout[:12]) == (0, "3 sent again")


@pytest.mark.parametrize("arguments", [[], ["--since", "latest"], ["--since", "soon"]])
def test_what_is_not_said_clearly_is_refused(names: str, arguments: list[str]) -> None:
    assert call(dlq, "redrive", "billing", "-n", names, *arguments).exit_code == 2


def test_discarded_transactions(names: str) -> None:
    assert json.loads(call(transactions, "list", "-n", names, "-o", "json").stdout) == []
    done = call(transactions, "resume", "-n", names, "7F00000100002A9F0000000000000000")
    assert done.exit_code != 0
    assert "no discarded half message" in done.output
