"""BrokerSets: for each broker set its replicas, master, epoch and replicas in sync.

This is the state machine of the controllers' log: the same commands in the same order give the same state
everywhere. The table has no clock and no connections; `elections` knows which replicas live and which leases
are over.

Rules that every command must keep, from any sender:

- an epoch has a single master, and each new master a higher epoch;
- a new master comes from the replicas in sync, unless an operator said `unclean`;
- only the master of the epoch adds replicas to those in sync, one change after the other (`version`), and the
  replicas in sync always include the master. So a replica in sync has every message that the master
  acknowledged;
- a master that was started again leads no more: another epoch must begin, even with the same replica.
"""

from __future__ import annotations

from typing import Final

import msgspec
from attrs import evolve, field, frozen

from rmq.controller.consensus.machine import UnknownCommand
from rmq.server.process import VERSION as RELEASE

NOBODY: Final = 0
"""Replicas are numbered from 1."""
SETS_MAX: Final = 10_000
REPLICAS_MAX: Final = 9
LEASE_MS: Final = 3000
"""Milliseconds that a master's lease lasts until controllers agree on another length."""
TEXT_MAX: Final = 255


@frozen
class Replica:
    """A broker of a set. `identity` and `incarnation` are in its store's folder. `incarnation` grows with
    each start, so that a late request of an earlier life is recognised."""

    identity: str
    incarnation: int
    address: str
    ha_address: str


@frozen
class BrokerSet:
    """A set: `master` is NOBODY while none is elected; `in_sync` are in order of their numbers."""

    cluster: str
    name: str
    epoch: int = 0
    version: int = 0
    master: int = NOBODY
    in_sync: tuple[int, ...] = ()
    replicas: dict[int, Replica] = field(factory=dict)
    next_number: int = 1
    began: str = ""
    """Founder of the set, and its incarnation: distinguishes the set from another set of this name, of
    controllers that lost their table or belong to another cluster."""
    confirmed: tuple[int, int] = (0, 0)
    """An epoch, and the end of a record that all replicas in sync had on their disks in it: a replica in sync
    without the record has lost messages. Some seconds behind the master's report."""
    led: int = NOBODY
    """The master of the epoch, also after its restart; NOBODY in a table of an earlier version."""

    def number_of(self, identity: str) -> int:
        """The number of the replica of an identity, or NOBODY."""
        return next((number for number, one in self.replicas.items() if one.identity == identity), NOBODY)


@frozen
class Register:
    """Registration of a replica that has started, or has other addresses.

    `is_founder`: a master by its configuration, which may begin a set without replicas; a slave may not,
    since its log may lack messages of its master. `epoch`: the last epoch that the replica knows; a set that
    was removed and begins again continues above this epoch. `began`: identifies the set to which the replica
    belonged last.
    """

    cluster: str
    name: str
    replica: Replica
    is_founder: bool = False
    epoch: int = 0
    began: str = ""


@frozen
class AlterInSync:
    """A master's change of the replicas in sync; `version` is the version that it changes."""

    name: str
    epoch: int
    version: int
    in_sync: tuple[int, ...]


@frozen
class Elect:
    """Election: `master` begins the next epoch after `epoch`; `in_sync` are the replicas that stay in
    sync."""

    name: str
    epoch: int
    version: int
    master: int
    in_sync: tuple[int, ...]
    is_unclean: bool = False


@frozen
class Remove:
    """Removal of a replica for good. Removing the last replica removes the set."""

    name: str
    number: int


@frozen
class Lease:
    """The length of a master's lease from now on. The controller that leads grants no longer lease before
    this is agreed on, and proposes a shorter lease only when no longer lease can still be valid."""

    ms: int


@frozen
class Adopt:
    """Adoption of a later version of the set, which a replica knows, into the older table."""

    broker_set: BrokerSet

    @property
    def name(self) -> str:
        """The name of the set."""
        return self.broker_set.name


@frozen
class Confirmed:
    """The confirmed points of some sets, by their names: epoch and end of a record each."""

    points: dict[str, tuple[int, int]]


VERSION: Final = 1
"""Version of the commands. A command of version 1 is a list of name and fields; a command of a later version
has the version as a third item. Give a command a later version when members that know only its earlier
version would apply it differently: those members stop applying (`Raft.stopped`)."""

Command = Register | AlterInSync | Elect | Remove | Lease | Adopt | Confirmed
_COMMANDS: Final[tuple[type[Command], ...]] = (
    *(Register, AlterInSync, Elect, Remove, Lease),
    *(Adopt, Confirmed),
)
_PAIR: Final = 0x92
"""The first byte of a snapshot with a lease: a list of two."""
_DECODERS: Final = {one.__name__: msgspec.msgpack.Decoder(one) for one in _COMMANDS}


def encode(command: Command) -> bytes:
    """A command as an entry of the log."""
    return msgspec.msgpack.encode([type(command).__name__, msgspec.Raw(msgspec.msgpack.encode(command))])


def decode(data: bytes) -> Command:
    """A command of an entry. Raises UnknownCommand."""
    try:
        name, raw, *version = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
        kind = msgspec.msgpack.decode(name, type=str)
        number = msgspec.msgpack.decode(version[0], type=int) if version else 1
        if number > VERSION:
            raise UnknownCommand(f"command {kind} has version {number}, rmq {RELEASE} knows {VERSION}")
        if kind not in _DECODERS:
            raise UnknownCommand(f"rmq {RELEASE} knows no command {kind}")
        return _DECODERS[kind].decode(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnknownCommand(f"its command cannot be read: {error}") from None


@frozen
class Outcome:
    """Result of a command: the reason when nothing was done (empty when it was done), the present set, and
    the number of the replica that registered."""

    refusal: str = ""
    broker_set: BrokerSet | None = None
    number: int = NOBODY


class BrokerSets:
    """The table, by the names of the sets; the `Machine` of `Raft`. No lease that lasts is longer than
    `lease_ms`."""

    def __init__(self, lease_ms: int = LEASE_MS) -> None:
        self.sets: dict[str, BrokerSet] = {}
        self.lease_ms = self._first_ms = lease_ms

    def apply(self, data: bytes) -> Outcome:
        """Apply a command, or return the reason to refuse it. Raises UnknownCommand."""
        match command := decode(data):
            case Register():
                return self._register(command)
            case AlterInSync():
                return self._alter(command)
            case Elect():
                return self._elect(command)
            case Remove():
                return self._remove(command)
            case Lease():
                self.lease_ms = max(1, command.ms)
                return Outcome()
            case Adopt():
                return self._adopt(command.broker_set)
            case Confirmed():
                return self._confirm(command.points)

    def snapshot(self) -> bytes:
        """All sets, and the lease unless it is the initial lease: earlier versions know the sets only."""
        if self.lease_ms == self._first_ms:
            return msgspec.msgpack.encode(self.sets)
        return msgspec.msgpack.encode((self.lease_ms, self.sets))

    def restore(self, data: bytes) -> None:
        """Load the state of a snapshot. Raises UnknownCommand."""
        lease_ms, sets = self._first_ms, dict[str, BrokerSet]()
        try:
            if data and data[0] == _PAIR:
                lease_ms, sets = msgspec.msgpack.decode(data, type=tuple[int, dict[str, BrokerSet]])
            elif data:
                sets = msgspec.msgpack.decode(data, type=dict[str, BrokerSet])
        except msgspec.MsgspecError as error:
            raise UnknownCommand(f"its table of broker sets cannot be read: {error}") from None
        self.lease_ms, self.sets = lease_ms, sets

    def _register(self, command: Register) -> Outcome:
        new = command.replica
        known = self.sets.get(command.name)
        texts = (command.cluster, command.name, new.identity, new.address, new.ha_address)
        if not all(text and len(text) <= TEXT_MAX for text in texts):
            return Outcome(f"names and addresses have 1 to {TEXT_MAX} characters")
        if known is None and len(self.sets) >= SETS_MAX:
            return Outcome(f"there are {SETS_MAX} broker sets already")
        broker_set = known or BrokerSet(command.cluster, command.name)
        if broker_set.cluster != command.cluster:
            return Outcome(f"{command.name} belongs to cluster {broker_set.cluster}", known)
        if why := _is_of_another(known, command):
            return Outcome(why, known)
        number = broker_set.number_of(new.identity)
        if not number:
            if len(broker_set.replicas) >= REPLICAS_MAX:
                return Outcome(f"{command.name} has {REPLICAS_MAX} replicas already: remove one", known)
            if not broker_set.replicas and not command.is_founder:
                return Outcome(
                    f"{command.name} has no master yet: start the one that has the log first", known
                )
            number = broker_set.next_number
        first = not broker_set.replicas
        before = broker_set.replicas.get(number)
        is_elsewhere = before is not None and (
            (new.address, new.ha_address) != (before.address, before.ha_address)
        )
        if before is not None and new.incarnation < before.incarnation + is_elsewhere:
            return Outcome(
                f"replica {number} of {command.name} was started more often, last at {before.address}: where"
                " this store's folder is an older copy of its, remove config/controller.json here",
                known,
            )
        changed = evolve(
            broker_set,
            replicas={**broker_set.replicas, number: new},
            next_number=max(broker_set.next_number, number + 1),
        )
        if first:
            changed = evolve(
                changed,
                epoch=max(0, command.epoch) + 1,
                version=1,
                master=number,
                led=number,
                in_sync=(number,),
                began=f"{new.identity} {new.incarnation}",
            )
        elif number == changed.master and before is not None and new.incarnation > before.incarnation:
            # Its earlier life may have acknowledged messages that its disk lost: other replicas in sync have
            # them, and only a new epoch makes all replicas compare their logs.
            changed = evolve(changed, master=NOBODY)
        others = tuple(one for one in changed.in_sync if one != number)
        if is_elsewhere and others and changed.master != number:
            # Its folder may be a copy without later messages: it becomes in sync as a new replica does.
            changed = evolve(changed, in_sync=others, version=changed.version + 1)
        return self._done(changed, number)

    def _alter(self, command: AlterInSync) -> Outcome:
        known = self.sets.get(command.name)
        if known is None:
            return Outcome(f"there is no broker set {command.name}")
        if known.master == NOBODY or (known.epoch, known.version) != (command.epoch, command.version):
            return Outcome(f"{command.name} is at epoch {known.epoch}, version {known.version}", known)
        in_sync = tuple(sorted(set(command.in_sync)))
        if known.master not in in_sync or not set(in_sync) <= set(known.replicas):
            return Outcome("replicas in sync must be replicas of the set and include the master", known)
        changed = evolve(known, version=known.version + 1, in_sync=in_sync)
        if in_sync == (known.master,):  # it has this epoch on its disk, and with an older folder it would not
            changed = evolve(changed, confirmed=(known.epoch, known.confirmed[1]))
        return self._done(changed)

    def _elect(self, command: Elect) -> Outcome:
        known = self.sets.get(command.name)
        if known is None or command.master not in known.replicas:
            return Outcome(f"{command.name} has no replica {command.master}", known)
        if (known.epoch, known.version) != (command.epoch, command.version):
            return Outcome(f"{command.name} is at epoch {known.epoch}, version {known.version}", known)
        if command.is_unclean:
            in_sync: tuple[int, ...] = (command.master,)
        elif command.master in known.in_sync:
            # The replicas that stay have all messages that were acknowledged before; later acknowledgements
            # wait for these replicas too.
            kept = {command.master, *command.in_sync} & set(known.in_sync)
            in_sync = tuple(sorted(kept))
        else:
            return Outcome(f"replica {command.master} of {command.name} is not in sync", known)
        changed = evolve(
            known,
            epoch=known.epoch + 1,
            version=known.version + 1,
            master=command.master,
            led=command.master,
            in_sync=in_sync,
        )
        if command.is_unclean:  # confirmed records are lost
            changed = evolve(changed, confirmed=(0, 0))
        return self._done(changed)

    def _adopt(self, reported: BrokerSet) -> Outcome:
        known = self.sets.get(reported.name)
        if known is None or (known.cluster, known.began) != (reported.cluster, reported.began):
            return Outcome(f"{reported.name} is another set here, or none", known)
        if (reported.epoch, reported.version) <= (known.epoch, known.version):
            return Outcome(f"{reported.name} is at epoch {known.epoch}, version {known.version}", known)
        is_sound = (
            reported.in_sync
            and set(reported.in_sync) <= set(reported.replicas)
            and len(reported.replicas) <= REPLICAS_MAX
        )
        if not is_sound or reported.master not in (NOBODY, *reported.in_sync):
            return Outcome("replicas in sync must be replicas of the set and include the master", known)
        is_same = reported.epoch == known.epoch
        adopted = evolve(
            reported,
            replicas=_joined(known.replicas, reported.replicas),
            next_number=max(known.next_number, reported.next_number),
            # The replica may have been started again since the older table: it leads no more.
            master=NOBODY if is_same and known.master == NOBODY else reported.master,
            led=reported.led or reported.master or (known.led if is_same else NOBODY),
            confirmed=max(known.confirmed, reported.confirmed) if is_same else reported.confirmed,
        )
        return self._done(adopted)

    def _confirm(self, points: dict[str, tuple[int, int]]) -> Outcome:
        for name, (epoch, end) in points.items():
            known = self.sets.get(name)
            if known is not None and known.epoch == epoch:
                self.sets[name] = evolve(known, confirmed=(epoch, max(end, known.confirmed[1])))
        return Outcome()

    def _remove(self, command: Remove) -> Outcome:
        known = self.sets.get(command.name)
        if known is None or command.number not in known.replicas:
            return Outcome(f"{command.name} has no replica {command.number}", known)
        replicas = {number: one for number, one in known.replicas.items() if number != command.number}
        if not replicas:
            del self.sets[command.name]
            return Outcome()
        if command.number == known.master:
            return Outcome(f"replica {command.number} is the master: elect another first", known)
        in_sync = tuple(number for number in known.in_sync if number != command.number)
        if not in_sync:
            return Outcome(f"replica {command.number} is the only one in sync: elect another first", known)
        return self._done(evolve(known, replicas=replicas, in_sync=in_sync, version=known.version + 1))

    def _done(self, changed: BrokerSet, number: int = NOBODY) -> Outcome:
        assert changed.master in (NOBODY, *changed.in_sync), changed
        assert set(changed.in_sync) <= set(changed.replicas), changed
        self.sets[changed.name] = changed
        return Outcome("", changed, number)


def _joined(known: dict[int, Replica], reported: dict[int, Replica]) -> dict[int, Replica]:
    """The replicas of the later version of a set, with the registrations that this table has too. A replica
    whose number differs between both versions registers again."""
    identities = {one.identity for one in reported.values()}
    rest = {
        number: one
        for number, one in known.items()
        if number not in reported and one.identity not in identities
    }
    joined = dict(reported)
    for number, one in reported.items():
        mine = known.get(number)
        if mine is not None and mine.identity == one.identity and mine.incarnation > one.incarnation:
            joined[number] = mine
    for number in sorted(rest):
        if len(joined) < REPLICAS_MAX:
            joined[number] = rest[number]
    return joined


def _is_of_another(known: BrokerSet | None, command: Register) -> str:
    """The reason why a broker may not follow or begin this set, when the broker's set or epoch is unknown to
    the table; empty when it may. Following, the broker would cut its log: the same epoch of two sets says
    nothing about two logs. If the broker began the set again, another replica might have more messages, or be
    master of the controllers that know the set."""
    identity = command.replica.identity
    if known is None:
        if not command.began:
            return ""
        lost = f"{identity} is of a set {command.name} that these controllers do not know"
    elif command.epoch > known.epoch:
        lost = f"{identity} knows epoch {command.epoch} of {known.name}, the controllers {known.epoch} only"
    elif command.began and known.began and command.began != known.began:
        lost = f"{identity} is of another set {known.name}, begun by {command.began}, not {known.began}"
    else:
        return ""
    return f"{lost}: they lost their table, or are those of another cluster (runbook: Lost controllers)"
