"""Replica manager of a broker in a set with controllers: its identity, its epoch, how far it may acknowledge.

`config/controller.json` in the store's folder has the broker's identity, the number of its starts, and the
offsets at which epochs begin in its log. Each change is on the disk before anything depends on it. The
latest state of the set is beside it, saved soon after (`SavedSet`). The rules are in
`rmq.controller.replica`; this module applies them to a broker.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from rmq.broker.replication.sessions import Diverged, Expired, MasterLog, begin
from rmq.controller.controller import Answer
from rmq.controller.epochs import FILE, Epochs, as_epochs, before_all, common_end, joined, since
from rmq.controller.heartbeat import UNKNOWN, Heartbeat
from rmq.controller.replica import Replica
from rmq.controller.sets import Adopt, AlterInSync, BrokerSet, Register
from rmq.controller.sets import Replica as Member
from rmq.errors import RemoteProtocolError, StoreCopied, StoreError
from rmq.metrics import Metric, single
from rmq.protocol import json

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig
    from rmq.store.files.disk import Disk
    from rmq.store.store import Store

log = logging.getLogger("rmq.broker")

SAMPLES: Final = 256
"""So many looks at the log's end are kept, to tell since when a slave has what was there."""


class SavedSet:
    """`config/controllerSet.json`: the latest state of the set known to this replica. It survives a restart
    of all servers, after which no broker remembers entries that an old controllers' table lacks.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = os.path.join(folder, "config", "controllerSet.json")
        self.broker_set: BrokerSet | None = None
        try:
            if (data := disk.load(self._path)) is not None:
                self.broker_set = msgspec.json.decode(data, type=BrokerSet)
        except (StoreError, msgspec.MsgspecError) as error:
            log.warning("%s cannot be read, and is made again: %s", self._path, error)

    def latest(self, known: BrokerSet | None) -> BrokerSet | None:
        """The latest version of the set `known` that this replica has received, now or before its restart."""
        kept = self.broker_set
        if known is None or kept is None or known.began != kept.began:
            return known
        return max(known, kept, key=_version)

    def writing(self, known: BrokerSet | None) -> Callable[[], None] | None:
        """A write of the latest version, for a thread; None when the file has it."""
        latest, kept = self.latest(known), self.broker_set
        if latest is None or latest is kept:
            return None
        if kept is not None and (latest.began, _version(latest)) == (kept.began, _version(kept)):
            return None
        return partial(self.save, latest)

    def save(self, broker_set: BrokerSet) -> None:
        """Keep this version. Blocks: call it in a thread. Raises StoreError."""
        self._disk.replace(self._path, msgspec.json.encode(broker_set))
        self.broker_set = broker_set


def _version(broker_set: BrokerSet) -> tuple[int, int]:
    return broker_set.epoch, broker_set.version


class ReplicaIdentity:
    """The file of a broker's identity. Raises StoreError when it cannot be read or written."""

    def __init__(self, disk: Disk, folder: str, chance: Random) -> None:
        self._disk = disk
        self._path = f"{folder}/{FILE}"
        self.folder = folder
        self.identity = f"{chance.getrandbits(128):032x}"
        self.incarnation = 0
        self.epochs: Epochs = ()
        self.last = 0
        """The last epoch that this broker knew of."""
        self.began = ""
        """Identity of its last set (`BrokerSet.began`)."""
        self._chance = chance
        self.saved = SavedSet(disk, folder)
        data = disk.load(self._path)
        if data is not None:
            self._read(data)

    def _read(self, data: bytes) -> None:
        try:
            table = json.loads(data)
            self.identity, self.incarnation = str(table["identity"]), int(table["incarnation"])
            self.epochs, self.last = as_epochs(table["epochs"]), int(table["epoch"])
            self.began = str(table.get("began", ""))
        except (RemoteProtocolError, AttributeError, TypeError, KeyError, ValueError) as error:
            raise StoreError(f"{self._path} cannot be read: {error!r}") from None

    def begin(self) -> None:
        """Count a new start. The number is on the disk before another server learns it."""
        self.incarnation += 1
        self.save(self.epochs)

    def renew(self, epochs: Epochs | None = None) -> None:
        """Become another replica at the next start. `epochs`: epochs of its log, if they differ from the
        present epochs."""
        self.identity, self.incarnation = f"{self._chance.getrandbits(128):032x}", 0
        self.save(self.epochs if epochs is None else epochs)

    def join(self, began: str) -> None:
        """Be of the set that began so, which is on the disk when this returns."""
        if began != self.began:
            self.began = began
            self.save(self.epochs)

    def leave_set(self) -> None:
        """Be of no set, and know no epoch of the log, which is on the disk when this returns."""
        self.began = ""
        self.save(())

    def save(self, epochs: Epochs) -> None:
        """Set the epochs; they are on the disk when this returns."""
        last = max(self.last, epochs[-1][0]) if epochs else self.last
        table = {
            "identity": self.identity,
            "incarnation": self.incarnation,
            "epoch": last,
            "epochs": [*map(list, epochs)],
            "began": self.began,
        }
        self._disk.replace(self._path, json.dumps(table))
        self.epochs, self.last = epochs, last


def forget_epochs(disk: Disk, folder: str) -> None:
    """Forget the epochs of a log whose broker runs without controllers: new records belong to no epoch, so
    that a later set has to compare records. Raises StoreError."""
    if disk.exists(f"{folder}/{FILE}"):
        file = ReplicaIdentity(disk, folder, Random(0))
        if file.epochs or file.began:
            file.leave_set()


class ReplicaManager:
    """See the module. `clock` is that of leases, in seconds; `address` and `ha_address` are registered in the
    set."""

    def __init__(
        self,
        config: BrokerConfig,
        file: ReplicaIdentity,
        *,
        address: str,
        ha_address: str,
        is_founder: bool,
        clock: Callable[[], float],
    ) -> None:
        self._file = file
        self._clock = clock
        self._name = config.broker_name
        self._least = config.min_in_sync_replicas
        self._lag_s = config.replica_lag_ms / 1000
        self._member = Member(file.identity, file.incarnation, address, ha_address)
        self._cluster = config.broker_cluster_name
        self._is_founder = is_founder
        self.replica: Replica | None = None
        self.leaves = False
        """True while it stops."""
        self.hangs = False
        """Its disk has not answered for a while."""
        self._heard_at = clock()
        self._last_master = 0
        self._changed_at = -math.inf  # when another became master than the last one
        self._stepping_down = 0  # the epoch in which another is wanted as master
        self._closed = 0
        self._acted = False  # it had a lease when it was looked last
        self._fenced = 0
        self.stays = False
        """The service ends to begin again in another role: name servers are not told that it leaves."""
        self._flushed_now: Callable[[], int] | None = None  # of the store that is open
        self._flushed = UNKNOWN
        self._on_new_master: Callable[[], None] = lambda: None
        self._on_confirmed: Callable[[], None] = lambda: None
        self.relayed = 0
        self.relay_refused = 0
        """Requests that this slave has handed on to its master, and that it refused to hand on."""
        self.answered_for_slaves = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self._agreed = (0, 0)  # an epoch, and the end of a record that all in sync had in it

    # ---- with the service ----

    def opened(self, flushed: Callable[[], int], on_confirmed: Callable[[], None]) -> None:
        """The store is open. `flushed` returns the synced end of the log; `on_confirmed` is called when
        consumers may read further."""
        self._flushed_now, self._on_confirmed = flushed, on_confirmed

    def closed(self, flushed: int) -> None:
        """The store is closed, its log on the disk up to `flushed`."""
        self._flushed_now, self._flushed, self._on_confirmed = None, flushed, lambda: None

    def flushed(self) -> int:
        """Up to where the log is on the disk, as far as is known."""
        return self._flushed if self._flushed_now is None else self._flushed_now()

    def watch_master(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` when another master is to be followed."""
        self._on_new_master = on_change

    def stay(self, stays: bool) -> None:
        """Note whether the service ends only to start again in another role."""
        self.stays = stays

    def leave(self) -> None:
        """Note that this broker stops: the next heartbeat reports it."""
        self.leaves = True

    def disk_hangs(self, hangs: bool) -> None:
        """Note whether the disk hangs: the next heartbeat reports it."""
        self.hangs = hangs

    def advance_high_watermark(self) -> None:
        """More of the log is on disks: consumers may read further."""
        self._on_confirmed()

    def count_forwarded(self, *, refused: bool = False) -> None:
        """A request was handed on to the master, or could not be."""
        self.relayed += not refused
        self.relay_refused += refused

    def count_answered(self, count: int) -> None:
        """Count long polls of slaves that this broker answered."""
        self.answered_for_slaves += count

    # ---- with the controllers ----

    def register(self) -> Register:
        """The registration that makes this broker a replica of its set."""
        file = self._file
        return Register(self._cluster, self._name, self._member, self._is_founder, file.last, file.began)

    def registered(self, answer: Answer) -> str:
        """Take the answer to `register`; return the reason of a refusal, or empty. Raises StoreError when
        this broker can no longer be this replica, StoreCopied when another broker is this replica."""
        if answer.broker_set is not None:
            self._check_is_last_life(answer.broker_set)
        if answer.refusal or answer.broker_set is None or not answer.number:
            return answer.refusal or "the controllers do not say which number it has"
        self._file.join(answer.broker_set.began)
        if self.replica is None or self.replica.number != answer.number:
            self.replica = Replica(answer.number, self._file.epochs, lag_s=self._lag_s)
        self._take_set(answer.broker_set)
        return ""

    def _check_is_last_life(self, broker_set: BrokerSet) -> None:
        """Refuse to be a replica with a later known incarnation: after that start it may have acknowledged
        messages that this store lacks. The store counts starts, so some starts later this one would count as
        the latest."""
        file = self._file
        known = broker_set.replicas.get(broker_set.number_of(file.identity))
        if known is not None and known.incarnation > file.incarnation:
            lives = f"incarnation {known.incarnation} of this broker, and this is {file.incarnation}"
            file.renew()
            raise StoreError(
                f"the controllers know {lives}: its store is an old copy, or was copied. From its next start"
                " on it is a new replica, which must come in sync"
            )

    def heartbeat(self) -> Heartbeat:
        """The heartbeat of this broker."""
        replica = self._replica
        self._check_lease()
        self._flushed = self.flushed()
        epoch = max(replica.epoch, self._file.last)
        known = self._file.saved.latest(self._replica.broker_set)
        return Heartbeat(
            self._name,
            replica.number,
            self._file.incarnation,
            epoch,
            self._flushed,
            resigned=replica.has_stepped_down and epoch == replica.epoch,
            leaving=self.leaves,
            hangs=self.hangs,
            identity=self._member.identity,
            knows=(0, 0) if known is None else (known.epoch, known.version),
            acted=replica.epoch,
            confirmed=self._agree(),
            lease_s=replica.longest_lease_s,
        )

    def _agree(self) -> tuple[int, int]:
        """A master's: the end of a record that all replicas in sync have, and the epoch in which they
        reported it. A replica may also have a part of the next record, which a power cut can take; the ends
        of the log in `_samples` are ends of records."""
        replica, now = self._replica, self._clock()
        agreed = replica.agreed(self._flushed, now)
        if agreed is not None:
            end = next((end for _, end in reversed(self._samples) if end <= agreed), 0)
            before = self._agreed[1] if self._agreed[0] == replica.epoch else 0
            self._agreed = replica.epoch, max(end, before)
        return self._agreed

    def adopt(self) -> Adopt | None:
        """The set that this replica knows; the controllers adopt it if their table is older."""
        known = self._file.saved.latest(self._replica.broker_set)
        return None if known is None else Adopt(known)

    def pending_save(self) -> Callable[[], None] | None:
        """A write of the latest version of the set, for a thread; None if the file has that version."""
        return self._file.saved.writing(self._replica.broker_set)

    def heard(self, answer: Answer, asked_at: float) -> None:
        """Take the answer to a heartbeat that was sent at `asked_at`. Raises StoreCopied."""
        if answer.broker_set is None:
            return
        self._heard_at = self._clock()
        self._check_lease()
        self._take_set(answer.broker_set)
        self._replica.take_lease_length(answer.lease_s, self._heard_at)
        self._stepping_down = answer.broker_set.epoch if answer.hands_over else 0
        for number in answer.leaving:
            self._replica.left(number)
        if answer.is_leased:
            self._replica.lease(answer.broker_set.epoch, asked_at, answer.lease_s)
            self._acted = self.has_lease()

    def _check_lease(self) -> None:
        """Count a lease that ended before its renewal: this master was fenced."""
        if self._acted and not self.has_lease():
            self._acted = False
            self._fenced += not self._replica.has_stepped_down

    def altered(self, answer: Answer) -> None:
        """Take the answer to a change of the in-sync set."""
        if answer.broker_set is not None:
            self._take_set(answer.broker_set)

    def change(self) -> AlterInSync | None:
        """The change of the in-sync set to propose to the controllers; None when the set is right."""
        replica, now = self._replica, self._clock()
        self._samples.append((now, self.flushed()))
        found = replica.change(self.flushed(), now)
        known = replica.broker_set
        if found is None or known is None:
            return None
        return AlterInSync(self._name, known.epoch, known.version, found)

    def _take_set(self, broker_set: BrokerSet) -> None:
        replica, member = self._replica, self._member
        before = replica.broker_set
        registered = broker_set.replicas.get(replica.number, member)
        is_other = registered != member and registered.incarnation >= member.incarnation
        if is_other and registered.identity == member.identity:
            # This life began after all others of the folder, which has a lock: that one is of a copy.
            raise StoreCopied(self._file.folder, registered.address)
        replica.take_set(broker_set)
        if before is not None and (before.epoch, before.master) != (self.epoch, self.master_number):
            self._on_new_master()
        if self.master_number not in (0, self._last_master):
            self._changed_at = self._clock() if self._last_master else -math.inf
            self._last_master = self.master_number

    def now(self) -> float:
        """The clock of leases."""
        return self._clock()

    @property
    def _replica(self) -> Replica:
        assert self.replica is not None, "it is not registered"
        return self.replica

    # ---- which role ----

    @property
    def number(self) -> int:
        """The number of this replica in the set; 0 before its registration."""
        return 0 if self.replica is None else self.replica.number

    @property
    def epoch(self) -> int:
        """The epoch of the set; 0 when unknown."""
        known = None if self.replica is None else self.replica.broker_set
        return 0 if known is None else known.epoch

    @property
    def master_number(self) -> int:
        """The number of the master; 0 without a master."""
        known = None if self.replica is None else self.replica.broker_set
        return 0 if known is None else known.master

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The numbers of the replicas in sync, as far as known."""
        known = None if self.replica is None else self.replica.broker_set
        return () if known is None else known.in_sync

    @property
    def is_elected(self) -> bool:
        """True if this broker is to be the master."""
        return self.number != 0 and self.master_number == self.number

    @property
    def master(self) -> Member | None:
        """The master to follow; None without a master, or when this broker is the master."""
        known = None if self.replica is None else self.replica.broker_set
        if known is None or self.is_elected:
            return None
        return known.replicas.get(known.master)

    def lead(self, end: int, *, start: int = 0) -> None:
        """Begin the present epoch as its master, with a log from `start` to `end` that is on the disk. Raises
        StoreError."""
        replica, now = self._replica, self._clock()
        replica.epochs = since(replica.epochs, start)
        replica.lead(self.epoch, end, now)
        replica.acknowledged = end
        self._samples.clear()
        self._samples.append((now, end))
        self._file.save(replica.epochs)

    def follow(self, epoch: int, epochs: Epochs, *, start: int, is_same: bool) -> None:
        """Follow the master of an epoch. `epochs` are the master's; our log, from `start` on, is a part of
        the master's log on the disk. `is_same`: our own epochs describe this log. Raises StoreError."""
        known = since(joined(self.epochs, epochs) if is_same else epochs, start)
        self._file.save(known)
        self._replica.follow(epoch, known)

    @property
    def epochs(self) -> Epochs:
        """Epochs of the own log, with their begins."""
        return self._replica.epochs

    def led(self) -> tuple[int, Epochs]:
        """The epoch that this broker leads, and where epochs begin in its log."""
        return self._replica.epoch, self._replica.epochs

    def cut(self, store: Store, master: MasterLog, log_id: str) -> int:
        """The physical offset up to which our log equals the master's. `log_id` is our log's. Raises
        Diverged, and Expired when the common part has expired at one of both."""
        begin(store, master, log_id)
        found = common_end(self.epochs, store.max_physical_offset, master.epochs, master.end)
        if found is None:
            if not master.epochs:
                raise Diverged("the master sends no epoch history of its log")
            found = before_all(self.epochs, master.epochs)
        if found is None or found < max(master.start, store.min_physical_offset):
            until = "unknown, they share no epoch that is kept" if found is None else f"{found}"
            raise Expired(f"the end that our log has in common with the master's has expired: {until}")
        return found

    @property
    def known_high_watermark(self) -> int:
        """The last known high watermark; 0 when unknown."""
        return 0 if self.replica is None else self.replica.high_watermark or 0

    def lower_high_watermark(self, end: int) -> None:
        """Our log ends at `end` now, after a cut or after a part was set aside."""
        replica = self._replica
        if replica.high_watermark is not None:
            replica.high_watermark = min(replica.high_watermark, end)

    # ---- a master ----

    def admit(self, number: int, epoch: int) -> None:
        """Admit a slave that names itself. Raises RemoteProtocolError unless it follows our epoch."""
        known = self._replica.broker_set
        if known is None or number not in known.replicas or number == self.number:
            raise RemoteProtocolError(f"it names itself replica {number}, which does not exist")
        if epoch != self._replica.epoch:
            raise RemoteProtocolError(f"it follows epoch {epoch}, this master leads {self._replica.epoch}")

    def report(self, number: int, reach: int) -> None:
        """Replica `number` has our log on its disk up to `offset`."""
        replica = self._replica
        # Under load a slave never has all: it is in time when it has what was here a moment ago.
        had = next(((at, end) for at, end in reversed(self._samples) if end <= reach), None)
        at, end = (self._clock(), reach + 1) if had is None else had
        replica.report(number, replica.epoch, reach, end, at)

    def awaited(self) -> frozenset[int]:
        """Numbers of the other replicas that must have a message before it is acknowledged."""
        return self._replica.awaited() - {self.number}

    @property
    def stepping_down(self) -> bool:
        """True if another is wanted as master of the epoch that this broker leads."""
        return self._stepping_down == self._replica.epoch and self.is_elected

    def close(self) -> None:
        """Take no commits of offsets in this epoch either, as long as another is wanted as master."""
        self._closed = self._replica.epoch

    @property
    def is_closed(self) -> bool:
        """True if a response to a commit or a lock could be lost with the epoch, because another master is
        about to be elected."""
        return self._replica.has_stepped_down or (self.stepping_down and self._closed == self._replica.epoch)

    def step_down(self) -> None:
        """Stop acting in this epoch; the next heartbeat reports it."""
        self._replica.step_down()

    def has_lease(self) -> bool:
        """True if this broker is the master now, with a lease."""
        return self._replica.is_master(self._clock())

    def refusal(self) -> str:
        """The reason for which no message is taken now; empty when there is none."""
        known = self._replica.broker_set
        if known is not None and self.stepping_down:
            return "this master hands over to another replica"
        if not self.has_lease() or known is None:
            return "this master has no lease of the controllers, another may be elected"
        if len(known.in_sync) < self._least:
            return f"{len(known.in_sync)} replicas are in sync, minInSyncReplicas is {self._least}"
        return ""

    def ack_limit(self) -> int:
        """Up to where messages may be acknowledged."""
        return self._replica.ack_limit(self.flushed(), self._clock(), least=self._least)

    def high_watermark(self) -> int | None:
        """The high watermark: the end of the log that all awaited replicas have. A message that a consumer
        has read is never lost with a master, and no other message takes its offset, which the consumer would
        skip. None on a replica that has just started and knows no high watermark."""
        return self._replica.confirm(self.flushed(), self._clock())

    def take_high_watermark(self, offset: int) -> None:
        """A slave: take the offset up to which consumers may read, from the master."""
        replica = self._replica
        if offset > (-1 if replica.high_watermark is None else replica.high_watermark):
            replica.high_watermark = offset
            self._on_confirmed()

    def rows(self) -> dict[str, str]:
        """Rows of the runtime metrics."""
        if self.replica is None or self.replica.broker_set is None:
            return {}
        known = self.replica.broker_set
        return {
            "controllerEpoch": str(known.epoch),
            "controllerMaster": str(known.master),
            "controllerNumber": str(self.number),
            "controllerSilentSeconds": str(int(self.silent_seconds())),
            "setReplicas": " ".join(map(str, sorted(known.replicas))),
            "inSyncReplicas": " ".join(map(str, known.in_sync)),
            "setRefuses": self.refusal() if self.is_elected else "",
        }

    def master_seconds(self) -> float:
        """Since when the master, a slave before, has been that; without end when no change was seen."""
        return self._clock() - self._changed_at

    def silent_seconds(self) -> float:
        """For how long no controller that leads has answered."""
        return self._clock() - self._heard_at

    def metrics(self) -> list[Metric]:
        """Metrics of the set, as this broker knows the set."""
        known = None if self.replica is None else self.replica.broker_set
        replicas, in_sync = (0, 0) if known is None else (len(known.replicas), len(known.in_sync))
        refuses = self.replica is not None and self.is_elected and bool(self.refusal())
        is_fenced = self.replica is not None and self.is_elected and not self.has_lease()
        rows = (
            (
                "set_epoch",
                "Epoch of this broker's controlled set; each election begins an epoch",
                self.epoch,
            ),
            ("set_replicas", "Replicas of the set", replicas),
            ("set_in_sync", "In-sync replicas of the set", in_sync),
            (
                "set_refusing",
                "1 when this master refuses messages because it lacks a lease or replicas",
                refuses,
            ),
            ("set_fenced", "1 when this broker is the elected master and has no lease", is_fenced),
            (
                "set_controllers_silent_seconds",
                "Time since the last response of a leading controller",
                self.silent_seconds(),
            ),
        )
        found = [single(name, "gauge", help, float(value)) for name, help, value in rows]
        fenced = "Times that the lease of this master ended; without a lease it acknowledges nothing"
        counted = (
            ("set_leases_lost", fenced, self._fenced),
            ("set_relayed", "Requests that this slave forwarded to its master", self.relayed),
            ("set_relay_refused", "Requests that this slave could not forward", self.relay_refused),
            ("set_pulls_answered", "Long polls answered for dead slaves", self.answered_for_slaves),
        )
        return found + [single(name, "counter", help, float(value)) for name, help, value in counted]
