"""A closed cluster as an attacker sees it: raw frames over TLS, by strangers and by an account that may write
one topic. What RocketMQ 4.9.7 let through of these is told in docs/design/security.md.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import Iterator

import pytest

from rmq.clock import wall_clock_ms
from rmq.protocol.auth.signature import Credentials, Prover, signed
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import RegisterBrokerRequestHeader
from tests.system.closed.cluster import Closed
from tests.unit.broker.rig import batch, pull, send

REFUSED = 16


@pytest.fixture(scope="module", autouse=True)
def nothing_was_stored(closed: Closed) -> Iterator[None]:
    """After all that the tests try, Secret has the one message that was there, and all servers live."""
    closed.ok("pub", "Secret", "not for you", "--keys", "hidden")
    yield
    assert (
        sum(row["messages"] for row in json.loads(closed.ok("topic", "stats", "Secret", "-o", "json"))) == 1
    )
    assert len(closed.ok("cluster", "list", "-o", "json").split("V4_9_7")) == 4
    assert all(server.process.poll() is None for server in closed.servers.values())


def dial(closed: Closed, address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    trust = ssl.create_default_context(cafile=closed.ca)
    return trust.wrap_socket(socket.create_connection((host, int(port)), timeout=10), server_hostname=host)


def ask(closed: Closed, server: str, *requests: Command, who: str = "") -> list[Command]:
    """The answers to requests of an account, or of nobody, over one connection."""
    if who:
        account = Credentials(who, closed.secrets[who])
        requests = tuple(map(Prover(account, wall_clock_ms), requests))
    decoder, answers = Decoder(), []
    with dial(closed, closed.servers[server].addresses[0]) as link:
        link.sendall(b"".join(encode(request) for request in requests))
        while len(answers) < len(requests):
            data = link.recv(65536)
            assert data, "the connection was closed"
            answers += decoder.feed(data)
    return answers


def read_all(link: socket.socket) -> bytes:
    """The bytes that arrive until the other side closes."""
    parts = []
    with link:
        try:
            while data := link.recv(65536):
                parts.append(data)
        except (ConnectionError, ssl.SSLError):
            pass
    return b"".join(parts)


OPEN_TO_LOW: list[tuple[str, Command]] = [
    ("a message to another topic", send("Secret", b"x")),
    ("a batch to another topic", batch("Secret", [b"x", b"y"])),
    ("messages of another topic", pull("Secret")),
    ("the accounts", Command.request(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)),
    ("the settings", Command.request(RequestCode.GET_BROKER_CONFIG)),
    ("a change of settings", Command.request(RequestCode.UPDATE_BROKER_CONFIG, None, b"fileReservedTime=1")),
    (
        "to be administrator",
        Command.request(
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            {"accessKey": "low-user", "secretKey": "a-new-secret", "admin": "true"},
        ),
    ),
    (
        "no account for anybody",
        Command.request(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "*"}),
    ),
    ("a topic gone", Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Secret"})),
    ("the tables of slaves", Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)),
    ("a code that nobody knows", Command.request(999)),
    ("another one", Command.request(-1)),
]


@pytest.mark.parametrize("server", ["master-a", "slave-a", "master-b"])
@pytest.mark.parametrize(("what", "request_"), OPEN_TO_LOW, ids=[what for what, _ in OPEN_TO_LOW])
def test_an_account_that_may_write_one_topic_gets_nothing_else(
    closed: Closed, server: str, what: str, request_: Command
) -> None:
    for who in ("low-user", ""):
        (answer,) = ask(closed, server, request_, who=who)
        assert (answer.code, answer.body) == (REFUSED, b""), (what, who, answer.remark)


def test_no_message_is_read_by_its_place_in_the_log(closed: Closed) -> None:
    (found,) = json.loads(closed.ok("msg", "find", "Secret", "hidden", "-o", "json"))
    place = int(found["offset_message_id"][16:], 16)
    request = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)})
    servers = {"broker-a": ("master-a", "slave-a"), "broker-b": ("master-b",)}[found["broker"]]
    for server in servers:
        for who in ("low-user", "owner-app", ""):
            (answer,) = ask(closed, server, request, who=who)
            assert (answer.code, answer.body) == (REFUSED, b"")
        (answer,) = ask(closed, server, request, who="manager")
        assert b"not for you" in answer.body


def test_a_forged_signature_and_a_borrowed_name_are_refused(closed: Closed) -> None:
    forged = signed(send("Low", b"x"), Credentials("low-user", "not-the-secret"))
    changed = signed(send("Low", b"x"), Credentials("low-user", closed.secrets["low-user"]))
    changed.body = b"y"
    (first,) = ask(closed, "master-a", forged)
    (second,) = ask(closed, "master-a", changed)
    assert (first.code, second.code) == (REFUSED, REFUSED)


def test_a_frame_that_was_recorded_is_not_taken_again(closed: Closed) -> None:
    account = Credentials("low-user", closed.secrets["low-user"])
    frame = Prover(account, wall_clock_ms)(send("Low", b"x"))
    assert sorted(answer.code for answer in ask(closed, "master-b", frame, frame)) == [0, REFUSED]
    assert [answer.code for answer in ask(closed, "master-b", frame)] == [REFUSED]


def test_a_recorded_frame_of_rocketmqs_clients_is_taken_again_but_an_administrators(closed: Closed) -> None:
    """The statement of docs/security.md: RocketMQ's signature has no time and no code. TLS protects against
    this attack."""
    frame = signed(send("Low", b"x"), Credentials("low-user", closed.secrets["low-user"]))
    assert [answer.code for answer in ask(closed, "master-b", frame, frame)] == [0, 0]
    settings = Command.request(RequestCode.GET_BROKER_CONFIG)
    (answer,) = ask(closed, "master-b", signed(settings, Credentials("manager", closed.secrets["manager"])))
    assert "must prove its requests" in (answer.remark or "")


@pytest.mark.parametrize("who", ["manager", "low-user", ""])
def test_routes_are_changed_by_servers_with_the_secret_only(closed: Closed, who: str) -> None:
    mine = RegisterBrokerRequestHeader("broker-x", "127.0.0.1:1", "Closed", "127.0.0.1:2", 0, False, 0)
    requests = (
        Command.request(RequestCode.REGISTER_BROKER, mine),
        Command.request(
            RequestCode.UNREGISTER_BROKER,
            {"brokerName": "broker-a", "brokerAddr": "x", "clusterName": "Closed", "brokerId": "0"},
        ),
    )
    answers = ask(closed, "names", *requests, who=who)
    assert [answer.code for answer in answers] == [REFUSED] * 2
    assert "must be signed with the cluster secret" in (answers[0].remark or "")
    assert "broker-x" not in closed.ok("cluster", "list")


def test_what_name_servers_keep_is_for_administrators(closed: Closed) -> None:
    requests = [
        Command.request(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
        Command.request(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true"),
        Command.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
        Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Secret"}),
        Command.request(4711),
    ]
    for who in ("low-user", ""):
        assert {answer.code for answer in ask(closed, "names", *requests, who=who)} == {REFUSED}


def test_the_port_for_slaves_gives_no_byte_of_the_log(closed: Closed) -> None:
    found = re.search(r"following master (\S+) ", closed.log("slave-a"))
    assert found is not None
    host, _, port = found[1].rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=10)
    plain.sendall(bytes(8))  # all that RocketMQ asks for
    assert b"not for you" not in read_all(plain)
    for greeting in (bytes(8), b"rmq-ha/1" + os.urandom(32) + os.urandom(32)):
        link = dial(closed, found[1])
        link.sendall(greeting)
        got = read_all(link)
        assert len(got) in (0, 40), "at most the master's own challenge"
        assert not got or got.startswith(b"rmq-ha/1")


def test_what_servers_write_is_their_users_alone(closed: Closed) -> None:
    closed.ok("pub", "Orders", "for its readers")
    folders = ("names", "master-a", "master-b")  # the message went to either master
    written = [path for name in folders for path in (closed.folder / name).rglob("*")]
    ours = [path for path in written if path.name not in ("secure.conf", "plain_acl.yml")]
    assert any("commitlog" in path.parts for path in ours)
    assert any(path.name == "topics.json" for path in ours)
    assert not [path for path in ours if path.stat().st_mode & 0o077]


def test_who_speaks_no_tls_or_nonsense_is_let_go(closed: Closed) -> None:
    """Each port outlives it: the fixture looks after them at the end."""
    junk = [
        encode(send("Low", b"x")),
        b"GET / HTTP/1.0\r\n\r\n",
        os.urandom(400),
        b"\xff" * 8,
        b"\x16\x03\x01\xff\xff",
    ]
    for server in closed.servers.values():
        host, _, port = server.addresses[0].rpartition(":")
        for data in junk:
            link = socket.create_connection((host, int(port)), timeout=10)
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            assert b"SEND_OK" not in read_all(link)
        for data in junk[1:]:
            within = dial(closed, server.addresses[0])
            within.sendall(data)
            within.close()
