"""Copying the log from a master to its slaves: both ends of the wire, as bytes and offsets.

The protocol is RocketMQ 4.9's, on a port of its own. The slave reports the end of its log: 8 bytes. The
master answers with frames: 8 bytes of physical offset, 4 bytes of size, raw log bytes; size 0 is a heartbeat.
The first report opens the copying; 0 requests the newest log file from its start. Every later report
acknowledges the log up to its offset.

Between servers of rmq the protocol has more. A slave that begins with HELLO gets a note: a frame at offset
NOTE whose bytes are JSON. The first note identifies the master's log, its begin and its end. The slave may
then request, by `question`, the record at an offset, and gets its size and hash. Its first report opens the
copying at exactly that offset. From then on notes come between the frames, about the log so far: `safe` is
the offset up to which messages may have been acknowledged (null: everywhere), `progress` the progress of
delayed deliveries; rows of tables come the same way (`replication.table_replication`). Between its reports
the slave sends its long polls (`failover.poll_handover`), if the first note says `hearsWaiting`, and the
topics that it knows as deleted, if the first note says `hearsSaved`: 8 bytes with the number of bytes of JSON
that follow. A RocketMQ master takes HELLO for a report without effect, and a RocketMQ slave never sends
HELLO.

With a secret, both sides prove before the first byte of replication that they have the secret:

    slave  -> master   MAGIC, 32 random bytes
    master -> slave    MAGIC, 32 random bytes of its own
    slave  -> master   HMAC-SHA256 of both, under the secret
    master -> slave    the same under another label: the slave knows its master too

MAGIC comes where a slave without a secret reports its offset, and is greater than any offset. Both proofs
cover the random bytes of both sides: a recorded proof is useless later, and no proof can be sent back to its
sender. The secret is never sent. The proofs authenticate the peer; only TLS hides the log.

A slave's log must continue its master's log. A slave by itself cuts no more than the end of its log that was
never acknowledged. Below that end the slave keeps everything, whatever its master has or lacks: a master that
lost its disk, came back with an old disk, or is another broker altogether is `Diverged`, and an operator
decides.

The module does no I/O: the caller moves the bytes and gives the time (seconds of a clock that never runs
back).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Callable, Generator, Mapping
from heapq import nlargest
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from rmq.broker.replication import epoch_history
from rmq.controller.epochs import Epochs, as_epochs
from rmq.errors import RemoteProtocolError, RmqError
from rmq.protocol import json

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.store.store import Store
else:
    from rmq.lazy_attrs import frozen


REPORT: Final = Struct(">q")
FRAME: Final = Struct(">qi")

HELLO: Final = REPORT.pack(-1)
_NAMED: Final = -(1 << 63)
_EPOCH_BITS: Final = 48
_NAMED_END: Final = -(1 << 62)
_TEXT: Final = _NAMED
"""And the length: of a text that follows, once the slave has reported."""
NOTE: Final = -1
"""The offset of a frame that is a note."""

SLAVE_FRAME_MAX: Final = 4 * 1024 * 1024
"""Bytes of a frame that a slave takes; Java's slave reads into a buffer of that size."""

QUESTIONS_MAX: Final = 1_000
"""Questions of one link; a search by halves needs about 40."""
TEXT_MAX: Final = 1 << 20
"""Bytes of a slave's text about pulls that wait there: such rows with the longest names."""

NEWS_SECONDS: Final = 1.0
"""Seconds between two notices of news to a slave that lags, or whose master only syncs."""
CONFIRMED_SECONDS: Final = 0.01
"""Shortest time in seconds between two notices of the readable end to a slave at which consumers wait."""


@frozen
class MasterLog:
    """A master's greeting: id of the log, offsets of its first byte and of its end, bytes of a log file,
    `safe` as above, the address that answers requests, and `leader`, which identifies the master for as long
    as it is master. In a set with controllers also its `epoch`, and the offsets at which `epochs` begin in
    its log."""

    log_id: str
    start: int
    end: int
    file_size: int = 0
    safe: int | None = None
    address: str = ""
    leader: str = ""
    epoch: int = 0
    epochs: Epochs = ()
    hears_waiting: bool = False
    """True if it takes slaves' reports of pulls that wait there."""
    hears_saved: bool = False
    """True if it takes slaves' reports of their files of topics and groups, and of topics deleted there."""

    def to_note(self) -> dict[str, Any]:
        """The first note."""
        return {
            "logId": self.log_id,
            "start": self.start,
            "end": self.end,
            "fileSize": self.file_size,
            "safe": self.safe,
            "address": self.address,
            "leader": self.leader,
            **({"epoch": self.epoch, **epoch_history.part(self.epochs)} if self.epoch else {}),
            **({"hearsWaiting": True} if self.hears_waiting else {}),
            **({"hearsSaved": True} if self.hears_saved else {}),
        }

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> MasterLog:
        """Raises RemoteProtocolError."""
        try:
            return cls(
                str(note["logId"]),
                int(note["start"]),
                int(note["end"]),
                int(note["fileSize"]),
                None if note["safe"] is None else int(note["safe"]),
                str(note["address"]),
                str(note["leader"]),
                int(note.get("epoch", 0)),
                as_epochs(note.get("epochs", ())),
                note.get("hearsWaiting") is True,
                note.get("hearsSaved") is True,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"the master's greeting cannot be read: {error!r}") from None


def encode_note(note: Mapping[str, Any]) -> bytes:
    """A note's frame."""
    data = json.dumps(note)
    return FRAME.pack(NOTE, len(data)) + data


def decode_note(data: bytes) -> dict[str, Any]:
    """The content of a note. Raises RemoteProtocolError."""
    note = json.loads(data)
    if not isinstance(note, dict):
        raise RemoteProtocolError("a note of the master is no JSON object")
    return note


def named_hello(number: int, epoch: int) -> bytes:
    """The word in place of HELLO in a set with controllers: the number of the replica, and the epoch that it
    follows. The link and its reports belong to that epoch."""
    assert 0 < number << _EPOCH_BITS <= _NAMED_END - _NAMED, number
    return REPORT.pack(_NAMED + (number << _EPOCH_BITS) + epoch)


def question(physical_offset: int) -> bytes:
    """The request to a master for the record at an offset."""
    return REPORT.pack(-2 - physical_offset)


def fingerprint(record: bytes | memoryview | None) -> dict[str, Any]:
    """Size and hash that identify a record; size 0 for no record."""
    if record is None:
        return {"size": 0, "sha256": ""}
    return {"size": len(record), "sha256": hashlib.sha256(record).hexdigest()}


class WaitingPolls(Protocol):
    """Long polls that wait at one slave; see `failover.poll_handover`."""

    def __len__(self) -> int: ...

    def take(self, text: bytes) -> None:
        """Take over the rows from the slave. Raises RemoteProtocolError."""

    def answer(self) -> int:
        """Answer the polls in place of the slave, and forget them; returns how many were answered."""


class MasterSession:
    """The master's end of the link to a slave.

    `acknowledged` is the end of the slave's log in its last report, -1 before the first. `greet` makes the
    greeting of a slave of rmq; it may raise StoreError. `safe` and `progress` go out with the log. `tables`,
    given the time, returns the notes that go out before the next bytes of the log. `has_all_rows`: whether
    `tables` has sent everything. `admit` takes number and epoch of a replica of a set with controllers, and
    raises RemoteProtocolError for a replica that does not belong; `number` is its number, 0 for any other
    slave. `confirmed` is the high watermark of such a set, sent like `safe`, and soon when long polls wait at
    the slave, which `waiting` is told of. `deleted` takes the topics that were deleted at a replica and not
    at this broker, by name, with the times (ms) of their creations.
    """

    def __init__(
        self,
        store: Store,
        now: float,
        *,
        heartbeat_s: float = 5.0,
        greet: Callable[[], MasterLog] | None = None,
        safe: Callable[[], int | None] = lambda: None,
        progress: Callable[[], Mapping[str, Any]] = dict,
        admit: Callable[[int, int], None] | None = None,
        tables: Callable[[float], Mapping[str, Any] | None] = lambda now: None,
        has_all_rows: Callable[[], bool] = lambda: True,
        confirmed: Callable[[], int | None] = lambda: None,
        heard: Callable[[int], None] | None = None,
        rows_had: Callable[[str], int] = lambda table: -1,
        waiting: WaitingPolls | None = None,
        deleted: Callable[[Mapping[str, int]], None] | None = None,
    ) -> None:
        self.number = 0
        self._deleted = deleted
        self.waiting = waiting
        self.rows_had = rows_had
        self._heard = heard
        self.has_all_rows = has_all_rows
        self._admit = admit
        self._store = store
        self._greet = greet
        self._safe = safe
        self._confirmed = confirmed
        self._progress = progress
        self._tables = tables
        self._is_ours = False  # the slave said HELLO
        self._epochs: Epochs = ()  # it may ask for more of these
        self._questions = 0
        self._notes: deque[bytes] = deque()  # to be sent before anything else
        self._news: tuple[int, bytes] | None = None  # a note, and the end of the log that it is about
        self._sent_state: tuple[int | None, int | None, Mapping[str, Any]] = (None, None, {})
        self._confirmed_sent, self._confirmed_at = -1, now - CONFIRMED_SECONDS
        self._state_at = now
        self._heartbeat_s = heartbeat_s
        self._frame_bytes = min(store.config.ha_transfer_batch_size, SLAVE_FRAME_MAX - FRAME.size)
        self._partial = b""
        self._next = -1  # physical offset of the next byte to send
        self._sent_at = now
        self.acknowledged = -1

    @property
    def position(self) -> int:
        """Physical offset of the next byte to send; -1 until the slave has reported."""
        return self._next

    def received(self, data: bytes) -> None:
        """Take bytes of the slave.

        Raises RemoteProtocolError for an offset that the slave cannot have: below zero, or above the last
        byte that was sent. A forged acknowledgement would make a send count as replicated.
        """
        data = self._partial + data
        at, end = 0, len(data)
        while at + REPORT.size <= end:
            word = REPORT.unpack_from(data, at)[0]
            stop = at + REPORT.size
            if word < _NAMED_END and self._next >= 0 and self.waiting is not None:
                stop += word - _TEXT
                if stop - at > TEXT_MAX:
                    raise RemoteProtocolError(f"the slave's report of waiting pulls has {stop - at} bytes")
                if stop > end:
                    break
                self._take_text(data[at + REPORT.size : stop])
            else:
                self._reported(word)
            at = stop
        self._partial = data[at:]

    def _take_text(self, text: bytes) -> None:
        if not text.startswith(b"{"):
            if self.waiting is not None:
                self.waiting.take(text)
            return
        try:
            deleted = {str(topic): int(ms) for topic, ms in json.loads(text)["deleted"].items()}
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise RemoteProtocolError(f"the slave's deleted topics cannot be read: {error!r}") from None
        if self._deleted is not None and self.number:
            self._deleted(deleted)

    def _reported(self, offset: int) -> None:
        if self._next < 0 and offset < 0:
            self._converse(offset)
            return
        if self._next < 0:
            self._open(offset)
        elif offset < NOTE and self._is_ours and self._heard is not None:
            self._heard(NOTE - 1 - offset)
            return
        elif not 0 <= offset <= self._next:
            raise RemoteProtocolError(f"the slave acknowledges {offset}, but only {self._next} was sent")
        # A slave keeps the bytes that it has reported: a late report takes nothing back.
        self.acknowledged = max(self.acknowledged, offset)
        assert self.acknowledged <= self._next, (self.acknowledged, self._next)

    def _converse(self, number: int) -> None:
        if number < _NAMED_END and self._admit is not None and not self._is_ours:
            replica, epoch = divmod(number - _NAMED, 1 << _EPOCH_BITS)
            self._admit(replica, epoch)
            self.number, number = replica, NOTE
        if number == NOTE and self._greet is not None and not self._is_ours:
            self._is_ours, greeting = True, self._greet()
            self._epochs = greeting.epochs
            self._notes.append(encode_note(greeting.to_note()))
            return
        self._questions += 1
        if number == NOTE or not self._is_ours or self._questions > QUESTIONS_MAX:
            raise RemoteProtocolError(f"the slave reports {number}")
        if (before := epoch_history.asked_before(number)) is not None:
            self._notes.append(encode_note(epoch_history.part(self._epochs, before)))
            return
        offset = -2 - number
        self._notes.append(encode_note({"at": offset, **fingerprint(self._store.read(offset))}))

    def _open(self, offset: int) -> None:
        low, high = self._store.min_physical_offset, self._store.max_physical_offset
        if not 0 <= offset <= high:
            raise RemoteProtocolError(f"the slave's log reaches {offset}, ours only {high}: it must be cut")
        # Like RocketMQ's master: an empty slave gets the log from the start of its last file.
        if offset == 0 and not self._is_ours:
            offset = high - high % self._store.config.mapped_file_size_commit_log
        if offset < low:
            raise RemoteProtocolError(
                f"the slave's log reaches {offset}, ours begins at {low}: copy the whole log again"
            )
        self._next, self._epochs = offset, ()

    def frame(self, now: float, most: int | None = None) -> bytes:
        """The next frame to send: log bytes if any, a heartbeat when due, else nothing. `most` bounds the
        physical offset that may be sent, for a master that sends only bytes that are on its disk."""
        if self._notes:
            return self._notes.popleft()
        if self._next < 0:
            return b""
        if self._is_ours and (news := self._due_news(now)):
            return news
        if self._is_ours and (note := self._tables(now)):
            self._sent_at = now
            return encode_note(note)
        if self.is_to_confirm(now):
            self._confirmed_sent, self._confirmed_at = self._confirmed() or 0, now
            self._sent_at = now
            return encode_note({"confirmed": self._confirmed_sent})
        limit = self._store.max_physical_offset if most is None else most
        if limit > self._next:
            body = self._store.read_raw(self._next, min(self._frame_bytes, limit - self._next))
            head = FRAME.pack(self._next, len(body))
            self._next += len(body)
            self._sent_at = now
            return head + body
        if now - self._sent_at >= self._heartbeat_s:
            self._sent_at = now
            return FRAME.pack(self._next, 0)
        return b""

    def is_to_confirm(self, now: float) -> bool:
        """True if consumers that wait at this slave may read further than the slave knows."""
        if not self.waiting or now < self._confirmed_at + CONFIRMED_SECONDS:
            return False
        confirmed = self._confirmed()
        return confirmed is not None and self._confirmed_sent < confirmed <= self.acknowledged

    def _due_news(self, now: float) -> bytes:
        """The note that is to be sent now, if any: only behind all of the log that it is about."""
        end = self._store.max_physical_offset
        late = now - self._state_at >= NEWS_SECONDS
        if self._news is None and (late or self._next == end):
            safe, confirmed, progress = self._safe(), self._confirmed(), self._progress()
            if progress != self._sent_state[2] or (late and (safe, confirmed) != self._sent_state[:2]):
                self._sent_state = safe, confirmed, progress
                more = {} if confirmed is None else {"confirmed": confirmed}
                self._news = end, encode_note({"safe": safe, "progress": progress} | more)
            if late:
                self._state_at = now
        # A note speaks of the log up to an end, and goes out behind that end: a slave that has the note has
        # all records that it is about, so that it may become master with it.
        if self._news is None or self._next < self._news[0]:
            return b""
        note, self._news = self._news[1], None
        self._state_at = self._sent_at = now
        return note


class SlaveSession:
    """The slave's end: checks that frames continue its log, and makes its reports. `rows` gives the news
    about tables since the last call, `waiting` the news about long polls.

    `append(physical_offset, data)` writes log bytes; `reach()` is the end of the log, `safe()` the offset
    that may be reported (`reach` by default). `noted` takes the master's notes, if given. `reported` is the
    highest reported offset.
    """

    def __init__(
        self,
        append: Callable[[int, memoryview], object],
        reach: Callable[[], int],
        now: float,
        *,
        safe: Callable[[], int] | None = None,
        noted: Callable[[dict[str, Any]], None] | None = None,
        rows: Callable[[], list[int]] = list,
        waiting: Callable[[], bytes] = bytes,
        heartbeat_s: float = 5.0,
    ) -> None:
        self._rows = rows
        self._waiting = waiting
        self._append = append
        self._reach = reach
        self._safe = safe or reach
        self._noted = noted
        self._heartbeat_s = heartbeat_s
        self._partial = bytearray()
        self._reported_at = -heartbeat_s + now
        self.reported = -1

    def received(self, data: bytes) -> int:
        """Take bytes of the master; return the number of log bytes written.

        Raises RemoteProtocolError for a frame that does not continue the log, and StoreError for a failed
        write; the link must end after either.
        """
        partial = self._partial
        partial += data
        at = written = 0
        view = memoryview(partial)
        try:
            while len(partial) - at >= FRAME.size:
                offset, size = FRAME.unpack_from(partial, at)
                if not 0 <= size <= SLAVE_FRAME_MAX:
                    raise RemoteProtocolError(f"the master sends a frame of {size} bytes")
                stop = at + FRAME.size + size
                if stop > len(partial):
                    break
                if offset == NOTE and self._noted is not None:
                    self._noted(decode_note(bytes(view[at + FRAME.size : stop])))
                    at = stop
                    continue
                self._check(offset)
                if size:
                    self._append(offset, view[at + FRAME.size : stop])
                    written += size
                at = stop
        finally:
            view.release()
        del partial[:at]
        return written

    def _check(self, offset: int) -> None:
        # An empty log reaches 0 where no master said where it begins: it begins with the first frame then.
        reach = self._reach()
        if offset < 0 or reach not in (0, offset):
            raise RemoteProtocolError(f"the master sends from {offset}, our log reaches {reach}")

    def report(self, now: float) -> bytes:
        """The report to send: at once after the log has grown, else every heartbeat."""
        # The master counts reported bytes as safe on this slave, and answers producers: with SYNC_FLUSH only
        # bytes on our disk are reported, not all received bytes.
        reach = self._safe()
        rows = b"".join([REPORT.pack(NOTE - 1 - number) for number in self._rows()])
        if self.reported >= 0 and (text := self._waiting()):
            rows += REPORT.pack(_TEXT + len(text)) + text
        if reach == self.reported and now - self._reported_at < self._heartbeat_s:
            return rows
        self.reported, self._reported_at = reach, now
        return REPORT.pack(reach) + rows


MAGIC: Final = b"rmq-ha/1"
NONCE_BYTES: Final = 32
GREETING_BYTES: Final = len(MAGIC) + NONCE_BYTES
PROOF_BYTES: Final = 32
SECRET_KEY: Final = "haSecretFile or clusterSecretFile"


class Challenge:
    """A side of the exchange of proofs. `nonce` is NONCE_BYTES random bytes, never used before; `others` are
    further secrets that a master accepts."""

    def __init__(self, secret: bytes, nonce: bytes, *, master: bool, others: tuple[bytes, ...] = ()) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._others = others
        self._master = master
        self._nonces = {master: nonce}
        self.greeting = MAGIC + nonce

    def greeted(self, greeting: bytes) -> None:
        """Take the peer's greeting. Raises RemoteProtocolError."""
        if not greeting.startswith(MAGIC):
            raise RemoteProtocolError(f"it does not prove that it has the secret: set {SECRET_KEY} there")
        nonce = greeting[len(MAGIC) :]
        if hmac.compare_digest(nonce, self._nonces[self._master]):
            raise RemoteProtocolError("it repeats our own challenge")
        self._nonces[not self._master] = nonce

    def proof(self) -> bytes:
        """The proof to the peer that we have the secret."""
        return self._proof(self._secret, self._master)

    def check(self, proof: bytes) -> None:
        """Raises RemoteProtocolError unless the peer's proof is right."""
        for secret in (self._secret, *self._others):
            if hmac.compare_digest(proof, self._proof(secret, not self._master)):
                self._secret = secret  # a master answers with the one that the slave has
                return
        raise RemoteProtocolError(f"it has another secret: compare the files of {SECRET_KEY}")

    def _proof(self, secret: bytes, master: bool) -> bytes:
        label = b"rmq ha master" if master else b"rmq ha slave"
        return hmac.digest(secret, label + self._nonces[False] + self._nonces[True], hashlib.sha256)


Search = Generator[int, bool, "int | None"]
"""Yields physical offsets; is sent whether the master has the record that we have there."""


class Diverged(RmqError):
    """The log of a slave does not continue its master's; the text has the reason."""

    hint = "compare both folders; haDivergedLog=aside gives this slave's log up and copies the master's"


class Expired(RmqError):
    """The master has deleted the records that follow a slave's log; the text has the offsets."""

    hint = "the slave sets its log aside and copies the master's from its start"


def begin(store: Store, master: MasterLog, log_id: str) -> None:
    """Check that comparing records makes sense. `log_id` is our log's, empty without an id. Raises Diverged,
    Expired."""
    if log_id and master.log_id and log_id != master.log_id:
        raise Diverged(
            f"the master's log ({master.log_id}, {master.start} to {master.end}) is another one than ours"
            f" ({log_id}, {store.min_physical_offset} to {store.max_physical_offset}): it lost its disk, or"
            " it is not our master"
        )
    size = store.config.mapped_file_size_commit_log
    if master.file_size and master.file_size != size:
        raise Diverged(
            f"the master's log files have {master.file_size} bytes, ours {size}: mappedFileSizeCommitLog must"
            " be the same"
        )
    if store.max_physical_offset < master.start:
        raise Expired(
            f"our log ends at {store.max_physical_offset}, the master's begins at {master.start}: the"
            " messages between have expired at the master"
        )


def check_cut(store: Store, master: MasterLog, cut: int, kept: int) -> None:
    """Check that our log may be cut at `cut`. `kept` is the offset up to which messages may have been
    acknowledged. Raises Diverged."""
    if cut < kept:
        raise Diverged(
            f"our log, which reaches {store.max_physical_offset}, is the same as the master's, which reaches"
            f" {master.end}, only up to {cut}, but messages up to {kept} may have been acknowledged"
        )


def find_cut(store: Store, theirs: int) -> Search:
    """Offset at which the own log must end so that the master's, which reaches `theirs`, can follow; None
    when no cut is needed. Logs that differ at an offset differ everywhere behind it, so the last common
    record is found by halving."""
    reach = store.max_physical_offset
    last = last_record(store, min(reach, theirs))
    if last is not None and (yield last[0]):
        return None if reach <= theirs else last[1]
    cut = low = store.min_physical_offset
    high = 0 if last is None else last[0]  # where the first record starts that is known to differ
    while low < high:
        # Every record that ends at `low` or before is known to be common; the last of them ends at `cut`.
        assert cut <= low
        limit = (low + high + 1) // 2
        middle = last_record(store, limit)
        if middle is None or middle[0] < cut:
            low = limit
        elif (yield middle[0]):
            low, cut = limit, middle[1]
        else:
            high = middle[0]
    return cut


def last_records(store: Store, count: int) -> list[int]:
    """Offsets of the last `count` records that queues know, the last first."""
    last: list[tuple[int, str, int]] = []
    for topic, queue_id in store.queues():
        unit = store.unit(topic, queue_id, store.max_offset(topic, queue_id) - 1)
        if unit is not None:
            last.append((unit[0], topic, queue_id))
    found: list[int] = []
    # A record is among the last ones only if its queue's last record is.
    for _, topic, queue_id in nlargest(count, last):
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        units = (store.unit(topic, queue_id, at) for at in range(max(low, high - count), high))
        found += [unit[0] for unit in units if unit is not None]
    return nlargest(count, found)


def last_record(store: Store, limit: int) -> tuple[int, int] | None:
    """Start and end of the last record that a queue knows and that ends at or before `limit`."""
    found = None
    for topic, queue_id in store.queues():
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            unit = store.unit(topic, queue_id, middle)
            if unit is not None and unit[0] + unit[1] <= limit:
                low = middle + 1
                if found is None or unit[0] > found[0]:
                    found = unit[0], unit[0] + unit[1]
            else:
                high = middle
    return found
