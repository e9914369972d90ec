"""The command line against a real cluster of two masters, as a person uses it."""

from __future__ import annotations

import itertools
import json
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from rmq.protocol import engine
from tests.system.shell import Shell

NUMBERS = itertools.count()


@pytest.fixture
def topic(cluster: Shell) -> str:
    """A new topic with two queues on each master."""
    name = f"Orders{next(NUMBERS)}"
    cluster.ok("topic", "create", name, "--queues", "2")
    return name


def left(cluster: Shell, group: str, topic: str) -> int:
    return sum(row["lag"] for row in cluster.rows("group", "lag", group, "--topic", topic))


def test_a_topic_is_made_on_every_master(cluster: Shell, topic: str) -> None:
    shown = cluster.rows("topic", "show", topic)
    routes = cluster.rows("topic", "route", topic)

    assert [row["broker"] for row in shown] == ["broker-a", "broker-b"]
    assert {(row["read_queues"], row["write_queues"], row["perm"]) for row in shown} == {(2, 2, "rw")}
    assert [(row["cluster"], row["broker"]) for row in routes] == [
        ("DefaultCluster", "broker-a"),
        ("DefaultCluster", "broker-b"),
    ]
    (listed,) = [row for row in cluster.rows("topic", "list") if row["topic"] == topic]
    assert (listed["brokers"], listed["read_queues"]) == (2, 4)


def test_groups_and_topics_that_are_not_there_are_said_so(cluster: Shell, topic: str) -> None:
    for words in (
        ("show", "nobody"),
        ("lag", "nobody"),
        ("lag", "nobody", "--topic", topic),
        ("skip", "nobody", topic, "--yes"),
        ("delete", "nobody", "--yes"),
    ):
        done = cluster.run("group", *words)
        assert (done.exit_code, "no broker knows group nobody" in done.stderr) == (1, True), (words, done)
    cluster.ok("group", "create", "made")
    done = cluster.run("group", "lag", "made")
    assert (done.exit_code, "group made has no offsets" in done.stderr) == (0, True), done
    done = cluster.run("group", "lag", "made", "--topic", "Nowhere")
    assert (done.exit_code, "no route for topic 'Nowhere'" in done.stderr) == (1, True), done
    done = cluster.run("group", "clone", "made", "copy", "--yes")
    assert (done.exit_code, "nothing was set" in done.stderr) == (1, True), done


def test_a_topic_is_changed_and_deleted(cluster: Shell, topic: str) -> None:
    cluster.ok("topic", "update", topic, "--queues", "3")
    cluster.ok("topic", "perm", topic, "r")
    assert {(row["write_queues"], row["perm"]) for row in cluster.rows("topic", "show", topic)} == {(3, "r")}

    limits = ("--retention", "3d", "--retention-bytes", "10g")
    cluster.ok("topic", "update", topic, *limits)
    rows = cluster.rows("topic", "show", topic)
    assert {(row["retention_ms"], row["retention_bytes"]) for row in rows} == {(259_200_000, 10 << 30)}
    cluster.ok("topic", "update", topic, "--retention", "none")
    rows = cluster.rows("topic", "show", topic)
    assert {(row["retention_ms"], row["retention_bytes"]) for row in rows} == {(0, 10 << 30)}

    kept = cluster.run("topic", "delete", topic, given="n\n")
    assert (kept.exit_code, "nothing was changed" in kept.stderr) == (1, True)
    assert cluster.run("topic", "delete", topic, given="").exit_code == 1
    cluster.ok("topic", "delete", topic, given="y\n")
    assert topic not in cluster.ok("topic", "list")
    gone = cluster.run("topic", "show", topic)
    assert gone.exit_code == 1
    assert gone.stderr.startswith(f"rmq: no route for topic '{topic}'")


def test_a_topic_that_is_there_is_not_made_again(cluster: Shell, topic: str) -> None:
    again = cluster.run("topic", "create", topic)
    assert (again.exit_code, "rmq topic update" in again.stderr) == (1, True)
    assert "nothing was changed" in cluster.ok("topic", "create", topic, "--if-missing")


def test_update_puts_a_topic_on_the_masters_that_lack_it(cluster: Shell) -> None:
    cluster.ok("topic", "create", "Half", "-b", "broker-a")
    assert "topic Half" in cluster.ok("doctor")

    cluster.ok("topic", "update", "Half")
    assert len(cluster.rows("topic", "show", "Half")) == 2
    done = cluster.run("doctor")
    assert "topic Half" not in done.stdout
    assert f", {engine.NAME} engine: 0 wrong" in done.stderr


def test_what_is_sent_can_be_looked_at_found_and_consumed(cluster: Shell, topic: str) -> None:
    (sent,) = cluster.rows("pub", topic, "paid 42", "--tags", "paid", "--keys", "k42", "--property", "a=b")
    assert sent["status"] == "SEND_OK"
    cluster.ok("pub", topic, "--tags", "other", given="one\ntwo\n\nfour\n")

    lines = cluster.ok("tail", topic, "--from", "earliest", "--no-follow", "-o", "json").splitlines()
    seen = {row["body"]: row for row in map(json.loads, lines)}
    assert set(seen) == {"paid 42", "one", "two", "four"}  # an empty line is no message
    assert seen["paid 42"]["message_id"] == sent["message_id"]
    assert (seen["paid 42"]["keys"], seen["paid 42"]["properties"]["a"]) == (["k42"], "b")
    assert cluster.ok("tail", topic, "--from", "-1h", "--no-follow", "--grep", "^t", "-o", "body") == "two\n"

    (found,) = cluster.rows("msg", "find", topic, "k42")
    assert (found["body"], found["broker"]) == ("paid 42", sent["broker"])
    assert cluster.rows("msg", "get", sent["message_id"], "--topic", topic)["body"] == "paid 42"
    assert cluster.rows("msg", "get", found["offset_message_id"])["body"] == "paid 42"
    assert cluster.run("msg", "find", topic, "nokey").exit_code == 1

    taken = cluster.ok("sub", topic, "-g", "finders", "--filter", "paid", "--max", "1")
    assert taken == "paid 42\n"


def test_a_group_falls_behind_is_reset_and_skips(cluster: Shell, topic: str) -> None:
    cluster.ok("pub", topic, given="".join(f"{number}\n" for number in range(20)))
    first = cluster.ok("sub", topic, "-g", "slow", "--max", "5").split()
    assert len(first) == 5
    assert left(cluster, "slow", topic) == 15

    moved = cluster.rows("group", "reset", "slow", topic, "--to", "earliest", "--yes")
    assert {row["now"] for row in moved} == {0}
    assert left(cluster, "slow", topic) == 20
    assert len(cluster.ok("sub", topic, "-g", "slow", "--max", "20").split()) == 20

    cluster.ok("group", "reset", "slow", topic, "--to", "-1h", "--yes")
    refused = cluster.run("group", "skip", "slow", topic, given="n\n")
    assert (refused.exit_code, left(cluster, "slow", topic)) == (1, 20)
    cluster.ok("group", "skip", "slow", topic, "--yes")
    assert left(cluster, "slow", topic) == 0

    cluster.ok("group", "create", "copy")
    cluster.ok("group", "clone", "slow", "copy", "--topic", topic, "--yes")
    assert left(cluster, "copy", topic) == 0


def test_groups_are_made_listed_and_deleted(cluster: Shell) -> None:
    cluster.ok("group", "create", "billing", "--retry-max", "3")

    assert {row["retry_max"] for row in cluster.rows("group", "show", "billing")} == {3}
    (row,) = [row for row in cluster.rows("group", "list") if row["group"] == "billing"]
    assert (row["brokers"], row["lag"]) == (2, 0)
    cluster.ok("group", "delete", "billing", "--yes")
    assert cluster.run("group", "show", "billing").exit_code == 1
    assert cluster.run("group", "delete", "billing", "--yes").exit_code == 1


def test_export_wipe_import_brings_all_back(cluster: Shell, topic: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "cluster.yaml"
    cluster.ok("topic", "update", topic, "-b", "broker-b", "--queues", "4")
    cluster.ok("group", "create", "kept", "--retry-max", "7")
    cluster.ok("pub", topic, given="1\n2\n3\n4\n5\n6\n")
    cluster.ok("sub", topic, "-g", "kept", "--max", "6")
    cluster.ok("export", str(file))
    before = cluster.rows("group", "lag", "kept", "--topic", topic)

    assert cluster.ok("import", str(file)) == "nothing to change\n"
    cluster.ok("group", "delete", "kept", "--offsets", "--yes")
    cluster.ok("topic", "update", topic, "--queues", "5")
    shown = cluster.ok("import", str(file), "--dry-run")
    assert "retry_max=7" in shown
    assert cluster.run("group", "show", "kept").exit_code == 1
    assert "changes made" in cluster.ok("import", str(file), "--yes")
    assert cluster.ok("import", str(file)) == "nothing to change\n"

    assert [row["read_queues"] for row in cluster.rows("topic", "show", topic)] == [2, 4]
    assert {row["retry_max"] for row in cluster.rows("group", "show", "kept")} == {7}
    after = cluster.rows("group", "lag", "kept", "--topic", topic)
    assert [row["consumer_offset"] for row in after] == [row["consumer_offset"] for row in before]


def test_offsets_beyond_the_end_of_a_wiped_topic_are_left_out(
    cluster: Shell, topic: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "cluster.yaml"
    cluster.ok("pub", topic, given="1\n2\n3\n4\n")
    cluster.ok("sub", topic, "-g", "wiped", "--max", "4")
    cluster.ok("export", str(file))
    cluster.ok("topic", "delete", topic, "--yes")
    cluster.ok("group", "delete", "wiped", "--offsets", "--yes")

    done = cluster.run("import", str(file), "--yes")
    assert done.exit_code == 0
    assert f"its offsets in {topic}" in done.stderr
    assert len(cluster.rows("topic", "show", topic)) == 2


def test_the_doctor_finds_what_is_wrong(cluster: Shell, topic: str) -> None:
    cluster.ok("pub", topic, given="1\n2\n3\n")
    cluster.ok("sub", topic, "-g", "patient", "--max", "1")

    found = cluster.run("doctor", "-n", f"{cluster.namesrv};127.0.0.1:1", "--lag", "1", "-o", "json")
    assert found.exit_code == 1
    wrong = {row["where"]: row for row in json.loads(found.stdout) if row["level"] == "wrong"}
    assert "cannot connect" in wrong["name server 127.0.0.1:1"]["what"]
    assert "2 messages left, and no member" in wrong["group patient"]["what"]
    assert "rmq group delete patient" in wrong["group patient"]["what_to_do"]
    notes = [row["what"] for row in json.loads(found.stdout) if row["level"] == "note"]
    assert sum("durability is memory" in what for what in notes) == 2


def test_the_doctor_misses_what_an_export_had(cluster: Shell, topic: str, tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "all.yaml")
    cluster.ok("export", file, "--no-offsets")
    cluster.ok("doctor", "--expect", file)
    cluster.ok("topic", "delete", topic, "--yes")
    done = cluster.run("doctor", "--expect", file, "-o", "json")
    assert done.exit_code == 1
    whats = [row["what"] for row in json.loads(done.stdout) if row["where"] == f"topic {topic}"]
    assert whats == ["ought to be on broker-a, and is not", "ought to be on broker-b, and is not"]
    done = cluster.run("broker", "forget", "broker-a", "--yes")
    assert (done.exit_code, "no name server misses a broker" in done.stderr) == (1, True)


def test_brokers_are_looked_at_and_changed(cluster: Shell) -> None:
    rows = cluster.rows("cluster", "list")
    assert [(row["broker"], row["id"], row["version"]) for row in rows] == [
        ("broker-a", 0, "V4_9_7"),
        ("broker-b", 0, "V4_9_7"),
    ]
    assert all(row["kind"].startswith("rmq ") and row["role"] == "master" for row in rows)
    assert [row["link"] for row in rows] == ["0 slaves", "0 slaves"]
    assert cluster.run("cluster", "show", "Nowhere").exit_code == 1
    assert cluster.rows("broker", "status", "broker-a")["durability"] == "memory"

    cluster.ok("broker", "config", "set", "fileReservedTime=48", "-b", "broker-a")
    times = [
        cluster.rows("broker", "config", "get", name, "fileReservedTime") for name in ("broker-a", "broker-b")
    ]
    assert times == [{"fileReservedTime": "48"}, {"fileReservedTime": "72"}]
    assert cluster.run("broker", "config", "get", "broker-a", "noSuchKey").exit_code == 1
    assert cluster.run("broker", "config", "set", "nonsense").exit_code == 2
    assert "cleaned" in cluster.ok("broker", "clean", "--queues", "--topics", "--yes")
    assert {row["failed"] for row in cluster.rows("cluster", "rt", "--amount", "3")} == {0}


def test_writes_are_taken_from_a_broker_and_given_back(cluster: Shell, topic: str) -> None:
    cluster.ok("broker", "wipe-write", "broker-b", "--yes")
    try:
        perms = {row["broker"]: row["perm"] for row in cluster.rows("topic", "route", topic)}
        assert perms == {"broker-a": "rw", "broker-b": "r"}
    finally:
        cluster.ok("broker", "add-write", "broker-b")
    assert {row["perm"] for row in cluster.rows("topic", "route", topic)} == {"rw"}


def test_bench_sends_and_consumes_what_it_was_told(cluster: Shell, topic: str) -> None:
    rows = cluster.rows("bench", "both", "--topic", topic, "--count", "200", "--batch", "10", "--size", "64")

    assert [(row["role"], row["messages"], row["failed"]) for row in rows] == [
        ("producer", 200, 0),
        ("consumer", 200, 0),
    ]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] for row in rows)


def test_tail_follows_until_interrupted_with_status_130(cluster: Shell, topic: str) -> None:
    with cluster.start("tail", topic, "--from", "earliest", "-o", "body") as process:
        assert process.stdout is not None
        try:
            for text in ("first", "second"):
                cluster.ok("pub", topic, text)
                assert process.stdout.readline() == f"{text}\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "")


def test_a_reader_that_goes_away_ends_tail_quietly(cluster: Shell, topic: str) -> None:
    cluster.ok("pub", topic, "x" * 100, "--count", "3000", "--concurrency", "32")
    with cluster.start("tail", topic, "--from", "earliest") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == ""
            process.wait(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0


def test_members_show_what_each_subscribes_to(cluster: Shell, topic: str) -> None:
    with cluster.start("sub", topic, "-g", "seen", "--filter", "paid") as process:
        assert process.stdout is not None
        try:
            cluster.ok("pub", topic, "hello", "--tags", "paid")
            assert process.stdout.readline() == "hello\n"
            (member,) = cluster.rows("group", "members", "seen")
            connected = cluster.rows("broker", "connections", "broker-a")
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
        finally:
            process.kill()
    assert member["subscriptions"][topic] == "paid"
    assert member["queues"] >= 4
    assert member["client_id"] in {row["client_id"] for row in connected}
    assert process.returncode == 130
    assert left(cluster, "seen", topic) == 0


def test_lines_of_a_pipe_are_sent_as_they_come(cluster: Shell, topic: str) -> None:
    with cluster.start("pub", topic, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            process.stdin.write("early\n")
            process.stdin.flush()
            got = cluster.ok("sub", topic, "-g", "pipe", "--max", "1", "--idle", "15s")
            said, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert got == "early\n"
    assert process.returncode == 0
    assert "SEND_OK" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "Nowhere", "x"),
        ("tail", "Nowhere"),
        ("topic", "delete", "Nowhere"),
        ("topic", "stats", "Nowhere"),
        ("bench", "producer", "--topic", "Nowhere", "--duration", "1s"),
    ],
)
def test_a_topic_that_is_nowhere_is_one_line_and_status_1(cluster: Shell, arguments: tuple[str, ...]) -> None:
    done = cluster.run(*arguments)

    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("rmq: no route for topic 'Nowhere'")
    assert "create the topic" in line


def test_a_drained_broker_stays_drained(cluster: Shell, topic: str) -> None:
    def permissions(name: str) -> dict[str, str]:
        return {row["broker"]: row["perm"] for row in cluster.rows("topic", "route", name)}

    def ends(broker: str) -> int:
        rows = cluster.rows("topic", "stats", topic)
        return sum(row["max_offset"] for row in rows if row["broker"] == broker)

    cluster.ok("pub", topic, given="1\n2\n3\n4\n")
    try:
        stuck = cluster.run("broker", "drain", "broker-a", "--timeout", "2s", "--yes")
        assert stuck.exit_code == 1
        assert "no message may arrive for 31 s" in stuck.output
        drained = cluster.run("broker", "drain", "broker-a", "--no-wait", "--yes")
        assert drained.exit_code == 0
        until(lambda: permissions(topic) == {"broker-a": "r", "broker-b": "rw"})
        cluster.ok("topic", "create", f"{topic}-new")  # undid what wipe-write did
        until(lambda: permissions(f"{topic}-new") == {"broker-a": "r", "broker-b": "rw"})
        assert permissions(topic) == {"broker-a": "r", "broker-b": "rw"}
        before = ends("broker-a")
        cluster.ok("pub", topic, given="5\n6\n7\n8\n")
        assert ends("broker-a") == before
    finally:
        cluster.ok("broker", "undrain", "broker-a")
    until(lambda: permissions(topic) == {"broker-a": "rw", "broker-b": "rw"})


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_topic_moves_and_the_plan_says_which(cluster: Shell, topic: str) -> None:
    name, other = f"{topic}-moving", f"{topic}-staying"
    for one in (name, other):
        cluster.ok("topic", "create", one, "-b", "broker-a", "--queues", "2")
        cluster.ok("pub", one, given="".join(f"{number}\n" for number in range(3000)))
    (row,) = [row for row in cluster.rows("cluster", "plan") if row["topic"] in (name, other)]
    assert row["command"] == f"rmq topic move {row['topic']} --from broker-a --to broker-b"
    assert row["messages"] == 3000
    nobody = cluster.run("topic", "move", name, "--from", "broker-b", "--to", "broker-a", "--yes")
    assert (nobody.exit_code, "is not on broker-b, but on broker-a" in nobody.output) == (1, True)
    told = cluster.ok("topic", "move", name, "--from", "broker-a", "--to", "broker-b", "--no-wait", "--yes")
    assert "go to broker-b" in told
    until(
        lambda: (
            {row["broker"]: row["perm"] for row in cluster.rows("topic", "route", name)}
            == {"broker-a": "r", "broker-b": "rw"}
        )
    )
    cluster.ok("topic", "delete", name, "--yes")
    cluster.ok("topic", "delete", other, "--yes")
