"""Messages on the command line: copied as JSON, printed in the order of time, asked and answered."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.cli.messages.sub import SubOptions, _take
from rmq.client import blocking
from rmq.message import StoredMessage
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import START_MS, Cluster
from rmq.testing.front import BrokerFront
from tests.system.shell import Shell
from tests.unit.client.world import served_in_a_thread

WORKERS = ThreadPoolExecutor(2)


@attrs.define
class Terminal(Shell):
    """A shell, and the cluster that it reaches."""

    cluster: Cluster = attrs.field(factory=Cluster)


@pytest.fixture
def at(tmp_path: pathlib.Path) -> Iterator[Terminal]:
    """At a terminal: two brokers with the topics A, B and Asked."""
    cluster = Cluster("a", "b", topics={"A": 2, "B": 2, "Asked": 1})
    with served_in_a_thread(cluster) as world:
        yield Terminal(tmp_path, world.names, cluster)


def told(message: StoredMessage) -> tuple[object, ...]:
    """The facts that a copy shares with the message."""
    system = {"UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "REAL_TOPIC", "REAL_QID"}
    own = [(name, value) for name, value in message.properties.items() if name not in system]
    return message.body, message.flag, sorted(pair for pair in own if not pair[0].startswith("TIMER_"))


ODD = [
    rmq.Message("A", bytes(range(256)), tags="odd", keys=["k1", "k2"], flag=7),
    rmq.Message("A", "zwölf \u202e\u2028".encode(), properties={"naïve": "x=y\nz", "empty?": " "}),
    rmq.Message("A", b"\n\r\n", tags="a||b", properties={"body": "1"}),
    rmq.Message("A", b"\xff\xfe", keys=["日本"], properties={"k": '"'}),
    rmq.Message("A", b"later", delay_ms=1),
    rmq.Message("A", b"z" * 100_000),
    rmq.Message("A", b'{"a": 1}', properties={"\x1b[31m": "\x7f"}),
]


def test_tail_and_pub_copy_a_topic(at: Terminal) -> None:
    with blocking.connect(at.namesrv) as client, client.producer("p") as producer:
        for message in ODD:
            producer.send(message)
        with client.consumer("wait", {"A": "*"}, consume_from="first") as consumer:
            for _ in ODD:
                delivery = consumer.take(timeout=20)
                assert delivery is not None
                delivery.done()

    lines = at.ok("tail", "A", "--from", "earliest", "--no-follow", "-o", "json")
    assert lines.isascii() or lines.replace("\n", "").isprintable()
    at.ok("pub", "B", "--json", "--concurrency", "2", given=lines)

    originals, copies = at.cluster.sent("A"), at.cluster.sent("B")
    assert len(copies) == len(ODD)
    assert sorted(map(told, copies)) == sorted(map(told, originals))
    assert [name for one in originals for name in one.properties if name.startswith("TIMER_")]
    assert not [name for one in copies for name in one.properties if name.startswith("TIMER_")]
    assert {one.message_id for one in originals}.isdisjoint(one.message_id for one in copies)


def test_a_line_written_by_hand_and_options_over_it(at: Terminal) -> None:
    row = {"body": "x", "tags": "t", "keys": ["a"], "properties": {"p": "1", "UNIQ_KEY": "ID"}, "queue_id": 9}
    added = ("--keys", "b", "--property", "q=2", "-o", "json")
    (sent,) = json.loads(at.ok("pub", "B", "--json", *added, given=json.dumps(row) + "\n"))
    at.ok("pub", "B", "--json", "--tags", "other", given=json.dumps(row))
    for _ in range(4):
        at.ok("pub", "B", "--json", given='\n{"body_base64": "AAE=", "sharding_key": "s"}\n')

    first, second, *rest = at.cluster.sent("B")
    assert (first.tags, first.keys, first.properties["p"], first.properties["q"]) == (
        "t",
        ("a", "b"),
        "1",
        "2",
    )
    assert first.message_id == sent["message_id"] != "ID"
    assert second.tags == "other"
    assert {one.body for one in rest} == {b"\0\1"}
    assert len({one.queue_id for one in rest}) == len({one.broker_name for one in rest}) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", ["line 2", "'nonsense'", "a JSON object"]),
        ("[1]", ["line 2", "a JSON object"]),
        ('{"tags": "a"}', ["line 2", "body or body_base64"]),
        ('{"body": "a", "body_base64": "YQ=="}', ["line 2", "body or body_base64"]),
        ('{"body": 5}', ["line 2: body", "5", "text"]),
        ('{"body_base64": "*"}', ["line 2: body", "base64"]),
        ('{"body": "\\ud800"}', ["line 2: body"]),
        ('{"body": "a", "tag": "b"}', ["line 2: tag", "no such field", "tags"]),
        ('{"body": "a", "keys": "b"}', ["line 2: keys", "a list of texts"]),
        ('{"body": "a", "keys": [5]}', ["keys"]),
        ('{"body": "a", "properties": {"a": 1}}', ["properties"]),
        ('{"body": "a", "delay_level": true}', ["line 2: delay_level"]),
        ('{"body": "a", "delay_level": 99}', ["delay_level"]),
    ],
)
def test_a_line_that_is_no_message_ends_it(at: Terminal, line: str, words: list[str]) -> None:
    done = at.run("pub", "B", "--json", given=f'{{"body": "first"}}\n{line}\n{{"body": "third"}}\n')

    assert done.exit_code in (1, 2)
    assert [word for word in [*words, "1 message sent before"] if word not in done.stderr] == []
    assert done.stderr.count("\n") == 1
    assert [one.body for one in at.cluster.sent("B")] == [b"first"]


def fill(cluster: Cluster) -> None:
    """Eight messages over all queues, a second between them."""
    for number in range(8):
        broker = cluster["ab"[number % 2]]
        broker.call(partial(put_at, cluster, broker, START_MS + number * 1000, number))


def put_at(cluster: Cluster, broker: BrokerFront, wall_ms: int, number: int) -> None:
    with cluster.at(wall_ms):
        broker.put("A", number // 2 % 2, b"%d" % number)


def test_what_ends_comes_in_the_order_of_time(at: Terminal) -> None:
    fill(at.cluster)

    def shown(*options: str) -> str:
        return "".join(at.ok("tail", "A", "-o", "body", *options).split())

    assert shown("--from", "earliest", "--no-follow") == "01234567"
    assert shown("--from", str(START_MS + 3000), "--no-follow") == "34567"
    assert shown("--from", "earliest", "--to", str(START_MS + 3000)) == "012"
    assert shown("--from", str(START_MS + 1001), "--to", str(START_MS + 5000)) == "234"
    assert shown("--from", "earliest", "--no-follow", "--max", "3") == "012"
    assert shown("--from", "earliest", "--no-follow", "--grep", "[2-4]", "--max", "2") == "23"
    assert shown("--no-follow") == ""


def test_a_span_of_several_pulls_of_each_queue_comes_in_order(at: Terminal) -> None:
    for number in range(400):
        at.cluster["ab"[number % 7 % 2]].put("A", number % 3 % 2, b"%d" % number)

    stored = [one.body.decode() for one in at.cluster.sent("A")]
    shown = at.ok("tail", "A", "--from", "earliest", "--no-follow", "-o", "json").splitlines()

    times = [json.loads(line)["store_timestamp"] for line in shown]
    assert times == sorted(times)
    assert sorted(json.loads(line)["body"] for line in shown) == sorted(stored)


# --- request and reply ---


def test_request_prints_the_reply(at: Terminal) -> None:
    asked: list[StoredMessage] = []

    def answer() -> None:
        with (
            blocking.connect(at.namesrv) as client,
            client.producer("p") as producer,
            client.consumer("quoting", {"Asked": "*"}, consume_from="first") as consumer,
        ):
            delivery = consumer.take(timeout=20)
            assert delivery is not None
            with delivery as message:
                asked.append(message)
                producer.reply(message, b"17 for " + message.body)

    answering = WORKERS.submit(answer)
    said = at.ok(
        "request", "Asked", "hz", "--tags", "t", "--keys", "k", "--property", "a=b", "--timeout", "15s"
    )
    answering.result(20)

    assert said == "17 for hz\n"
    assert (asked[0].tags, asked[0].keys, asked[0].properties["a"]) == ("t", ("k",), "b")


def test_a_request_that_nobody_answers_ends_with_1(at: Terminal) -> None:
    done = at.run("request", "Asked", "--timeout", "100ms", given="from standard input")

    assert done.exit_code == 1
    assert done.stderr.startswith("rmq: ")
    assert [one.body for one in at.cluster.sent("Asked")] == [b"from standard input"]


def ask(namesrv: str, body: bytes, timeout: float = 15) -> bytes:
    with blocking.connect(namesrv) as client, client.producer("asking") as producer:
        return producer.request(rmq.Message("Asked", body, tags="t", keys=["k"]), timeout).body


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (["pong"], b"pong"),
        (["--echo"], b"ping"),
        (["--exec", 'tr a-z A-Z; echo " $RMQ_MESSAGE_TAGS $RMQ_MESSAGE_KEYS"'], b"PING t k"),
    ],
)
def test_reply_answers(at: Terminal, answer: list[str], expected: bytes) -> None:
    at.cluster["a"].put("Asked", 0, b"no request")
    asking = WORKERS.submit(ask, at.namesrv, b"ping")
    done = at.run("reply", "Asked", "-g", "quoting", *answer, "--max", "2", "--idle", "15s", "-o", "body")

    assert asking.result(20) == expected
    assert done.exit_code == 0
    assert sorted(done.stdout.splitlines()) == ["no request", "ping"]
    assert done.stderr.count("is no request") == 1


@pytest.mark.parametrize(("program", "why"), [("exit 3", "ended with 3"), ("true", "printed nothing")])
def test_a_command_that_has_no_answer_ends_reply(at: Terminal, program: str, why: str) -> None:
    asking = WORKERS.submit(ask, at.namesrv, b"ping")
    done = at.run("reply", "Asked", "-g", "quoting", "--exec", program, "--idle", "15s")

    assert (done.exit_code, why in done.stderr) == (1, True)
    assert at.run("reply", "Asked", "-g", "quoting", "again", "--max", "1", "--idle", "15s").exit_code == 0
    assert asking.result(20) == b"again"


def test_a_request_whose_asker_is_gone_counts_as_consumed(at: Terminal) -> None:
    gone = "push reply message fail, channel of <asker> not found."
    for broker in "ab":
        at.cluster[broker].script(RequestCode.SEND_REPLY_MESSAGE_V2, lambda asked, _: asked.reply(1, gone))
    asking = WORKERS.submit(ask, at.namesrv, b"ping", 1)
    done = at.run("reply", "Asked", "-g", "quoting", "pong", "--max", "1", "--idle", "15s", "-o", "body")

    assert (done.exit_code, done.stdout) == (0, "ping\n")
    assert "AskerGone" in done.stderr
    assert isinstance(asking.exception(20), rmq.ReplyTimeout)


@pytest.mark.parametrize("answer", [[], ["a", "--echo"], ["--echo", "--exec", "true"], [""]])
def test_reply_wants_one_answer(at: Terminal, answer: list[str]) -> None:
    assert at.run("reply", "Asked", "-g", "quoting", *answer).exit_code == 2


def test_sub_that_never_was_connected_has_failed(at: Terminal) -> None:
    missing = at.run("sub", "Nowhere", "-g", "printing", "--idle", "1s")
    assert missing.exit_code == 1
    assert "no route for topic 'Nowhere'" in missing.stderr
    assert "create the topic 'Nowhere'" in missing.stderr
    idle = at.run("sub", "A", "-g", "printing", "--idle", "1s")
    assert (idle.exit_code, idle.stdout) == (0, "")


def test_sub_without_a_name_server_has_failed(at: Terminal) -> None:
    done = attrs.evolve(at, namesrv="127.0.0.1:1").run("sub", "A", "-g", "printing", "--idle", "1s")
    assert done.exit_code == 1
    assert "no name server could be asked" in done.stderr


@pytest.mark.parametrize(("topic", "expected"), [("Nowhere", rmq.NoRoute), ("A", None)])
async def test_sub_that_is_interrupted_before_it_was_connected_has_failed(
    autojump_clock: MockClock, topic: str, expected: type[Exception] | None
) -> None:
    async with Cluster("a", topics={"A": 2}) as cluster, cluster.connect() as client:
        chosen = SubOptions((topic,), "g", "*", {}, None, None, "body")
        async with client.consumer("g", {topic: "*"}) as consumer:
            with pytest.raises(expected) if expected else nullcontext(), trio.move_on_after(5) as interrupted:
                await _take(consumer, chosen)
    assert interrupted.cancelled_caught == (expected is None)
