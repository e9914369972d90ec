"""The audit log: a line for each change and each login, without secrets; pages show the last lines, and
changes that samples of the cluster showed.
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import os
import pathlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from attrs import frozen

from rmq.dashboard.access.hidden import HIDDEN, is_secret
from rmq.printable import printable

log = logging.getLogger("rmq.dashboard.audit")

KEPT: Final = 500
NOTICED_MAX: Final = 200
NOTICED_AT_ONCE: Final = 20
"""Changes of a cluster that are kept of one sample; the others are counted."""
READ_BYTES: Final = 512 << 10
TEXT_MAX: Final = 200
SECRETS: Final = frozenset({"secret_key", "password", "secret", "token"})
BODIES: Final = frozenset({"body"})


@frozen
class AuditLine:
    """One change or login. `at` is ms since 1970. `who` is empty for a change that a sample of the cluster
    showed. `kind` is that of the identity: an account and a user of the roles file may have one name."""

    at: int
    who: str
    role: str
    address: str
    cluster: str
    operation: str
    arguments: str
    outcome: str
    kind: str = ""


@frozen
class ClusterChange:
    """A change of a cluster that a sample showed: the kind in words, the name of its subject, and more."""

    kind: str
    subject: str
    text: str


class AuditLog:
    """Writes lines to a logger and, with `path`, to a file; keeps the last `KEPT` lines about clusters, those
    of the file too."""

    def __init__(self, now_ms: Callable[[], int], path: pathlib.Path | None = None) -> None:
        self._now_ms, self._path = now_ms, path
        self._lines: deque[AuditLine] = deque(maxlen=KEPT)
        if path is not None:
            self._lines.extend(_last_lines(path))
        self._noticed: deque[AuditLine] = deque(maxlen=NOTICED_MAX)

    def write(
        self,
        who: str,
        role: str,
        address: str,
        cluster: str,
        operation: str,
        arguments: Mapping[str, Any],
        outcome: str,
        kind: str = "",
    ) -> None:
        """Add a line. Raises OSError when the file cannot be written."""
        text = shown_arguments(arguments)
        line = AuditLine(
            self._now_ms(),
            printable(who)[:TEXT_MAX],
            role,
            address,
            cluster,
            operation,
            text,
            printable(outcome),
            kind,
        )
        if cluster:  # logins are on no page: those of strangers take no place of a change
            self._lines.appendleft(line)
        row = _row(line)
        log.info("%s", row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(row + "\n")

    def notice(self, cluster: str, found: Iterable[ClusterChange], since: int) -> None:
        """Add changes that a sample of a cluster showed, but for those that a line since `since` (ms since
        1970) is about. They are not written to the file: nobody made them here."""
        made = " ".join(
            line.arguments
            for line in itertools.takewhile(lambda line: line.at >= since, self._lines)
            if line.cluster == cluster
        )
        new = [one for one in found if _shown("", one.subject) not in made]
        for one in new[:NOTICED_AT_ONCE]:
            self._add_noticed(cluster, one.kind, shown_arguments({"name": one.subject}), one.text)
        if (rest := len(new) - NOTICED_AT_ONCE) > 0:
            self._add_noticed(cluster, "more changes", f"{rest} others at the same time", "")

    def _add_noticed(self, cluster: str, kind: str, arguments: str, text: str) -> None:
        more = f"{arguments} {printable(text)}".strip()
        self._noticed.appendleft(AuditLine(self._now_ms(), "", "", "", cluster, kind, more, "done"))

    def last(self, count: int, cluster: str, of: tuple[str, str] | None = None) -> list[AuditLine]:
        """The newest lines of a cluster and changes that samples showed, newest first; `of` is the kind and
        the name of an identity: its lines alone."""
        actor = None if of is None else (of[0], printable(of[1])[:TEXT_MAX])
        noticed = self._noticed if of is None else ()
        both = heapq.merge(self._lines, noticed, key=lambda line: -line.at)
        lines = (one for one in both if one.cluster == cluster and actor in (None, (one.kind, one.who)))
        return list(itertools.islice(lines, count))


def shown_arguments(arguments: Mapping[str, Any]) -> str:
    """Arguments as text, without secrets and bodies."""
    named = (arguments.get(name) for name in ("name", "key"))
    hidden = {"value"} if any(isinstance(name, str) and is_secret(name) for name in named) else set()
    return " ".join(
        f"{name}={_shown('secret' if name in hidden else name, value)}" for name, value in arguments.items()
    )


def _row(line: AuditLine) -> str:
    kind = f" kind={line.kind}" if line.kind else ""
    return (
        f"at={line.at} who={json.dumps(line.who)}{kind} role={line.role} address={line.address}"
        f" cluster={json.dumps(line.cluster)} operation={line.operation} {line.arguments}"
        f" outcome={json.dumps(line.outcome)}"
    )


_ROW: Final = re.compile(
    r'at=(\d{1,15}) who=("(?:[^"\\]|\\.)*")(?: kind=(\S+))? role=(\S*) address=(\S*)'
    r' cluster=("(?:[^"\\]|\\.)*") operation=(\S+) (.*) outcome=("(?:[^"\\]|\\.)*")'
)


def _last_lines(path: pathlib.Path) -> list[AuditLine]:
    """The last lines of a file, newest first; none of a file that cannot be read, which may be written all
    the same. A line that is none of this log is left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - READ_BYTES, 0))
            rows = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = [_read(row) for row in reversed(rows)]
    return [line for line in found if line is not None and line.cluster][:KEPT]


def _read(row: str) -> AuditLine | None:
    if (match := _ROW.fullmatch(row)) is None:
        return None
    at, who, kind, role, address, cluster, operation, arguments, outcome = match.groups()
    try:
        texts = [json.loads(one) for one in (who, cluster, outcome)]
    except ValueError:
        return None
    return AuditLine(int(at), texts[0], role, address, texts[1], operation, arguments, texts[2], kind or "")


def _shown(name: str, value: Any) -> str:
    if name in SECRETS:
        return json.dumps(HIDDEN if value else "")
    if name in BODIES:
        return f'"({len(str(value))} characters)"'
    if isinstance(value, Mapping):
        value = {key: _shown(key, one) if key in SECRETS | BODIES else one for key, one in value.items()}
    text = printable(value if isinstance(value, str) else json.dumps(value, default=str))
    return json.dumps(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}...")
