"""Captured sessions of RocketMQ's own clients and tools with a broker: what was asked and answered."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field

from rmq.protocol.command import Command

SESSIONS = Path(__file__).parents[2] / "golden" / "wire_sessions"


@define
class Exchange:
    """A captured request with its captured answer, and the one-way requests that came before it."""

    request: dict[str, Any]
    response: dict[str, Any] | None
    notices: list[dict[str, Any]] = field(factory=list)

    @property
    def code(self) -> int:
        return int(self.request["code"])

    def command(self) -> Command:
        """The request as our decoder gives it."""
        line = self.request
        return Command(
            line["code"],
            line["opaque"],
            line["flag"],
            line.get("ext") or {},
            body_of(line),
            language=line["language"],
            version=line["version"],
        )


def body_of(line: dict[str, Any]) -> bytes:
    return base64.b64decode(line.get("body_b64") or "")


def session(name: str) -> Iterator[Exchange]:
    """The requests to the broker in a captured session, in order, with their answers."""
    lines = [json.loads(text) for text in (SESSIONS / f"{name}.jsonl").read_text().splitlines()]
    brokers = ("broker", "master", "master_vip")
    frames = [line for line in lines if line.get("target") in brokers and "code" in line]
    for at, line in enumerate(frames):
        if line["dir"] != "c2s" or line["kind"] == "response":
            continue
        yield _exchange(line, [later for later in frames[at + 1 :] if later["conn"] == line["conn"]])


def _exchange(line: dict[str, Any], later: list[dict[str, Any]]) -> Exchange:
    notices = []
    for frame in later:
        if frame["dir"] == "s2c" and frame["kind"] == "oneway":
            notices.append(frame)
        if frame["kind"] == "response" and frame["opaque"] == line["opaque"] and frame["dir"] == "s2c":
            return Exchange(line, frame, notices)
    return Exchange(line, None)
