"""Masters: the last master of each broker name, kept over restarts, so that a former master cannot take over.

After a failover the former master may come back, as when its machine starts again. While the present master
lives, the name server refuses the former. But a name server that has just started knows no masters, and would
believe the first to register: so for a minute only the last known master may be master. Off until
`mastersPath` names a file. RocketMQ's name server has no such check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from rmq.errors import RemoteProtocolError, SystemFailure
from rmq.namesrv.routes import Registration
from rmq.protocol import json
from rmq.protocol.codes import MASTER_ID

log = logging.getLogger("rmq.namesrv")

FENCE_MS: Final = 60_000
"""Time after its start for which a name server waits for the last master of a name. Brokers register
within seconds of a name server's return, and every 60 s at least."""


class Masters:
    """The addresses of the last masters, by cluster and name.

    `save` replaces the file and raises OSError; None keeps nothing and fences no broker. `saved` is the
    content of the last save. `started_ms` is the start of the name server, by the clock of `check`. Raises
    RemoteProtocolError when `saved` cannot be read.
    """

    def __init__(self, save: Callable[[bytes], None] | None, saved: bytes | None, started_ms: int) -> None:
        self._save = save
        self._fenced_until = started_ms + FENCE_MS
        table = json.loads(saved) if saved else {}
        if not isinstance(table, dict) or not all(isinstance(one, str) for one in table.values()):
            raise RemoteProtocolError("mastersPath: expected a table of names and addresses")
        self._last: dict[str, str] = table
        self._waited_for = set(table)

    def check(self, broker: Registration, now_ms: int) -> None:
        """Raises SystemFailure for a master whose name had another master when the name server stopped, while
        that master may still come back. A master elected by controllers is always accepted."""
        last = self._last.get(key := _key(broker))
        if (
            broker.epoch
            or broker.broker_id != MASTER_ID
            or last in (None, broker.broker_addr)
            or key not in self._waited_for
        ):
            return
        if now_ms < self._fenced_until:
            left = (self._fenced_until - now_ms) / 1000
            raise SystemFailure(
                None,
                f"master of {broker.broker_name} was {last} when this name server stopped: it has"
                f" {left:.0f} s to come back; if it leads now, start {broker.broker_addr} as its slave",
            )

    def awaited(self) -> list[Registration]:
        """The masters of before this start that have neither registered nor unregistered since."""
        return [
            Registration(key.rpartition("/")[0], key.rpartition("/")[2], MASTER_ID, self._last[key])
            for key in sorted(self._waited_for & self._last.keys())
            if "/" in key
        ]

    def forget(self, broker_name: str) -> bool:
        """Stop waiting for the last master of a name, which will not come back; return whether the change
        needs saving."""
        forgotten = [key for key in self._waited_for & self._last.keys() if key.endswith(f"/{broker_name}")]
        self._last = {key: address for key, address in self._last.items() if key not in forgotten}
        return bool(forgotten)

    def registered(self, broker: Registration) -> bool:
        """Note that a broker has registered; return whether the change needs saving."""
        if broker.broker_id == MASTER_ID and self._save is not None:
            self._waited_for.discard(key := _key(broker))
            if self._last.get(key) != broker.broker_addr:
                self._last = {**self._last, key: broker.broker_addr}
                return True
        return False

    def unregistered(self, broker: Registration) -> bool:
        """Note that a broker was stopped gracefully: another broker may be master of its name at once. Return
        whether the change needs saving."""
        if self._last.get(key := _key(broker)) == broker.broker_addr:
            self._last = {name: address for name, address in self._last.items() if name != key}
            return self._save is not None
        return False

    def save(self) -> None:
        """Save the present masters, in any thread. A failure is only logged: the name server continues."""
        if self._save is not None:
            try:
                self._save(json.dumps(self._last))
            except OSError as error:
                log.error("cannot save the masters: %s", error)


def _key(broker: Registration) -> str:
    return f"{broker.cluster}/{broker.broker_name}"
