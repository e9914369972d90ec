"""A closed cluster as those work with it who run it and who use it: every family of commands, by accounts
that may and by accounts that may not.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

import rmq
from tests.system.closed.cluster import Closed

NUMBERS = itertools.count()


def rows(closed: Closed, *arguments: str, who: str = "manager") -> Any:
    return json.loads(closed.ok(*arguments, "-o", "json", who=who))


@contextmanager
def members(closed: Closed, *wanted: str) -> Iterator[None]:
    """Consumers of group readers, each with a filter of its own, until the end of the block."""
    command = ("sub", "Orders", "-g", "readers", "--filter")
    processes = [closed.launch(*command, tags, who="owner-app") for tags in wanted]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.communicate(timeout=20)


def until(condition: Callable[[], bool]) -> None:
    """Wait for processes outside of this one."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_owner_of_a_topic_works_with_it(closed: Closed) -> None:
    (sent,) = rows(closed, "pub", "Orders", "paid 1", "--keys", "k1", who="owner-app")
    assert sent["status"] == "SEND_OK"  # broker-a's slave has it, over TLS and with the secret
    queues = rows(closed, "topic", "stats", "Orders", who="owner-app")
    count = str(sum(row["max_offset"] - row["min_offset"] for row in queues))  # with those of other tests
    read = closed.ok("sub", "Orders", "-g", "readers", "--max", count, who="owner-app")
    assert "paid 1" in read.splitlines()
    shown = closed.ok("tail", "Orders", "--from", "earliest", "--no-follow", "-o", "body", who="owner-app")
    assert "paid 1" in shown.splitlines()
    (found,) = rows(closed, "msg", "find", "Orders", "k1", who="owner-app")
    assert found["body"] == "paid 1"
    assert "paid 1" in closed.ok("msg", "get", sent["message_id"], "--topic", "Orders", who="owner-app")
    assert "paid 1" in closed.ok("msg", "print", "Orders", who="owner-app")
    assert sum(row["lag"] for row in rows(closed, "group", "lag", "readers", who="owner-app")) == 0
    assert len(queues) == 4
    assert len(rows(closed, "topic", "route", "Orders", who="owner-app")) == 2
    both = rows(closed, "bench", "both", "--count", "50", who="owner-app")
    assert [(row["messages"], row["failed"]) for row in both] == [(50, 0), (50, 0)]
    assert "owner-app" not in closed.ok("admin", "topicRoute", "-t", "Orders", who="owner-app")


USES = (
    ("pub", "Secret", "x"),
    ("sub", "Secret", "-g", "readers", "--idle", "10s"),
    ("sub", "Orders", "-g", "others", "--idle", "10s"),
    ("tail", "Secret", "--no-follow"),
    ("bench", "producer", "--topic", "Secret", "--count", "1"),
    ("bench", "consumer", "--topic", "Secret", "--group", "readers", "--count", "1"),
    ("msg", "print", "Secret"),
    ("msg", "find", "Secret", "k"),
    ("msg", "resend", "others", "7F00000100002A9F0000000000000000", "--yes"),
    ("topic", "stats", "Secret"),
    ("topic", "route", "Secret"),
    ("group", "lag", "others"),
    ("group", "members", "others"),
    ("dlq", "list", "others"),
    ("admin", "topicRoute", "-t", "Secret"),
)
"""What an account may do with topics and groups of its own."""
ADMINISTRATION = (
    ("topic", "list"),
    ("topic", "show", "Orders"),
    ("topic", "create", "Mine"),
    ("topic", "perm", "Orders", "r"),
    ("topic", "delete", "Orders", "--yes"),
    ("group", "list"),
    ("group", "show", "readers"),
    ("group", "create", "mine"),
    ("group", "delete", "readers", "--yes"),
    ("group", "reset", "readers", "Orders", "--to", "earliest", "--yes"),
    ("group", "skip", "readers", "Orders", "--yes"),
    ("group", "clone", "readers", "mine", "--yes"),
    ("broker", "status", "broker-a"),
    ("broker", "config", "get", "broker-a"),
    ("broker", "config", "set", "fileReservedTime=1"),
    ("broker", "clean", "--logs", "--yes"),
    ("broker", "wipe-write", "broker-a", "--yes"),
    ("broker", "stats", "broker-a", "TOPIC_PUT_NUMS", "Orders"),
    ("broker", "connections", "broker-a"),
    ("transactions", "list"),
    ("export", "-"),
    ("doctor",),
    ("acl", "list"),
    ("acl", "add", "second-manager", "--admin"),
    ("acl", "set", "low-user", "--admin"),
    ("acl", "rotate", "manager"),
    ("acl", "remove", "manager", "--yes"),
    ("admin", "getAclConfig", "-c", "Closed"),
    ("admin", "updateKvConfig", "-s", "space", "-k", "key", "-v", "value"),
)
"""What only an administrator may do."""


@pytest.mark.parametrize("arguments", [*USES, *ADMINISTRATION], ids=" ".join)
@pytest.mark.parametrize("who", ["owner-app", "low-user", "nobody"])
def test_who_may_not_is_told_so_in_one_line(closed: Closed, who: str, arguments: tuple[str, ...]) -> None:
    status, out, error = closed.rmq(*arguments, who=who)

    assert (status, out) == (1, "")
    (line,) = error.splitlines()
    assert line.startswith("rmq: ")
    why = (
        "No accessKey is configured"
        if who == "nobody"
        else ("No default permission", "Need admin permission")
    )
    assert any(text in line for text in ([why] if isinstance(why, str) else why))
    assert ("AccessDenied (16)" if who == "nobody" else "NoPermission (16)") in line
    assert line.endswith(
        ("permissions of the topic and of the account", "check the account and its permissions")
    )


def test_a_list_of_brokers_says_which_figures_are_not_for_this_account(closed: Closed) -> None:
    shown = rows(closed, "cluster", "list", who="low-user")
    assert [row["version"] for row in shown] == ["refuses this account"] * 3


def test_an_administrator_sees_all(closed: Closed) -> None:
    shown = rows(closed, "cluster", "list")
    assert [row["version"] for row in shown] == ["V4_9_7"] * 3
    assert {row["link"] for row in shown} <= {"0 slaves", "1 slave", "following"}
    assert [row["link"] for row in shown if row["role"] == "slave"] == ["following"]
    assert all(row["certificate_end"] for row in shown), "all have TLS"
    (sent,) = rows(closed, "pub", "Orders", "counted", who="owner-app")
    counter = rows(closed, "broker", "stats", sent["broker"], "TOPIC_PUT_NUMS", "Orders")
    assert all(row["sum"] >= 1 for row in counter if row["last"] == "minute")
    assert {row["failed"] for row in rows(closed, "cluster", "rt", "--amount", "2")} == {0}
    for arguments in (("broker", "clean", "--queues", "--topics", "--yes"), ("admin", "clusterList")):
        closed.ok(*arguments)


def test_members_are_seen_with_what_they_do_and_where_they_differ(closed: Closed) -> None:
    with members(closed, "a", "b"):
        until(lambda: any(row["members"] == 2 for row in rows(closed, "group", "list")))
        shown = rows(closed, "group", "members", "readers", "--stack", who="manager")
        assert sorted(row["subscriptions"]["Orders"] for row in shown) == ["a", "b"]
        assert all("poll" in row["stack"] or "sleep" in row["stack"] for row in shown)
        assert len(rows(closed, "broker", "connections", "broker-a")) >= 2

        status, out, _ = closed.rmq("doctor", "-o", "json")
        found = {finding["where"]: finding["what"] for finding in json.loads(out)}
        assert status == 1
        assert "subscribe differently" in found["group readers"]
    (group,) = [row for row in rows(closed, "group", "list") if row["group"] == "readers"]
    assert group["members"] == 0


def test_a_member_without_a_handler_cannot_take_a_message_again(closed: Closed) -> None:
    """`rmq sub` takes messages as they come; what is said when nobody calls a handler must be plain."""
    (sent,) = rows(closed, "pub", "Orders", "again", "--tags", "z", who="owner-app")
    with members(closed, "z"):
        until(lambda: any(row["members"] == 1 for row in rows(closed, "group", "list")))
        arguments = ("msg", "resend", "readers", sent["message_id"], "--topic", "Orders", "--yes")
        status, _, error = closed.rmq(*arguments)
    assert (status, "runs no handler" in error) == (1, True), error


def test_the_doctor_counts_dead_letters(closed: Closed) -> None:
    closed.ok("group", "create", "readers")
    closed.ok("topic", "create", "%DLQ%readers", "--queues", "1")
    closed.ok("pub", "%DLQ%readers", "given up")

    _, out, _ = closed.rmq("doctor", "-o", "json")
    found = [row["what"] for row in json.loads(out) if row["where"] == "group readers"]
    assert "gave up 1 message after all retries" in found, out


def test_accounts_of_servers_that_differ_are_told_and_made_equal(closed: Closed) -> None:
    secret = closed.ok("acl", "add", "new-user", "--topic", "Low=PUB").splitlines()[-1]
    closed.secrets["new-user"] = secret
    assert closed.log("names").count("CREATE_ACL_CONFIG") == 1, "the name server keeps accounts too"
    assert closed.rmq("acl", "list")[::2] == (0, "")

    (master_b,) = closed.servers["master-b"].addresses
    closed.ok("acl", "remove", "new-user", "-b", master_b, "--yes")
    closed.ok("acl", "set", "low-user", "--topic", "Low=PUB|SUB", "-b", master_b, "--yes")
    status, _, error = closed.rmq("acl", "list")
    assert status == 1
    assert f"account new-user is not at {master_b}" in error
    assert f"account low-user may do other things at {master_b}" in error
    status, out, _ = closed.rmq("doctor", "-o", "json")
    assert (status, out.count('"accounts"')) == (1, 2)

    closed.secrets["new-user"] = closed.ok("acl", "rotate", "new-user").splitlines()[-1]
    closed.ok("acl", "set", "low-user", "--topic", "Low=PUB", "--yes")
    assert closed.rmq("acl", "list")[::2] == (0, "")
    closed.ok("acl", "remove", "new-user", "--yes")
    assert "new-user" not in closed.ok("acl", "list")


def test_what_an_account_has_can_be_taken_away(closed: Closed) -> None:
    given = ("--topic", "Low=SUB", "--group", "g=SUB", "--white", "10.0.0.1")
    closed.secrets["brief-user"] = closed.ok("acl", "add", "brief-user", *given).splitlines()[-1]
    closed.ok("acl", "set", "brief-user", "--no-topics", "--no-white", "--yes")
    (left,) = [row for row in rows(closed, "acl", "list") if row["access_key"] == "brief-user"]
    assert (left["topic_perms"], left["group_perms"], left["white_remote_address"]) == ([], ["g=SUB"], "")
    assert closed.rmq("acl", "set", "brief-user", "--no-groups", "--group", "g=SUB")[0] == 2
    closed.ok("acl", "remove", "brief-user", "--yes")


def test_accounts_are_exported_without_secrets_and_imported(closed: Closed, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "cluster.yaml"
    closed.ok("export", str(file))
    text = file.read_text()
    assert "owner-app" in text
    assert closed.ok("import", str(file)) == "nothing to change\n"

    closed.ok("acl", "set", "owner-app", "--topic", "Other=SUB", "--white", "10.0.0.7", "--yes")
    assert "1 change made" in closed.ok("import", str(file), "--yes")
    assert closed.ok("import", str(file)) == "nothing to change\n"
    assert closed.rmq("acl", "list")[::2] == (0, ""), "slaves and name servers have them too"
    (owner,) = [row for row in rows(closed, "acl", "list") if row["access_key"] == "owner-app"]
    assert (owner["topic_perms"][0], owner["white_remote_address"]) == ("Orders=PUB|SUB", "")


def test_the_slave_is_read_while_its_master_is_down(closed: Closed) -> None:
    """Last: broker-a ends and comes back."""
    closed.ok("topic", "create", "Pair", "-b", "broker-a", "--queues", "1")
    closed.ok("acl", "set", "owner-app", "--topic", "Pair=PUB|SUB", "--topic", "Orders=PUB|SUB", "--yes")
    for number in range(5):
        assert "SEND_OK" in closed.ok("pub", "Pair", f"kept {number}")
    until(lambda: "Pair" in topics_of(closed, "slave-a"))  # copied every 10 s
    closed.stop("master-a")

    until(lambda: rows(closed, "cluster", "list")[0]["id"] == 1)  # the name server has let go of the master
    taken = closed.ok("sub", "Pair", "-g", "readers", "--max", "5", "--idle", "15s", who="owner-app")
    assert taken.count("kept") == 5
    look = ("tail", "Pair", "--from", "earliest", "--no-follow", "-o", "body")
    assert closed.ok(*look, who="owner-app").count("kept") == 5
    status, _, error = closed.rmq(*look, who="low-user")
    assert (status, "NoPermission (16)" in error) == (1, True)
    with pytest.raises(rmq.NoRoute, match="no writable queue with a master"):
        trio.run(send_at_once, closed, "Pair")

    closed.start("master-a")
    closed.ready("master-a")
    closed.until_followed()
    assert "SEND_OK" in closed.ok("pub", "Pair", "back", who="owner-app")


async def send_at_once(closed: Closed, topic: str) -> None:
    """Send a message, which does not wait until there is a master again, as the client's default is."""
    tls = rmq.TlsConfig(tls_trust_path=closed.ca)
    owner = rmq.Credentials("owner-app", closed.secrets["owner-app"])
    config = rmq.ClientConfig(send_queue_ms=0, send_timeout_ms=5000)
    client = rmq.connect(f"tls://{closed.namesrv}", tls=tls, credentials=owner, config=config)
    async with client, client.producer("owners") as producer:
        await producer.send(rmq.Message(topic, b"lost"))


def topics_of(closed: Closed, server: str) -> set[str]:
    """The topics that one broker has."""

    async def asked() -> set[str]:
        async with rmq.connect(f"tls://{closed.namesrv}", tls=tls, credentials=manager) as client:
            return set(await client.admin.topic_configs(closed.servers[server].addresses[0]))

    tls = rmq.TlsConfig(tls_trust_path=closed.ca)
    manager = rmq.Credentials("manager", closed.secrets["manager"])
    return trio.run(asked)
