"""Sends that are signed, to a broker that asks who sends: with runs and without it must come to the same.

One side takes chunks by the compiled engine and lets runs pass as runs, the other is given every request by
itself and has the pure one.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from rmq_acl import AclPlugin
from rmq_acl.authentication import Authentication

from rmq.broker.plugin_host import plugin_host
from rmq.plugin import hooks_of
from rmq.protocol.auth.signature import (
    NONCE,
    PROOF,
    SIGNATURE,
    Credentials,
    Prover,
    _covered,
    order_of,
    signed,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder
from rmq.server.plugin_host import PluginHost
from tests.compiled import COMPILED, HAS_COMPILED
from tests.stateful.engines import SHORT, START, Side, _text, binary_frame, json_frame

pytestmark = HAS_COMPILED

SEEDS = int(os.environ.get("RMQ_ENGINE_SEEDS", "8"))
WRITER = Credentials("writer1", "writer-secret-1")
TOKEN = Credentials("writer1", "writer-secret-1", "a token")
READER = Credentials("reader1", "reader-secret-1")
MUST = Credentials("prover1", "prover-secret-1")
SHOWS = Credentials("shower1", "shower-secret-1")
STRANGER = Credentials("nobody1", "nobody-secret-1")
GUESSER = Credentials("writer1", "guess-secret-1")
ACCOUNTS = """
globalWhiteRemoteAddresses: ["fd00::*"]
accounts:
  - {accessKey: writer1, secretKey: writer-secret-1, topicPerms: [Orders=PUB, New1=PUB]}
  - {accessKey: reader1, secretKey: reader-secret-1, topicPerms: [Orders=SUB, New1=PUB]}
  - {accessKey: prover1, secretKey: prover-secret-1, defaultTopicPerm: PUB, proof: required}
  - {accessKey: shower1, secretKey: shower-secret-1, defaultTopicPerm: PUB, proof: shown}
"""


def fields_of(chance: Random) -> dict[str, str]:
    """The fields of a plain send."""
    pairs = [("UNIQ_KEY", f"AC11{chance.getrandbits(40):010X}"), ("WAIT", "true")]
    pairs += [("TAGS", chance.choice(["T", "TagA"]))] * (chance.random() < 0.5)
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + chance.choice(["", "\x02"])
    values: list[Any] = ["producers", chance.choice(["Orders", "Orders", "New1"]), "TBW102", 4]
    values += [chance.randrange(4), chance.choice([0, 1, 2]), START - chance.randrange(9)]
    values += [chance.randrange(3), text, 0, False]
    return dict(zip(SHORT, map(_text, values), strict=False))


def frame_of(chance: Random, opaque: int, ext: dict[str, str], body: bytes) -> bytes:
    if chance.random() < 0.4:
        return binary_frame(310, opaque, 0, ext, body)
    return json_frame(310, opaque, 0, ext, body, "java")


class Guarded(Side):
    """A side with accounts."""

    def __init__(self, file: pathlib.Path, *, in_turns: bool, **given: Any) -> None:
        sizes = {"mapped_file_size_commit_log": 30_000, "mapped_file_size_consume_queue": 200}
        super().__init__(
            in_turns=in_turns, seed=1, sizes=sizes, waits="", plugins=False, compiled=COMPILED, **given
        )
        self.plugin = AclPlugin({}, _Host(plugin_host(self.broker), str(file)))  # type: ignore[arg-type]
        self.plugin._senders = Authentication(
            lambda: self.now_ms, lambda: self.now_ms / 1000, admins_must=False
        )
        self.broker.use_plugins(hooks_of([("acl", self.plugin)]))
        for topic in ("Orders", "New1"):
            self.broker.topics.create_retry(topic, 4, 6)


class _Config:
    def __init__(self, config: Any, file: str) -> None:
        self._config, self.acl_file, self.acl_audit_file = config, file, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class _Host:
    def __init__(self, host: PluginHost, file: str) -> None:
        self._host, self.config = host, _Config(host.config, file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


class Clients:
    """Make frames: good ones, and ones in which one thing is wrong. Seldom enough that there are runs."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.opaque = 0
        self.earlier: list[bytes] = []
        self.now_ms = START
        self.provers = {who.access_key: self.prover(who) for who in (WRITER, READER, MUST, SHOWS)}

    def prover(self, who: Credentials) -> Prover:
        return Prover(who, lambda: self.now_ms, session=self.chance.randbytes(8))

    def command(self, who: Credentials, *, proves: bool) -> Command:
        self.opaque += 1
        body = self.chance.randbytes(self.chance.choice([0, 1, 30, 64, 300]))
        command = Command(
            RequestCode.SEND_MESSAGE_V2, opaque=self.opaque, ext=fields_of(self.chance), body=body
        )
        if proves and who.access_key in self.provers:
            return self.provers[who.access_key](command)
        return signed(command, who)

    def frames(self, who: Credentials, count: int, *, proves: bool, wrong: bool) -> list[bytes]:
        chance, found = self.chance, []
        for at in range(count):
            is_wrong = wrong and at == count // 2
            command = self.command(who, proves=proves)
            ext, body = dict(command.ext), command.body
            if is_wrong:
                match chance.randrange(10):
                    case 0:
                        body += b"x"
                    case 1:
                        name = chance.choice(list(ext))
                        ext[name] = ext[name][:-1] + ("0" if ext[name][-1:] != "0" else "1")
                    case 2:
                        del ext[chance.choice(list(ext))]
                    case 3:
                        ext[PROOF if PROOF in ext else SIGNATURE] = chance.choice(["", "AAAA", "é"])
                    case 4:  # fields of one value change places: Java's signature is the same for both
                        ext["a"], ext["b"] = ext["a"] + ext["b"][:1], ext["b"][1:]
                    case 5 if self.earlier:
                        found.append(chance.choice(self.earlier))  # sent before
                        continue
                    case 6:
                        command = self.command(STRANGER if at % 2 else GUESSER, proves=False)
                        ext, body = dict(command.ext), command.body
                    case 7:
                        ext = {name: value for name, value in ext.items() if len(name) == 1}
                    case 8 if PROOF in ext:  # Java's signature covers the same, and nobody would see a proof
                        ext[NONCE] += ext.pop(PROOF)
                    case _:
                        ext["z"] = "more"
            frame = frame_of(chance, command.opaque, ext, body)
            self.earlier.append(frame)
            found.append(frame)
        return found


def test_what_is_signed_is_what_the_signature_covers(tmp_path: pathlib.Path) -> None:
    (tmp_path / "acl.yml").write_text(ACCOUNTS)
    (tmp_path / "acl.yml").chmod(0o600)
    side = Guarded(tmp_path / "acl.yml", in_turns=False)
    clients, lanes = Clients(Random(5)), side.broker.lanes  # type: ignore[attr-defined]
    for _ in range(3):
        side.receive(0, b"".join(clients.frames(WRITER, 20, proves=False, wrong=False)))
    runs = 0
    for number in range(60):
        who = [WRITER, TOKEN, MUST][number % 3]
        data = b"".join(clients.frames(who, 12, proves=number % 2 == 0, wrong=False))
        (run,), _, count = lanes.split(data, 1 << 20, 1 << 16, 1000)
        runs += 1
        assert (run.count, count, run.account) == (12, 12, who.access_key)
        assert set(run.topics()) <= {"Orders", "New1"}
        commands = Decoder().feed(data)
        for command, (content, given, nonce, time) in zip(commands, run.signed(), strict=True):
            ext, order = command.ext, order_of(command.ext)
            if PROOF in ext:
                assert content == _covered(order, ext, command) + command.body
                assert (given.decode(), nonce, time) == (ext[PROOF], ext["RmqNonce"], ext["RmqTime"])
            else:
                assert content == order.content(ext, command.body)
                assert (given.decode(), nonce, time) == (ext[SIGNATURE], "", "")
    assert runs == 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_with_accounts_runs_come_to_the_same(seed: int, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    sides = [Guarded(file, in_turns=in_turns) for in_turns in (False, True)]
    chance = Random(seed)
    clients = Clients(chance)
    taken, before = count_taken(sides[0]), list[bytes]()
    for _ in range(60):
        who = chance.choice([WRITER, WRITER, WRITER, TOKEN, READER, MUST, SHOWS])
        proves, at = chance.random() < 0.5, int(chance.random() < 0.2)
        frames: list[bytes] = []
        for _ in range(chance.choice([1, 1, 2, 3])):
            count = chance.choice([1, 2, 9, 20])
            frames += clients.frames(who, count, proves=proves, wrong=chance.random() < 0.3)
            if chance.random() < 0.2:
                who, proves = chance.choice([WRITER, MUST, SHOWS]), not proves
        match chance.randrange(20):
            case 0 | 1:
                frames.reverse()
            case 2 | 3:
                frames = before  # all of it was sent before
            case 4:
                move(sides, clients, 400_000)  # it took too long on its way
        before = frames
        if chance.random() < 0.5:
            data = b"".join(frames)
            for side in sides:
                assert not side.receive(at, data)
        else:
            pieces = [b"".join(frames[number::4]) for number in range(4)]
            for side in sides:
                assert not any(side.receive_round([*enumerate(pieces)]))
        mine, yours = ([sorted(peer.take()) for peer in side.peers] for side in sides)
        assert mine == yours
        move(sides, clients, chance.choice([0, 5, 100, 200_000]))
        mine, yours = ([{**peer.state, "host": None} for peer in side.peers] for side in sides)
        assert mine == yours
    tables = [side.plugin._senders.proofs._sessions for side in sides]
    assert {name: one.table for name, one in tables[0].items()} == {
        name: one.table for name, one in tables[1].items()
    }
    assert sides[0].store.max_physical_offset == sides[1].store.max_physical_offset > 20_000
    for side in sides:
        side.store.close()
    assert sides[0].files() == sides[1].files()
    assert sum(taken) > 20, taken


def test_a_wrong_signature_sends_nobody_else_of_its_round_the_long_way(tmp_path: pathlib.Path) -> None:
    (tmp_path / "acl.yml").write_text(ACCOUNTS)
    (tmp_path / "acl.yml").chmod(0o600)
    side = Guarded(tmp_path / "acl.yml", in_turns=False)
    clients = Clients(Random(7))
    for at in range(4):  # who a connection is, its first request says
        side.receive(at, b"".join(clients.frames(WRITER, 20, proves=False, wrong=False)))
    taken, end = count_taken(side), side.store.max_physical_offset
    for peer in side.peers:
        peer.take()
    frames = clients.frames(WRITER, 4, proves=False, wrong=False)
    (frames[2],) = clients.frames(GUESSER, 1, proves=False, wrong=False)
    side.receive_round(list(enumerate(frames)))
    assert taken == [1, 1, 1]
    assert [len(peer.take()) for peer in side.peers] == [1, 1, 1, 1]
    assert side.store.max_physical_offset > end


def move(sides: list[Guarded], clients: Clients, milliseconds: int) -> None:
    clients.now_ms += milliseconds
    for side in sides:
        side.now_ms = clients.now_ms


def count_taken(side: Guarded) -> list[int]:
    """The number of sends in each run that was taken as a unit."""
    taken: list[int] = []
    broker: Any = side.broker
    take: Callable[..., bool] = broker._put

    def counting(run: Any, connection: Any) -> bool:
        done = take(run, connection)
        if done:
            taken.append(run.count)
        return done

    broker._put = counting
    return taken


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_signed_sends_come_to_the_same(seed: int, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    sides = [Guarded(file, in_turns=in_turns) for in_turns in (False, True)]
    chance = Random(seed)
    clients = Clients(chance)
    for _ in range(120):
        who, proves = chance.choice([WRITER, TOKEN, MUST]), chance.random() < 0.5
        frames = clients.frames(who, chance.choice([1, 3, 12]), proves=proves, wrong=False)
        at = chance.randrange(len(frames))
        damaged = bytearray(frames[at])
        for _ in range(chance.choice([1, 1, 2])):
            place = chance.randrange(8, len(damaged))
            damaged[place] = chance.choice([damaged[place] ^ 1 << chance.randrange(8), 0, 34, 92, 123, 255])
        frames[at] = bytes(damaged)
        data = b"".join(frames)
        ends = [side.receive(0, data) for side in sides]
        assert ends[0] == ends[1]
        mine, yours = (sorted(side.peers[0].take()) for side in sides)
        assert mine == yours
        move(sides, clients, 10_000)
    assert sides[0].store.max_physical_offset == sides[1].store.max_physical_offset > 10_000
