"""Parking: when the senders of what was committed get their answers.

At once, or when the log is on the medium (SYNC_FLUSH), or when a slave has it (SYNC_MASTER), or both, one
after the other. What waits is a row of Waits; at its deadline the answer says what was not reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq.broker.waits import ParkedSend
from rmq.protocol.codes import ResponseCode
from rmq.store.config import BrokerRole, FlushDiskType

if TYPE_CHECKING:
    from rmq.broker.acks import Ack, Acks
    from rmq.broker.replicas import Replicas
    from rmq.broker.waits import Waits
    from rmq.remoting.connection import Connection
    from rmq.store.config import StoreConfig
    from rmq.store.store import Store


class Parking:
    """Writes the acknowledgements of sends. Call `configure` before anything else."""

    _acks: Acks

    def __init__(self, store: Store, waits: Waits, replicas: Replicas) -> None:
        self._store = store
        self._waits = waits
        self._replicas = replicas
        self._sync = self._replicate = False
        waits.flush.release = self._flushed
        waits.replicas.release = self._replicated

    def configure(self, store_config: StoreConfig, acks: Acks) -> None:
        """Take new values of the settings; `acks` makes the answers."""
        self.store_config = store_config
        self._acks = acks
        self._sync = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._replicate = store_config.broker_role is BrokerRole.SYNC_MASTER

    def answer(self, connection: Connection, waiting: list[Ack], at_once: list[Ack]) -> None:
        """These are committed: answer those who do not wait, and the others when theirs is as safe as the
        settings ask.
        """
        if waiting and (self._sync or self._replicate):
            self._park(connection, waiting)
        else:
            at_once = waiting + at_once if at_once else waiting
        if at_once:
            connection.write(self._acks.stored(at_once))

    def _park(self, connection: Connection, waiting: list[Ack]) -> None:
        position = self._store.max_physical_offset
        if self._sync:
            now = self._waits.clock()
            deadline = now + self.store_config.sync_flush_timeout / 1000
            self._waits.flush.park(ParkedSend(connection, position, deadline, waiting, now))
        else:
            self._await_slave(ParkedSend(connection, position, 0.0, waiting))

    def _await_slave(self, parked: ParkedSend) -> None:
        """Answer at once when a slave has it or none can be waited for, else park once more."""
        replicas = self._replicas
        if replicas.reached >= parked.position:
            parked.connection.write(self._acks.stored(parked.acks))
        elif not replicas.are_near(parked.position):
            self._answer(parked, ResponseCode.SLAVE_NOT_AVAILABLE)
        else:
            now = self._waits.clock()
            deadline = now + self.store_config.slave_timeout / 1000
            line = self._waits.replicas
            line.park(ParkedSend(parked.connection, parked.position, deadline, parked.acks, now))

    def _flushed(self, parked: ParkedSend, in_time: bool) -> None:
        """On disk; or (10) stored, but not known to be on disk in time."""
        if not in_time:
            self._answer(parked, ResponseCode.FLUSH_DISK_TIMEOUT)
        elif self._replicate:
            self._await_slave(parked)
        else:
            parked.connection.write(self._acks.stored(parked.acks))

    def _replicated(self, parked: ParkedSend, in_time: bool) -> None:
        """On a slave; or (12) stored, but not known to be on a slave in time."""
        if in_time:
            parked.connection.write(self._acks.stored(parked.acks))
        else:
            self._answer(parked, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def _answer(self, parked: ParkedSend, code: ResponseCode) -> None:
        for ack in parked.acks:
            parked.connection.reply(self._acks.not_safe(ack, code))
