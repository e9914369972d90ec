"""The audit log: actions of administrators and refusals, a line each, without secrets.

    admin  who=manager from=10.0.0.4:51234 action=DELETE_TOPIC_IN_BROKER(215) on=topic:Orders result=allowed

Lines go to the logger `rmq.audit`, and to a file of their own when `aclAuditFile` names a file. Refusals cost
an attacker nothing, so lines past a rate are counted instead of written; actions of administrators have a
rate of their own, which no stranger can use up.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define

from rmq.config import parse_properties
from rmq.errors import ConfigError
from rmq.protocol import codes
from rmq.protocol.auth.signature import ACCESS_KEY
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.server.log_limit import LogFormat

LINES_MAX: Final = 50
"""Refusals a second."""
ADMIN_LINES_MAX: Final = 1000
"""Lines a second about administrators' actions."""
FILE_BYTES: Final = 10 * 1024 * 1024
FILES: Final = 10

_SUBJECTS: Final = (
    "topic",
    "group",
    "consumerGroup",
    "groupName",
    "srcGroup",
    "destGroup",
    "accessKey",
    "globalWhiteAddrs",
    "brokerName",
    "namespace",
    "key",
    "clientId",
)
"""Header fields that name the object of a request; none ever holds a secret."""
_CONFIG_CODES: Final = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})

log = logging.getLogger("rmq.audit")


class Audit:
    """Writes lines; `clock` returns seconds."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file = _open(path) if path else None
        self._budgets = {"admin": _Budget(ADMIN_LINES_MAX), "refused": _Budget(LINES_MAX)}

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            self._file.close()

    def admin(self, peer: str, command: Command, result: str = "allowed") -> None:
        """Log an administrator's request that was admitted, or has failed."""
        self._line("admin", peer, command, result)

    def refused(self, peer: str, command: Command, reason: str) -> None:
        """Log a refused request."""
        self._line("refused", peer, command, reason)

    def login_refused(self, peer: str, user: str, reason: str) -> None:
        """Log a refused login of a door's peer."""
        if self._takes("refused"):
            self._write_words(
                "refused", {"who": user, "from": peer, "action": "LOGIN", "on": "-", "result": reason}
            )

    def _takes(self, kind: str) -> bool:
        budget = self._budgets[kind]
        missed = budget.renewed(int(self._clock()))
        if missed:
            self._write(kind, f"{missed} more lines were left out")
        return budget.take()

    def _line(self, kind: str, peer: str, command: Command, result: str) -> None:
        if not self._takes(kind):
            return
        ext = _ext(command)
        who = ext.get(ACCESS_KEY, "-")
        words = {
            "who": who,
            "from": peer,
            "action": action(command.code),
            "on": " ".join(_subjects(command, ext)) or "-",
            "result": result,
        }
        self._write_words(kind, words)

    def _write_words(self, kind: str, words: Mapping[str, str]) -> None:
        self._write(kind, " ".join(f"{name}={clean(text)}" for name, text in words.items()))

    def _write(self, kind: str, line: str) -> None:
        form = f"{kind} %s"  # the log's own bound counts lines of one form
        log.info(form, line)
        if self._file is not None:
            self._file.handle(log.makeRecord(log.name, logging.INFO, __name__, 0, form, (line,), None))


@define
class _Budget:
    """A limit of lines a second."""

    most: int
    second: int = -1
    lines: int = 0
    left_out: int = 0

    def renewed(self, second: int) -> int:
        """The number of lines that were left out until now, if a new second has begun."""
        if second == self.second:
            return 0
        missed, self.left_out = self.left_out, 0
        self.second, self.lines = second, 0
        return missed

    def take(self) -> bool:
        """True if one more line is written."""
        self.lines += 1
        self.left_out += self.lines > self.most
        return self.lines <= self.most


_OURS: Final = {
    getattr(codes, name): name
    for name in (
        "RECALL_MESSAGE",
        "IDEMPOTENT_SEND",
        "CONTROLLER_MESSAGE",
        "CONTROLLER_ASK",
        "CONTROLLER_STATUS",
        "CONTROLLER_OPERATE",
    )
}
"""Requests that RocketMQ 4.9 does not have."""


def action(code: int) -> str:
    """A request code in words."""
    if code in _OURS:
        return f"{_OURS[code]}({code})"
    known = code in RequestCode._value2member_map_
    return f"{RequestCode(code).name}({code})" if known else f"({code})"


def clean(text: object) -> str:
    """A text that fits a single word of a line, so that no client can forge lines."""
    short = str(text)[:300]
    plain = short.isprintable() and not any(letter in short for letter in ' "=') and short != ""
    return short if plain else ascii(short)


def _ext(command: Command) -> Mapping[str, str]:
    try:
        return command.ext
    except Exception:  # an unreadable header is refused, and still gets a line
        return {}


def _subjects(command: Command, ext: Mapping[str, str]) -> list[str]:
    subjects = [f"{name}:{ext[name]}" for name in _SUBJECTS if name in ext]
    if "b" in ext:  # the topic in the short headers of sends
        subjects.append(f"topic:{ext['b']}")
    if command.code in _CONFIG_CODES:
        subjects += [f"setting:{key}" for key in parse_properties(command.body.decode("utf-8", "replace"))]
    return subjects


def _open(path: str) -> logging.Handler:
    path = os.path.expanduser(path)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))  # the owner's from the start
    except OSError as error:
        wanted = f"a file to write to ({error.strerror}); correct the path, or make its folder"
        raise ConfigError("aclAuditFile", path, wanted) from None
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8", delay=True
    )
    handler.setFormatter(LogFormat("%(asctime)s %(message)s"))
    return handler
