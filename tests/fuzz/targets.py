"""Targets of mutated input: broker, name server, replication, store files, filters, accounts, sockets.

Each target takes its input through the functions that a server calls, and expects either an answer or one of
the project's own errors. Any other exception is a `Fault`.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import trio
from rmq_acl import AclPlugin, plainfile
from trio.testing import MockClock

from rmq.broker.filtering.sql92 import compile_sql
from rmq.broker.plugin_host import plugin_host
from rmq.broker.replication.sessions import FRAME, REPORT, Challenge, MasterSession, SlaveSession, encode_note
from rmq.errors import RemoteProtocolError, RmqError
from rmq.plugin import hooks_of
from rmq.protocol import bodies, trace
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.record import decode_records
from rmq.remoting import TlsConfig, serve
from rmq.remoting.endpoint import Endpoint
from rmq.store.audit.audit import check
from rmq.store.config import BrokerRole
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store
from rmq.testing import MemoryNetwork
from rmq.testing.disk import MemoryDisk
from tests.unit.broker.rig import Rig, Wire, batch, pull, send
from tests.unit.namesrv.host import Host, Peer

from .mutation import Mutator

GOLDEN: Final = Path(__file__).parents[1] / "golden"
ACCOUNTS: Final = b"""
globalWhiteRemoteAddresses: [10.5.5.5, "192.168.{1,2}.*"]
accounts:
  - {accessKey: manager, secretKey: admin-secret-1, admin: true}
  - accessKey: lowuser
    secretKey: lowuser-secret-1
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms: [Orders=PUB|SUB, WireTopic=PUB|SUB]
    groupPerms: [readers=SUB]
dataVersion: [{counter: 1, timestamp: 1700000000000}]
"""
LOW_USER: Final = Credentials("lowuser", "lowuser-secret-1")
MANAGER: Final = Credentials("manager", "admin-secret-1")
HOUR_MS: Final = 3_600_000
CHUNKS_A_TURN: Final = 200


class Fault(AssertionError):
    """An exception that nobody expected, or a service that answers no more."""


class Target(Protocol):
    """Something that takes mutated input; `feed` gives it so much, and raises Fault."""

    def feed(self, count: int, chance: Random) -> None: ...


class Surprises(logging.Handler):
    """Log records with a traceback: errors that `Broker.handle` turns into answers, and bugs all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))

    def check(self) -> None:
        if self.found:
            raise Fault(self.found[0])


@contextmanager
def watched() -> Iterator[Surprises]:
    """Look for tracebacks in the log of the project, and print nothing of it."""
    log, surprises = logging.getLogger("rmq"), Surprises()
    level, propagates = log.level, log.propagate
    log.addHandler(surprises)
    log.propagate = False
    log.setLevel(logging.ERROR)
    try:
        yield surprises
    finally:
        log.removeHandler(surprises)
        log.setLevel(level)
        log.propagate = propagates


class Requests:
    """Frames of all requests to a broker with real files, in chunks; `acl`: one that knows accounts.

    With accounts the sender is one of few rights: whatever it sends, an honest client's message goes through.
    """

    def __init__(self, folder: Path, surprises: Surprises, *, acl: bool) -> None:
        self.acl = acl
        self.surprises = surprises
        settings: dict[str, Any] = {}
        if acl:
            file = folder / "plain_acl.yml"
            file.write_bytes(ACCOUNTS)
            settings["acl_file"] = str(file)
        self.rig = Rig(
            disk=RealDisk(),  # type: ignore[arg-type]
            store={
                "store_path_root_dir": str(folder / "store"),
                "file_reserved_time": 1,
                "delete_when": HOURS,
            },
            config_store_path=str(folder / "broker.conf"),
            **settings,
        )
        if acl:
            plugin = AclPlugin({}, plugin_host(self.rig.broker))
            self.rig.broker.use_plugins(hooks_of([("acl", plugin)]))
        self.opaques = itertools.count(1)
        self.wire = Wire("10.0.0.3:40001")
        self.honest = Wire("10.0.0.4:40001")

    def feed(self, count: int, chance: Random) -> None:
        mutator, left = Mutator(chance, self.rig.broker.handlers.keys()), count
        while left > 0:
            size = min(left, chance.choice((1, 1, 4, 16)))
            left -= size
            self._chunk([self._frame(mutator, chance) for _ in range(size)])
            if next(self.opaques) % CHUNKS_A_TURN == 0:
                self._turn(chance)
        self._turn(chance)
        self.surprises.check()
        self._check_service()

    def _frame(self, mutator: Mutator, chance: Random) -> bytes:
        data = mutator.frame(next(self.opaques) & 0x7FFFFFFF)
        if self.acl and chance.random() < 0.5:
            try:
                (command,) = Decoder().feed(data)
                return encode(signed(command.with_ext(command.ext), LOW_USER))
            except (RmqError, ValueError):
                return data
        return data

    def _chunk(self, frames: list[bytes]) -> None:
        """Hand over what can be read; one that cannot would end the connection, and does so now and then."""
        broker, wire, commands = self.rig.broker, self.wire, list[Command]()
        unread = 0
        for data in frames:
            try:
                commands += Decoder().feed(data)
            except RemoteProtocolError:
                unread += 1
        requests = [command for command in commands if not command.is_response]
        for command in commands:
            if command.is_response:
                broker.on_response(command, wire)  # type: ignore[arg-type]
        broker.handle(requests, wire)  # type: ignore[arg-type]
        wire.received.clear()
        if wire.is_closed or unread > 3:
            broker.on_close(wire)  # type: ignore[arg-type]
            self.wire = Wire("10.0.0.3:40001")
        self.rig.now_ms += 50
        self.rig.seconds += 0.05

    def _turn(self, chance: Random) -> None:
        """Do the work of a broker's loops once."""
        rig = self.rig
        broker = rig.broker
        broker.steps.deadlines(rig.seconds)
        broker.steps.schedule()
        broker.steps.transactions()
        broker.steps.expire()
        for name, data in broker.saves().items():
            rig.store.save_config(name, data)
        while rig.store.dispatch():
            pass
        rig.store.flush()
        broker.on_synced(rig.store.max_physical_offset)
        if chance.random() < 0.05:
            rig.store.clean(rig.now_ms, asked=True)

    def _check_service(self) -> None:
        """An honest client is served, unless an administrator may have changed that."""
        if not self.acl:
            if not self.rig.ask(Command.request(28), wire=self.honest):
                raise Fault("the broker does not answer")
            return
        request = signed(send("Honest", b"honest", queue_id=-1), MANAGER)
        (answer,) = self.rig.ask(request, wire=self.honest)
        if answer.code != 0:
            raise Fault(f"an honest send is refused: {answer.code} {answer.remark}")
        place = int(answer.ext["queueOffset"])
        asked = signed(pull("Honest", place, queue_id=int(answer.ext["queueId"])), MANAGER)
        (found,) = self.rig.ask(asked, wire=self.honest)
        if found.code != 0 or decode_records(found.body)[0].body != b"honest":
            raise Fault(f"an honest pull gets {found.code} {found.remark}")


HOURS: Final = ";".join(f"{hour:02}" for hour in range(24))


class Lookups:
    """Frames of all requests to a name server."""

    def __init__(self, surprises: Surprises) -> None:
        self.surprises = surprises
        self.host = Host()
        self.opaques = itertools.count(1)

    def feed(self, count: int, chance: Random) -> None:
        mutator, host = Mutator(chance, self.host.server._handlers.keys()), self.host
        for _ in range(count):
            peer = Peer()
            try:
                commands = Decoder().feed(mutator.frame(next(self.opaques) & 0x7FFFFFFF))
            except RemoteProtocolError:
                continue
            host.server.handle([one for one in commands if not one.is_response], peer)  # type: ignore[arg-type]
            host.now_ms += 100
            if host.now_ms % 10_000 == 0:
                host.server.step(host.now_ms)
            host.saved.clear()
            host.changes.clear()
            host.lookups.clear()
        self.surprises.check()


# ---- stores ----


@cache
def small_store() -> MemoryDisk:
    """A store that was killed: some queues, an index, tables."""
    rig = Rig(store=SMALL)
    rig.ask(*(send(body=b"%d" % number * 20) for number in range(20)), batch(), send("Bills", b"bill"))
    rig.ask(send(properties="DELAY\x013"), send(properties="TIMER_DELAY_SEC\x019\x02UNIQ_KEY\x01T"))
    rig.ask(send(properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01H"), pull(offset=99))
    while rig.store.dispatch():
        pass
    rig.store.flush()
    rig.store.flush_queues()
    rig.store.flush_checkpoint()
    for name, data in rig.broker.saves().items():
        rig.store.save_config(name, data)
    disk = rig.disk.copy()
    disk._locks.clear()
    return disk


SMALL: Final = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 8,
    "max_index_num": 20,
}


class StoreFiles:
    """A store of which one file is changed: it opens or says why not, and so does its audit."""

    def feed(self, count: int, chance: Random) -> None:
        mutator = Mutator(chance)
        for _ in range(count):
            disk = small_store().copy()
            path = chance.choice(sorted(disk._files))
            data = disk.load(path) or b""
            changed = mutator.flipped(data)
            if chance.random() < 0.8 and not path.endswith((".json", ".bak")):
                changed = changed[: len(data)].ljust(len(data), b"\0")  # as a medium does it
            disk.replace(path, changed)
            with suppress(RmqError):
                check(disk, "/store")
            try:
                rig = Rig(disk=disk, store=SMALL)
                rig.ask(send(), pull(), pull("Bills"))
                rig.now_ms += 60_000
                rig.broker.steps.schedule()
                rig.broker.steps.transactions()
            except RmqError:
                continue
            rig.store.close()


class Replication:
    """Both ends of the master-slave stream: what the other sends is changed."""

    def feed(self, count: int, chance: Random) -> None:
        mutator, left = Mutator(chance), count
        while left > 0:
            left -= self._slave(min(left, 60), mutator) + self._master(min(left, 20), mutator)

    def _slave(self, most: int, mutator: Mutator) -> int:
        """Frames of a master; then the slave is killed, and must open."""
        chance, disk = mutator.chance, MemoryDisk(3)
        rig = Rig(disk=disk, store={**SMALL, "broker_role": BrokerRole.SLAVE}, broker_id=1)
        session = SlaveSession(
            rig.broker.copied_log.append,
            lambda: rig.store.max_physical_offset,
            0.0,
            noted=rig.broker.replica.take_note,
        )
        note = encode_note({"safe": 100, "progress": rig.broker.delivery.now()})
        source, fed = log_bytes(), 0
        try:
            for fed in range(1, most + 1):
                at = rig.store.max_physical_offset
                piece = source[at : at + chance.choice((8, 100, 1000))]
                data = note if chance.random() < 0.1 else FRAME.pack(at, len(piece)) + piece
                session.received(mutator.flipped(data) if chance.random() < 0.1 else data)
                session.report(fed)
        except RmqError:
            pass
        killed = disk.copy()
        killed._locks.clear()
        try:
            Rig(disk=killed, store={**SMALL, "broker_role": BrokerRole.SLAVE}, broker_id=1).store.abandon()
        except RmqError as error:
            raise Fault(f"a slave does not open after what its master sent: {error}") from error
        return fed

    def _master(self, most: int, mutator: Mutator) -> int:
        chance = mutator.chance
        rig = Rig(disk=small_store().copy(), store=SMALL)
        session, fed = MasterSession(rig.store, 0.0, greet=rig.broker.replica.greeting), 0
        try:
            for fed in range(1, most + 1):
                end = rig.store.max_physical_offset
                data = REPORT.pack(chance.choice((0, 100, -1, -2, -1000, session.position, end)))
                session.received(mutator.flipped(data) if chance.random() < 0.2 else data)
                session.frame(fed)
        except RmqError:
            pass
        challenge = Challenge(b"secret", bytes(32), master=True)
        try:
            challenge.greeted(mutator.flipped(challenge.greeting))
            challenge.check(chance.randbytes(chance.randrange(40)))
        except RmqError:
            pass
        rig.store.abandon()
        return max(fed, 1)


@cache
def log_bytes() -> bytes:
    rig = Rig(disk=small_store().copy(), store=SMALL)
    store: Store = rig.store
    found = b""
    while len(found) < store.max_physical_offset:
        found += bytes(store.read_raw(len(found), 1 << 20))
    return found


# ---- texts ----


@cache
def expressions() -> tuple[str, ...]:
    rows = json.loads((GOLDEN / "sql92.json").read_text("utf-8"))
    found = {text for name in ("expression", "sql", "expr") for text in _strings(rows, name)}
    assert found
    return tuple(sorted(found))


def _strings(tree: Any, name: str) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == name and isinstance(value, str):
                yield value
            yield from _strings(value, name)
    elif isinstance(tree, list):
        for value in tree:
            yield from _strings(value, name)


_WORDS: Final = (
    *("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "LIKE", "CONTAINS", "TRUE", "FALSE", "(", ")", ","),
    *("=", "<>", "<=", ">=", "<", ">", "-", "+", "'", "''", '"', "--", "/*", "*/", "a", "$", "1", "1.5e308"),
    *("0x7fffffffffffffff", "9" * 400, "1e", ".", "\0", "\n", "é", "'x'", " " * 50, "((((", "a.b"),
)


class Filters:
    """SQL92 expressions, of words and of bytes, and their evaluation."""

    def feed(self, count: int, chance: Random) -> None:
        mutator = Mutator(chance)
        values = ("", "1", "-1", "1.5", "NaN", "x", "9" * 30, "true", "0x10", "\u0667", "1e400")
        for _ in range(count):
            text = chance.choice(expressions())
            if chance.random() < 0.6:
                words = text.split(" ")
                for _ in range(chance.choice((1, 1, 2, 8))):
                    words.insert(chance.randrange(len(words) + 1), chance.choice(_WORDS))
                text = " ".join(words) * chance.choice((1, 1, 1, 1, 40))
            else:
                text = mutator.flipped(text.encode()).decode("utf-8", "replace")
            try:
                found = compile_sql(text)
            except RmqError:
                continue
            found.matches({name: chance.choice(values) for name in ("a", "b", "c", "region", "price")})


class AccountFiles:
    """The file of accounts."""

    def feed(self, count: int, chance: Random) -> None:
        mutator = Mutator(chance)
        lines = ACCOUNTS.splitlines()
        for _ in range(count):
            if chance.random() < 0.5:
                data = mutator.flipped(ACCOUNTS)
            else:
                some = list(lines)
                at = chance.randrange(len(some))
                some[at] = chance.choice(
                    (
                        b"",
                        some[at] * 2,
                        b"  " + some[at],
                        b"- " + some[at],
                        b"&a [*a, *a]",
                        b"<<: *a",
                        b"? [",
                        b"!!x y",
                    )
                )
                data = b"\n".join(some)
            with suppress(RmqError):
                plainfile.merge([plainfile.read("accounts.yml", data)])


class Answers:
    """The input of a client: records, JSON bodies, traces."""

    def __init__(self) -> None:
        self.readers = [
            value.from_json
            for value in vars(bodies).values()
            if isinstance(value, type) and value.__module__ == bodies.__name__ and hasattr(value, "from_json")
        ]

    def feed(self, count: int, chance: Random) -> None:
        mutator = Mutator(chance)
        log = log_bytes()
        from .mutation import requests

        trees = [request.tree for request in requests() if request.tree is not None]
        for _ in range(count):
            way = chance.randrange(3)
            try:
                if way == 0:
                    at = chance.randrange(len(log))
                    decode_records(mutator.flipped(log[at : at + 600] if at % 2 else log[:600]))
                elif way == 1:
                    text = json.dumps(mutator.changed(chance.choice(trees))).encode("utf-8", "surrogatepass")
                    chance.choice(self.readers)(text if chance.random() < 0.7 else mutator.flipped(text))
                else:
                    trace.decode(
                        mutator.flipped(b"Pub\x011\x01r\x01g\x01t\x01id\x02Sub").decode("utf-8", "replace")
                    )
            except RmqError:
                pass


# ---- sockets ----


Conversation = Callable[[MemoryNetwork, str, int], Awaitable[None]]
"""Talks to the server at an address, as a seed says."""


class Sockets:
    """Handshakes and frames of TCP, WebSocket and TLS at a server over a network in memory."""

    def __init__(self, tls: TlsConfig, conversation: Conversation) -> None:
        self.tls = tls
        self.conversation = conversation

    def feed(self, count: int, chance: Random) -> None:
        trio.run(self._talk, count, chance, clock=MockClock(autojump_threshold=0))

    async def _talk(self, count: int, chance: Random) -> None:
        network = MemoryNetwork(seed=1, chop=True)
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(_serving(network, self.tls))
            for _ in range(count // 4 + 1):
                await self.conversation(network, address, chance.randrange(1 << 30))
            nursery.cancel_scope.cancel()


class _Echo(Endpoint):
    def handle(self, requests: list[Command], connection: Any) -> None:
        for request in requests:
            connection.reply(request.reply(body=request.body))

    def on_close(self, connection: Any) -> None: ...


def _serving(network: MemoryNetwork, tls: TlsConfig) -> Any:
    async def run(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        await serve(network, ["10.0.0.1:10911"], _Echo(), tls=tls, task_status=task_status)

    return run
