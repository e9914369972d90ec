"""Valid requests, and what they become: one field odd, a body changed inside its structure, bytes flipped.

The valid ones are made from the typed headers of all request codes, and taken from captured sessions of
RocketMQ's own clients, brokers and mqadmin.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final, get_type_hints

import attrs
from attrs import frozen

from rmq.protocol import fields
from rmq.protocol.codes import RECALL_MESSAGE
from rmq.protocol.fields import Int32, Int64
from rmq.protocol.headers import REQUEST_HEADERS, RecallMessageRequestHeader
from tests.unit.broker.odd_values import MISSING, frame, odd_property_values, odd_values
from tests.unit.broker.rig import START

SESSIONS: Final = Path(__file__).parents[1] / "golden" / "wire_sessions"
SEND_V2: Final = (310, 320, 325)
DEAR: Final = frozenset((17, 25, 26, 202, 317))
"""Requests of administrators that cost milliseconds, however they are changed: they come less often."""
PLAUSIBLE: Final[dict[str, Any]] = {
    "topic": "Orders",
    "default_topic": "TBW102",
    "group": "readers",
    "group_name": "readers",
    "consumer_group": "readers",
    "src_group": "readers",
    "dest_group": "others",
    "compare_group": "readers",
    "producer_group": "producers",
    "client_id": "asker@1",
    "origin_topic": "Orders",
    "broker_name": "wire-a",
    "cluster_name": "WireCluster",
    "cluster": "WireCluster",
    "born_timestamp": START - 5,
    "default_topic_queue_nums": 4,
    "read_queue_nums": 4,
    "write_queue_nums": 4,
    "perm": 6,
    "topic_filter_type": "SINGLE_TAG",
    "max_msg_nums": 32,
    "sys_flag": 0,
    "suspend_timeout_millis": 100,
    "subscription": "*",
    "expression_type": "TAG",
    "properties": "UNIQ_KEY\x01AC11\x02WAIT\x01true\x02TAGS\x01TagA",
    "commit_or_rollback": 8,
    "count": 8,
    "max_num": 8,
    "end_timestamp": 1 << 62,
    "key": "AC11",
    "stats_name": "TOPIC_PUT_NUMS",
    "stats_key": "Orders",
    "timestamp": START,
}


@frozen
class Request:
    """A valid request: its header as texts, the types of the fields that have one, its body."""

    code: int
    ext: Mapping[str, Any]
    kinds: Mapping[str, Any]
    body: bytes = b""
    flag: int = 0
    tree: Any = None  # the body, if it is JSON


def _of_headers() -> Iterator[Request]:
    for code, header in {**REQUEST_HEADERS, RECALL_MESSAGE: RecallMessageRequestHeader}.items():
        ext, kinds = {}, {}
        if header is not None:
            hints = get_type_hints(header, include_extras=True)
            for attribute in attrs.fields(header):
                name = attribute.name
                wire = fields.short_name(attribute) if code in SEND_V2 else fields.java_name(attribute)
                kinds[wire] = hints[name]
                ext[wire] = _plausible(name, hints[name])
        yield Request(code, ext, kinds)


def _plausible(name: str, hint: Any) -> str:
    if name in PLAUSIBLE:
        return str(PLAUSIBLE[name])
    if hint in (Int32, Int64, Int32 | None, Int64 | None):
        return "0"
    return "false" if hint in (bool, bool | None) else "x"


def _of_sessions() -> Iterator[Request]:
    seen = set()
    for path in sorted(SESSIONS.glob("*.jsonl")):
        for text in path.read_text("utf-8").splitlines():
            line = json.loads(text)
            if line.get("dir") != "c2s" or "code" not in line or line["kind"] == "response":
                continue
            ext, body = line.get("ext") or {}, base64.b64decode(line.get("body_b64") or "")
            known = (line["code"], tuple(sorted(ext)), len(body) // 64)
            if known not in seen:
                seen.add(known)
                yield Request(line["code"], ext, {}, body, line["flag"], tree_of(body))


def tree_of(body: bytes) -> Any:
    """The body as JSON, or None."""
    try:
        return json.loads(body)
    except ValueError:
        return None


@cache
def requests() -> tuple[Request, ...]:
    """The valid requests: of each code at least one, with the bodies that clients send with it."""
    captured = list(_of_sessions())
    bodies = {request.code: request for request in captured if request.body}
    made = []
    for request in _of_headers():
        other = bodies.get(request.code)
        made.append(attrs.evolve(request, body=other.body, tree=other.tree) if other is not None else request)
    return (*made, *captured)


@cache
def _odd(kind: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Short and long odd values for a field of that type."""
    values = list(odd_values(kind, "", binary=False))
    short = tuple(value for value in values if not isinstance(value, str) or len(value) < 300)
    return short, tuple(value for value in values if isinstance(value, str) and len(value) >= 300) or short


@cache
def _property_texts() -> tuple[str, ...]:
    from rmq import message

    names = [value for name, value in vars(message).items() if name.startswith("PROPERTY_")]
    names += ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY"]
    values = [value for value in odd_property_values("Orders", "AC11") if len(value) < 300]
    return tuple(f"{name}\x01{value}" for name in names for value in values)


class Mutator:
    """Makes frames from a seeded source of chance; nine of ten are of `codes`, if some are given."""

    def __init__(self, chance: Random, codes: Set[int] = frozenset()) -> None:
        self.chance = chance
        self._likely = tuple(one for one in requests() if one.code in codes) or requests()

    def request(self) -> Request:
        """A valid request."""
        chance = self.chance
        found = chance.choice(self._likely if chance.random() < 0.9 else requests())
        return self.request() if found.code in DEAR and chance.random() < 0.9 else found

    def frame(self, opaque: int) -> bytes:
        """One request's frame, in one of many ways not quite as it should be."""
        chance = self.chance
        request = self.request()
        ext, body, way = dict(request.ext), request.body, chance.random()
        if way < 0.45:
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                self._odd_field(request, ext)
        elif way < 0.65:
            body = self._odd_body(request)
        elif way < 0.75:
            other = self.request()
            ext = ext | dict(other.ext) if chance.random() < 0.5 else ext
            body = other.body
        binary = chance.random() < 0.4 and all(isinstance(value, str) for value in ext.values())
        flag = request.flag if chance.random() < 0.9 else chance.choice((0, 1, 2, 3, -1, 1 << 20))
        data = frame(request.code, ext, body, opaque, binary, flag)
        if way >= 0.85:
            data = self.flipped(data)
            if chance.random() < 0.8:  # else the length is wrong as well
                data = max(len(data) - 4, 0).to_bytes(4, "big") + data[4:]
        return data

    def _odd_field(self, request: Request, ext: dict[str, Any]) -> None:
        chance = self.chance
        if not ext:
            ext["x"] = "y"
            return
        name = chance.choice(list(ext))
        if name in ("i", "properties") and chance.random() < 0.7:
            ext[name] = "\x02".join(chance.choices(_property_texts(), k=chance.randrange(1, 4)))
            return
        short, long = _odd(request.kinds.get(name, str))
        value = chance.choice(long if chance.random() < 0.02 else short)
        if value is MISSING:
            del ext[name]
        else:
            ext[name] = value

    def _odd_body(self, request: Request) -> bytes:
        if request.tree is not None and self.chance.random() < 0.7:
            return json.dumps(self.changed(request.tree)).encode("utf-8", "surrogatepass")
        return self.flipped(request.body)

    def changed(self, tree: Any, depth: int = 0) -> Any:
        """A JSON value with one place changed."""
        chance = self.chance
        if isinstance(tree, dict) and tree and chance.random() < 0.85:
            name = chance.choice(list(tree))
            rest = {key: value for key, value in tree.items() if key != name}
            way = chance.random()
            if way < 0.08:
                return rest
            if way < 0.16:
                return {**rest, chance.choice(("", "\0", "x" * 200, "7", name * 2)): tree[name]}
            return {**tree, name: self.changed(tree[name], depth + 1)}
        if isinstance(tree, list) and tree and chance.random() < 0.85:
            at = chance.randrange(len(tree))
            if chance.random() < 0.2:
                return tree[:at] + tree[at:] * 2
            return [*tree[:at], self.changed(tree[at], depth + 1), *tree[at + 1 :]]
        value = chance.choice(_odd(chance.choice((str, Int64, bool)))[0])
        if value is MISSING:
            return json.loads("[" * 40 + "]" * 40)
        return value

    def flipped(self, data: bytes) -> bytes:
        """Some bytes changed, put in, taken out or doubled."""
        chance, changed = self.chance, bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 4, 16))):
            at, way = chance.randrange(len(changed) + 1), chance.randrange(5)
            if way == 0 and at < len(changed):
                changed[at] = chance.randrange(256)
            elif way == 1:
                changed[at:at] = chance.randbytes(chance.randrange(9))
            elif way == 2:
                del changed[at : at + chance.randrange(9)]
            elif way == 3:
                changed[at : at + 4] = chance.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)).to_bytes(
                    4, "big"
                )
            else:
                changed[at:at] = changed[at : at + chance.randrange(64)]
        return bytes(changed)
