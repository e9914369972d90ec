"""RocketMQ's official 5.x clients (Java, Python, Node, Rust, Go) on our broker's gRPC door; v5/ tells what
they do.

`nox -s grpc` runs this. A client whose tools are missing is skipped by its name.
"""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable, Iterator

import pytest

import rmq
from tests.interop.clients5 import SECONDS, Broker, Client, Job, Jobs, client_for
from tests.interop.proxied5 import Proxied
from tests.interop.rocketmq import Process, Processes, wait_until

pytest.importorskip("h2")
pytestmark = pytest.mark.interop

ALL = ("go", "java", "node", "python", "rust")
CHANGING = ("go", "java", "node", "python")
"""Clients that change the time for which a message is invisible."""
PUSHING = ("java", "node", "python")
"""Clients that have push consumers and recall messages."""
IN_ORDER = ("java", "python")
"""Push consumers that keep the order when a message fails (docs/grpc.md tells what Node does)."""
INVISIBLE = 10
MANY = 20


def of(languages: tuple[str, ...]) -> pytest.MarkDecorator:
    """The clients that a test is about."""
    return pytest.mark.parametrize("client", languages, indirect=True)


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Client:
    """A client's driver."""
    return client_for(request)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for all tests of the module."""
    kind = Proxied if os.environ.get("RMQ_INTEROP_DOOR") == "proxy" else Broker
    made = kind(tmp_path_factory.mktemp("grpc"))
    yield made
    made.close()


Run = Callable[..., Job]


@pytest.fixture
def jobs(client: Client, broker: Broker) -> Iterator[Jobs]:
    """Start the client against any address."""
    made = Jobs(client, broker.env)
    yield made
    made.close()


@pytest.fixture
def run(client: Client, broker: Broker, jobs: Jobs) -> Run:
    """Start the client with an action and its options. Go speaks TLS only, whatever the options say."""
    return lambda action, **options: jobs(broker.address, action, **options)


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    """A topic of the test's own."""
    return broker.topic(name_of(request))


def name_of(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def receive(run: Run, topic: str, count: int = MANY * 10, **options: object) -> Job:
    """A simple consumer that has started; it ends after so many messages."""
    options = {"seconds": 60, "count": count} | options
    return run("simple", topic=topic, consumer=f"g-{topic}", **options).started()


# ---- with other clients ----


@of(ALL)
async def test_ours_reads_what_theirs_sends(run: Run, topic: str, broker: Broker) -> None:
    run("send", topic=topic, bodies="one,two,three", tag="x").done()
    seen = []
    async with (
        rmq.connect(broker.names) as ours,
        ours.consumer("ours-" + topic, {topic: "*"}, consume_from="first") as consumer,
    ):
        async for delivery in consumer:
            message = delivery.message
            seen.append((message.body, message.tags, message.keys, message.properties["colour"]))
            if len(seen) == 3:
                break
    assert sorted(seen) == [
        (b"one", "x", ("key-one",), "red"),
        (b"three", "x", ("key-three",), "red"),
        (b"two", "x", ("key-two",), "red"),
    ]


@of(ALL)
async def test_theirs_reads_what_ours_sends(run: Run, topic: str, broker: Broker) -> None:
    async with rmq.connect(broker.names) as ours, ours.producer("ours") as producer:
        for body in (b"one", b"two"):
            message = rmq.Message(topic, body, tags="t", keys=("k",), properties={"colour": "blue"})
            await producer.send(message)
    job = receive(run, topic, 2).done()
    assert sorted(job.told("message")) == [
        ["one", "1", "t", "k", "blue", "-", "3"],
        ["two", "1", "t", "k", "blue", "-", "3"],
    ]


@of(ALL)
def test_clients_of_4x_and_5x_read_each_others_messages(
    run: Run, topic: str, broker: Broker, processes: Processes
) -> None:
    processes.program("Produce", broker.names, topic, "sync", "3", "old").finish()
    job = receive(run, topic, 3).done()
    assert sorted(job.told("message")) == [
        [f"old-{number}", "1", f"T{number}", f"old-{number}", "-", "-", "5"] for number in range(3)
    ]
    run("send", topic=topic, bodies="new", tag="T9").done()
    consumer = processes.program("Consume", broker.names, topic, f"old-{topic}", "T9")
    (row,) = wait_until(lambda: rows_of(consumer), SECONDS, "a message of 5.x at 4.9.7")
    assert (row["body"], row["tags"], row["keys"], row["times"]) == ("new", "T9", "key-new", 0)


def rows_of(consumer: Process) -> list[dict[str, object]]:
    """Messages that a Java consumer has printed."""
    return [row for row in consumer.rows if "body" in row]


# ---- simple consumers ----


@of(ALL)
def test_a_message_comes_again_at_the_second_its_time_ends(run: Run, topic: str) -> None:
    run("send", topic=topic, bodies="one").done()
    job = receive(run, topic, 2, ack="no").until(lambda job: len(job.bodies()) == 2)
    assert job.attempts() == [["one", "1"], ["one", "2"]]
    first, second = job.times("message")
    # A client that has just started prints its first message late.
    assert INVISIBLE - 3 < second - first < INVISIBLE + 3, "RocketMQ's comes 3 to 6 s late"


@of(CHANGING)
def test_an_invisible_time_is_changed(run: Run, topic: str) -> None:
    run("send", topic=topic, bodies="one").done()
    job = receive(run, topic, 2, change=3).done()
    assert job.attempts() == [["one", "1"], ["one", "2"]]
    first, second = job.times("message")
    assert 2 < second - first < 6, "RocketMQ's comes after 6 to 10 s"
    assert job.told("acked") == [["one"]]


@of(ALL)
def test_acknowledged_messages_do_not_come_again(run: Run, topic: str) -> None:
    bodies = [f"m{number}" for number in range(MANY)]
    run("send", topic=topic, bodies=",".join(bodies)).done()
    job = receive(run, topic, seconds=INVISIBLE + 6).done()
    assert sorted(job.attempts()) == sorted([body, "1"] for body in bodies)


@of(ALL)
def test_a_tag_filter(run: Run, topic: str) -> None:
    for tag in ("a", "b", "c"):
        run("send", topic=topic, bodies=f"of-{tag}", tag=tag).done()
    job = receive(run, topic, seconds=7, filter="a || c").done()
    assert sorted(job.bodies()) == ["of-a", "of-c"]


@of(ALL)
def test_a_filter_by_sql(run: Run, topic: str) -> None:
    run("send", topic=topic, bodies="red", colour="red").done()
    run("send", topic=topic, bodies="blue", colour="blue").done()
    job = receive(run, topic, seconds=7, sql="colour = 'blue'").done()
    assert job.bodies() == ["blue"]


@of(ALL)
def test_messages_of_a_group_come_in_order(run: Run, topic: str) -> None:
    bodies = [f"m{number}" for number in range(8)]
    run("send", topic=topic, bodies=",".join(bodies), group="user").done()
    job = receive(run, topic, 8).done()
    assert job.bodies() == bodies
    assert {row[5] for row in job.told("message")} == {"user"}


@of(ALL)
def test_a_delayed_message_comes_at_its_time(run: Run, topic: str) -> None:
    job = receive(run, topic, 1)
    sender = run("send", topic=topic, bodies="late", delay=6_000).until(lambda job: job.told("sent"))
    (sent,) = sender.times("sent")
    (came,) = job.until(lambda job: job.bodies()).times("message")
    assert 4 < came - sent < 9


@of(PUSHING)
def test_a_delayed_message_is_recalled(run: Run, topic: str) -> None:
    sender = run("send", topic=topic, bodies="gone", delay=6_000, recall="yes").done()
    assert sender.told("recalled") == [["gone"]]
    run("send", topic=topic, bodies="stays", delay=6_000).done()
    job = receive(run, topic, seconds=12).done()
    assert job.bodies() == ["stays"]


@of(ALL)
def test_a_send_wakes_a_long_poll(run: Run, topic: str) -> None:
    job = receive(run, topic, 1)
    time.sleep(1)  # its poll is waiting
    sender = run("send", topic=topic, bodies="one").until(lambda job: job.told("sent"))
    (sent,), (came,) = sender.times("sent"), job.until(lambda job: job.bodies()).times("message")
    assert came - sent < 2, "a poll is woken, and does not wait for its end"


@of(ALL)
def test_consumers_share_one_queue(run: Run, request: pytest.FixtureRequest, broker: Broker) -> None:
    topic = broker.topic(name_of(request), queues=1)
    some = [receive(run, topic, batch=1, seconds=20) for _ in range(3)]
    bodies = sorted(f"m{number}" for number in range(MANY))
    run("send", topic=topic, bodies=",".join(bodies)).done()
    some[0].until(lambda job: sum(len(one.bodies()) for one in some) >= MANY)
    assert sorted(body for one in some for body in one.bodies()) == bodies
    assert sum(bool(one.bodies()) for one in some) > 1, "more consumers than queues have work"


@of(ALL)
def test_a_consumer_that_is_killed_gives_back_at_once(run: Run, topic: str) -> None:
    run("send", topic=topic, bodies="one").done()
    job = receive(run, topic, ack="no").until(lambda job: job.bodies())
    job.kill()
    killed = time.monotonic()
    other = receive(run, topic, 1).until(lambda job: job.bodies())
    assert other.attempts() == [["one", "2"]]
    since = max(killed, *other.times("started"))  # a JVM takes its time on a busy machine
    assert other.times("message")[0] - since < INVISIBLE - 2


@of(ALL)
def test_a_body_of_nearly_4_mib(run: Run, topic: str) -> None:
    padding = 4_000_000
    run("send", topic=topic, bodies="one,two", padding=padding).done()
    job = receive(run, topic, 2, batch=1).done()
    assert sorted((row[0], row[-1]) for row in job.told("message")) == [
        ("one", str(padding + 3)),
        ("two", str(padding + 3)),
    ]


# ---- push consumers ----


@of(PUSHING)
def test_a_push_consumer_retries_and_filters(
    run: Run, request: pytest.FixtureRequest, broker: Broker, topic: str
) -> None:
    group = broker.group(f"g-{topic}", delay_ms=2_000)
    job = run("push", topic=topic, consumer=group, seconds=60, filter="yes", fails="two").started()
    run("send", topic=topic, bodies="no", tag="no").done()
    run("send", topic=topic, bodies="one,two", tag="yes").done()
    job.until(lambda job: len(job.bodies()) == 3)
    assert sorted(job.attempts()) == [["one", "1"], ["two", "1"], ["two", "2"]]
    first, second = (
        at for at, row in zip(job.times("message"), job.told("message"), strict=True) if row[0] == "two"
    )
    assert second - first < 8, "the retry of RocketMQ comes 20 s later"


@of(PUSHING)
def test_a_message_that_always_fails_is_a_dead_letter(run: Run, broker: Broker, topic: str) -> None:
    group = broker.group(f"g-{topic}", attempts=3, delay_ms=1_000)
    job = run("push", topic=topic, consumer=group, seconds=60, fails="bad", times=99).started()
    run("send", topic=topic, bodies="bad,good").done()
    job.until(lambda job: len(job.bodies()) == 4)
    assert sorted(job.attempts()) == [["bad", "1"], ["bad", "2"], ["bad", "3"], ["good", "1"]]
    letters = broker.until_topic(f"%DLQ%{group}")
    dead = run("simple", topic=letters, consumer=f"dead-{topic}", seconds=40, count=1, retry="yes")
    dead.until(lambda job: job.bodies() or job.child.poll() is not None)
    assert dead.bodies() == ["bad"], dead.rows
    time.sleep(3)
    assert len(job.bodies()) == 4


@of(IN_ORDER)
def test_a_message_that_fails_holds_its_message_group_only(run: Run, broker: Broker, topic: str) -> None:
    group = broker.group(f"g-{topic}", delay_ms=3_000, in_order=True)
    job = run("push", topic=topic, consumer=group, seconds=60, fails="a1").started()
    run("send", topic=topic, bodies="a0,a1,a2", group="a").done()
    run("send", topic=topic, bodies="b0,b1", group="b").done()
    job.until(lambda job: len(job.bodies()) == 6)
    assert [body for body in job.bodies() if body.startswith("a")] == ["a0", "a1", "a1", "a2"]
    assert [body for body in job.bodies() if body.startswith("b")] == ["b0", "b1"]


# ---- transactions ----


@of(ALL)
@pytest.mark.parametrize(("end", "expected"), [("commit", ["tx"]), ("rollback", []), ("orphan", ["tx"])])
def test_a_transaction(run: Run, topic: str, end: str, expected: list[str]) -> None:
    sender = run("send", topic=topic, bodies="tx", end=end).until(lambda job: job.told("sent"))
    if end == "orphan":
        sender.until(lambda job: job.told("check") == [["tx"]])
    job = receive(run, topic, count=len(expected) or 1, seconds=7).done()
    assert job.bodies() == expected


@of(ALL)
def test_another_producer_recovers_an_orphan(run: Run, topic: str) -> None:
    sender = run("send", topic=topic, bodies="tx", end="orphan").until(lambda job: job.told("sent"))
    sender.kill()
    other = run("send", topic=topic, bodies="", end="orphan").started()
    other.until(lambda job: job.told("check") == [["tx"]])
    assert receive(run, topic, 1).done().bodies() == ["tx"]


# ---- accounts and TLS ----

ACCOUNTS = """accounts:
  - {accessKey: admin001, secretKey: admin-secret-1, admin: true}
  - {accessKey: writer01, secretKey: writer-secret-1, defaultTopicPerm: PUB}
  - {accessKey: reader01, secretKey: reader-secret-1, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with accounts."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    made = Broker(folder, plugins="acl,grpc", aclFile=file)
    yield made
    made.close()


@of(ALL)
def test_accounts(jobs: Jobs, guarded: Broker) -> None:
    admin = rmq.Credentials("admin001", "admin-secret-1")
    topic = guarded.topic(f"Guarded-{jobs.client.language}", account=admin)
    right = {"user": "writer01", "secret": "writer-secret-1"}
    job = jobs(guarded.address, "send", topic=topic, bodies="one", **right).done()
    assert job.told("sent"), job.rows
    for wrong in ({}, {"user": "writer01", "secret": "another"}, {"user": "nobody01", "secret": "x"}):
        job = jobs(guarded.address, "send", topic=topic, bodies="two", **wrong)
        job.until(lambda job: job.told("error") or job.child.poll() is not None)
        assert not job.told("sent"), job.rows
        job.kill()
    reader = {"user": "reader01", "secret": "reader-secret-1"}
    job = jobs(guarded.address, "send", topic=topic, bodies="three", **reader)
    job.until(lambda job: job.told("error") or job.child.poll() is not None)
    assert not job.told("sent"), job.rows
    job = jobs(guarded.address, "simple", topic=topic, consumer="readers", seconds=8, **reader).done()
    assert job.bodies() == ["one"], job.rows


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that refuses whoever does not speak TLS."""
    made = Broker(tmp_path_factory.mktemp("enforcing"))
    for language in ALL:
        made.topic(f"Tls-{language}")
    made.set("tlsMode", "enforcing")
    yield made
    made.close()


@of(ALL)
def test_tls(client: Client, enforcing: Broker) -> None:
    topic, jobs = f"Tls-{client.language}", Jobs(client, enforcing.env)
    try:
        if client.language != "go":  # which has nothing but TLS
            job = jobs(enforcing.address, "send", topic=topic, bodies="plain")
            job.until(lambda job: job.told("error") or job.child.poll() is not None)
            assert not job.told("sent")
        assert jobs(enforcing.address, "send", topic=topic, bodies="one", tls="yes").done().told("sent")
        job = jobs(enforcing.address, "simple", topic=topic, consumer="g", seconds=60, count=1, tls="yes")
        assert job.done().bodies() == ["one"]
    finally:
        jobs.close()


# ---- a broker that goes away ----


@of(ALL)
@pytest.mark.parametrize("is_hard", [False, True], ids=["restart", "kill"])
def test_a_broker_that_comes_back(jobs: Jobs, tmp_path: pathlib.Path, is_hard: bool) -> None:
    broker = Broker(tmp_path, flushDiskType="SYNC_FLUSH")
    try:
        topic = broker.topic("Kept")
        bodies = [f"m{number}" for number in range(40)]
        consumer = jobs(broker.address, "simple", topic=topic, consumer="g", seconds=120, count=10_000)
        consumer.started()
        sender = jobs(broker.address, "send", topic=topic, bodies=",".join(bodies), every=100, retry="yes")
        sender.until(lambda job: len(job.told("sent")) > 8)
        if is_hard:
            broker.kill()
        else:
            broker.stop()
        broker.start()
        sender.done()
        consumer.until(lambda job: set(job.bodies()) >= set(bodies))
        # The answer to an acknowledgement may be lost with the broker.
        consumer.until(lambda job: len(set(bodies) - {row[0] for row in job.told("acked")}) <= is_hard)
        after_ack(consumer)
    finally:
        broker.close()


def after_ack(consumer: Job) -> None:
    """Check that nothing came after its acknowledgement was answered: a send that was answered by an error
    may have stored its message all the same, so a body may come twice, each time for the first time."""
    acked: set[str] = set()
    for row in list(consumer.rows):
        if row[:1] == ["acked"]:
            acked.add(row[1])
        elif row[:1] == ["message"] and row[2] != "1":
            assert row[1] not in acked, row
