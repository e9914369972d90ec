"""Idempotent sends: a batch that its producer repeats is answered with the place of the first, and not stored
again.

IDEMPOTENT_SEND, a request of rmq, is a batch send that also names its producer and the number of its first
message; the numbers of the other messages follow. RocketMQ's clients never send it. The first stored message
of each batch gets a property with its place and its first number: so the whole table can be read from the log
again, by a broker that was killed and by a slave that has become master. This reading begins with the first
such request, a slice with each request.

A message counts as a repetition only if the stored message of the same number has the same body and
properties. So a message whose place was lost, to retention or with a topic, is stored again, and a producer
that gives the same numbers to other messages gets an error. A producer's name includes its account: two
accounts may use the same name independently.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import chain
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from rmq.broker.error_responses import unsupported
from rmq.errors import CorruptRecord, ResponseError, for_code
from rmq.plugin import account_of
from rmq.protocol.codes import FLAG_ONEWAY, IDEMPOTENT_SEND, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import PRODUCER_ID, SEQUENCE, SendMessageRequestHeader
from rmq.protocol.properties import PROPERTY_IDEMPOTENT_SEND
from rmq.protocol.record import decode_record, property_bytes
from rmq.shares import NOBODY, Holders, Shares
from rmq.store.writer import Batch

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.produce.acks import Acknowledgement
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store

SLICE_BYTES: Final = 8 << 20
"""Of the log that one request reads at most: some milliseconds."""
READ_BYTES: Final = 1 << 20
STAMP_MAX: Final = 512
"""No stamp is longer: topic and producer have 127 characters at most."""
PRODUCER_MAX: Final = 127
MESSAGES_MAX: Final = 1_000
"""Messages of a batch, as of our clients: each that is sent again is compared with the one that is stored."""
_SPARE: Final = 1000

_OF: Final = "\t"
"""Between an account and its producer: no producer's name has it."""
_MARK: Final = f"{PROPERTY_IDEMPOTENT_SEND}\x01".encode()
_SIZES: Final = Struct(">iiiii")
_SIZE: Final = Struct(">i")
_LENGTH: Final = Struct(">h")


@frozen
class Sent:
    """Consecutive messages that a request has stored: their numbers and places."""

    first: int
    count: int
    topic: str
    queue_id: int
    queue_offset: int
    producer: str
    stored_ms: int = 0
    holders: Holders = NOBODY

    @property
    def end(self) -> int:
        """The number after the last."""
        return self.first + self.count

    def stamp(self) -> bytes:
        """The property of its first message."""
        place = f"{self.topic} {self.queue_id} {self.queue_offset}"
        return _MARK + f"{place} {self.first} {self.count} {self.producer}\x02".encode()

    @classmethod
    def parse(cls, text: bytes) -> Sent | None:
        """The content of a stamp, without its name; None for any other text."""
        try:
            topic, queue_id, queue_offset, first, count, producer = text.decode().split(" ")
            found = cls(int(first), int(count), topic, int(queue_id), int(queue_offset), producer)
        except ValueError:
            return None
        return found if found.count > 0 <= found.first else None


class SentTable:
    """The idempotent sends, by topic and producer; in the order of their numbers and of time."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[Sent]] = {}
        self._by_age: deque[Sent] = deque()
        self.shares = Shares(0)

    @property
    def count(self) -> int:
        """Number of known batches."""
        return self.shares.used

    def among(self, topic: str, producer: str, first: int, end: int) -> list[Sent]:
        """The entries that have some of these numbers, in order."""
        found = self._of.get((topic, producer), [])
        low = bisect_right(found, first, key=_first) - 1
        if low < 0 or found[low].end <= first:
            low += 1
        return found[low : bisect_left(found, end, key=_first)]

    def add(self, sent: Sent) -> None:
        """Keep an entry in place of entries with the same numbers: a broker stores no known numbers again."""
        for old in self.among(sent.topic, sent.producer, sent.first, sent.end):
            self.remove(old)
            if old.first < sent.first:
                self._insert(evolve(old, count=sent.first - old.first))
        self._insert(sent)

    def _insert(self, sent: Sent) -> None:
        found = self._of.setdefault((sent.topic, sent.producer), [])
        found.insert(bisect_left(found, sent.first, key=_first), sent)
        self._by_age.append(sent)
        self.shares.add(sent.holders)

    def remove(self, sent: Sent) -> None:
        """Forget an entry, if present."""
        key = sent.topic, sent.producer
        found = self._of.get(key, [])
        at = bisect_left(found, sent.first, key=_first)
        if at < len(found) and found[at] is sent:
            del found[at]
            self.shares.give(sent.holders)
            if not found:
                del self._of[key]

    def expire(self, before_ms: int, now_ms: int) -> None:
        """Forget entries stored before that time. After the wall clock was set back, entries are as old as
        this is noticed: they would stay, and keep others out, until the clock is there again."""
        if self._by_age and self._by_age[0].stored_ms > now_ms:
            self._date_back(now_ms)
        while self._by_age and self._by_age[0].stored_ms < before_ms:
            self.remove(self._by_age.popleft())
        if (
            len(self._by_age) > 2 * self.count + _SPARE
        ):  # of writes that fail much is forgotten before its time
            self._by_age = deque(sorted(chain.from_iterable(self._of.values()), key=_age))

    def _date_back(self, now_ms: int) -> None:
        for entries in self._of.values():
            entries[:] = [evolve(sent, stored_ms=min(sent.stored_ms, now_ms)) for sent in entries]
        self._by_age = deque(sorted(chain.from_iterable(self._of.values()), key=_age))


def _first(sent: Sent) -> int:
    return sent.first


def _age(sent: Sent) -> int:
    return sent.stored_ms


@frozen
class Pieces:
    """The messages of a batch by position: `edges` are the begins of the messages, and the end."""

    body: bytes
    edges: list[int]

    @classmethod
    def of(cls, body: bytes) -> Pieces:
        """Check the form of a batch. Raises ResponseError; most batches are not checked further at this
        point."""
        edges, at, end, size_at = [0], 0, len(body), _SIZE.unpack_from
        while at + _SIZE.size <= end:
            (size,) = size_at(body, at)
            if size < _SIZES.size + 2:
                break
            at += size
            edges.append(at)
        if at != end:
            raise _illegal(f"the message before byte {at} of a batch has inconsistent lengths")
        if not body:
            raise _illegal("the batch has no message")
        if len(edges) > MESSAGES_MAX + 1:
            raise _illegal(f"the batch has {len(edges) - 1} messages, at most {MESSAGES_MAX} are taken")
        return cls(body, edges)

    def part(self, first: int, end: int) -> bytes:
        """The messages from `first` to before `end`."""
        return self.body[self.edges[first] : self.edges[end]]

    def one(self, number: int) -> bytes:
        """A message of a batch."""
        return self.part(number, number + 1)


class IdempotentSends:
    """Handles IDEMPOTENT_SEND, while the setting idempotentSendKeepTime is not 0.

    `send` stores a batch and answers its sender. `commit_pending` commits earlier messages, and reports a
    failure to their senders; `commit` commits the present messages, and raises StoreError.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        acknowledgement: Acknowledgement,
        *,
        send: Callable[[Command, Connection, int], None],
        commit_pending: Callable[[], None],
        commit: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._acknowledgement = acknowledgement
        self._send = send
        self._commit_pending = commit_pending
        self._commit = commit
        self.table = SentTable()
        self._unread: Iterator[None] | None = None
        self._is_read = False

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """Request codes and their handlers."""
        return {IDEMPOTENT_SEND: self.on_send}

    def on_send(self, request: Command, connection: Connection, now: int) -> None:
        """Store the messages of a batch that are not stored yet, and answer with the places of all."""
        keep_ms = self._settings.broker.idempotent_send_keep_time
        if not keep_ms:
            raise unsupported(request)
        header = request.read(SendMessageRequestHeader)
        pieces = Pieces.of(request.body)
        asked = _asked(request, header, len(pieces.edges) - 1, account_of(connection))
        # After the commit the messages of earlier requests can be read: they may include the same batch.
        self._commit_pending()
        self._read_log(now - keep_ms)
        if not self._store.retention.held(now):
            self.table.expire(now - keep_ms, now)
        known = self._known(asked, pieces)
        if not known:
            self._store_new(request, connection, now, asked)
            return
        for first, end in _gaps(asked, known):
            part = evolve(asked, first=first, count=end - first)
            body = pieces.part(first - asked.first, end - asked.first)
            one = Command(request.code, request.opaque, request.flag | FLAG_ONEWAY, request.ext, body)
            one.header = header
            self._store_new(one, connection, now, part)
            self._commit()
        self._answer(request, connection, asked)

    def _store_new(self, request: Command, connection: Connection, now: int, asked: Sent) -> None:
        shares, holders = self.table.shares, self._settings.holders_of(connection)
        # Beside one account or address that has as many as the setting says others may have some.
        shares.most = 2 * self._settings.broker.idempotent_sends_max
        if full := shares.full(holders):
            remark = f"of the batches known of idempotent producers (idempotentSendsMax) {full}"
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        queue = self._store.lane(asked.topic, asked.queue_id)
        sent = evolve(
            asked, queue_offset=queue.next if queue is not None else 0, stored_ms=now, holders=holders
        )
        request.body = _stamped(request.body, sent.stamp())
        self._send(request, connection, now)
        self.table.add(sent)  # if it cannot be committed, there is no such message at that place

    def _answer(self, request: Command, connection: Connection, asked: Sent) -> None:
        """Answer with the places of messages that are all stored, as safe as the settings ask."""
        places: list[int] = []
        first = None
        for sent in self.table.among(asked.topic, asked.producer, asked.first, asked.end):
            first = first or sent
            at = max(asked.first - sent.first, 0)
            for offset in range(
                sent.queue_offset + at, sent.queue_offset + min(sent.count, asked.end - sent.first)
            ):
                unit = self._store.unit(sent.topic, sent.queue_id, offset)
                assert unit is not None, "it was read a moment ago"
                places.append(unit[0])
        assert first is not None
        if not request.flag & FLAG_ONEWAY:
            batch = Batch(first.queue_offset + max(asked.first - first.first, 0), places, 0)
            self._acknowledgement.pending.waiting.append((request, first.queue_id, batch))
            self._acknowledgement.committed(connection)

    # ---- what is known ----

    def _known(self, asked: Sent, pieces: Pieces) -> list[Sent]:
        """The stored part of these messages. Raises ResponseError when other messages have their numbers."""
        known = []
        for sent in self.table.among(asked.topic, asked.producer, asked.first, asked.end):
            if self._is_there(sent):
                self._compare(sent, asked, pieces)
                known.append(sent)
            else:  # a write that failed, a topic that is gone, files that retention removed
                self.table.remove(sent)
        return known

    def _is_there(self, sent: Sent) -> bool:
        record = self._record(sent, 0)
        # After a tail was cut the first of a batch may be someone else's: the stamp tells.
        return record is not None and _has_stamp(record, sent)

    def _record(self, sent: Sent, number: int) -> memoryview | None:
        unit = self._store.unit(sent.topic, sent.queue_id, sent.queue_offset + number)
        return None if unit is None else self._store.read(unit[0])

    def _compare(self, sent: Sent, asked: Sent, pieces: Pieces) -> None:
        for number in range(max(sent.first, asked.first), min(sent.end, asked.end)):
            record = self._record(sent, number - sent.first)
            body, properties = _body_and_properties(pieces.one(number - asked.first))
            if record is None or not _is_same(record, body, properties):
                raise for_code(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message is illegal: producer {asked.producer.rpartition(_OF)[2]} has sent another "
                    f"as number {number}",
                )

    # ---- what the log says ----

    def _read_log(self, since_ms: int) -> None:
        """Read the log from `since` on. Raises ResponseError while more is to be read."""
        if self._is_read:
            return
        if self._unread is None:
            self._unread = self._reading(since_ms)
        for _ in self._unread:
            raise for_code(
                ResponseCode.SYSTEM_BUSY, "reading the log for earlier idempotent sends; try again"
            )
        self._unread, self._is_read = None, True

    def _reading(self, since_ms: int) -> Iterator[None]:
        """Take the stamps of the log into the table, and pause after each slice."""
        store = self._store
        at, end, taken = self._file_of(since_ms), store.max_physical_offset, 0
        while at < end:
            at = max(at, store.min_physical_offset)
            data = bytes(store.read_raw(at, READ_BYTES))
            if not data:
                break
            self._take_stamps(data)
            taken += len(data)
            is_last_of_file = len(data) < READ_BYTES or not (at + len(data)) % self._file_size
            at += len(data) if is_last_of_file else len(data) - STAMP_MAX
            if taken >= SLICE_BYTES and at < end:
                taken = 0
                yield

    def _take_stamps(self, data: bytes) -> None:
        at = data.find(_MARK)
        while at >= 0:
            start = at + len(_MARK)
            stop = data.find(b"\x02", start, start + STAMP_MAX)
            sent = Sent.parse(data[start:stop]) if stop > 0 else None
            if sent is not None:
                self._take(sent)
            at = data.find(_MARK, start)

    def _take(self, sent: Sent) -> None:
        """Keep a stamp if the message at its place has it: copies of the message have the stamp, too."""
        record = self._record(sent, 0)
        if record is None or not _has_stamp(record, sent):
            return
        message = decode_record(record, check_crc=False, decompressed=False)
        origin = message.born_timestamp, message.born_host
        low, high = 1, sent.count  # the log may have been cut in the middle of it, and others have come after
        while low < high:
            middle = (low + high + 1) // 2
            one = self._record(sent, middle - 1)
            last = None if one is None else decode_record(one, check_crc=False, decompressed=False)
            if last is not None and (last.born_timestamp, last.born_host) == origin:
                low = middle
            else:
                high = middle - 1
        self.table.add(evolve(sent, count=low, stored_ms=message.store_timestamp))

    @property
    def _file_size(self) -> int:
        return self._store.config.mapped_file_size_commit_log

    def _file_of(self, since_ms: int) -> int:
        """The begin of the newest file of the log that has everything stored since then."""
        store, size = self._store, self._file_size
        first = store.min_physical_offset
        at = max(store.max_physical_offset - 1, 0) // size * size
        while at > first:
            record = store.read(at)
            if record is not None:
                head = decode_record(record, check_crc=False, decompressed=False)
                if head.store_timestamp < since_ms:
                    return at
            at -= size
        return first


# ---- batches as they are sent ----


def _asked(request: Command, header: SendMessageRequestHeader, count: int, account: str) -> Sent:
    """The message of a request for an unknown place. Raises ResponseError."""
    producer, number = request.ext.get(PRODUCER_ID, ""), request.ext.get(SEQUENCE, "")
    if not header.batch or header.queue_id < 0:
        raise _illegal("idempotent sends are batches to a queue that they name")
    if not 0 < len(producer) <= PRODUCER_MAX or not producer.isascii() or not producer.isprintable():
        raise _illegal(
            f"{PRODUCER_ID} has {len(producer)} characters; 1 to {PRODUCER_MAX} of ASCII are expected"
        )
    if " " in producer or not number.isdecimal() or len(number) > 18:
        raise _illegal(f"{SEQUENCE} is a number from 0 on, and {PRODUCER_ID} has no blank")
    return Sent(int(number), count, header.topic, header.queue_id, 0, _owned(producer, account))


def _owned(producer: str, account: str) -> str:
    """The producer's name including its account, so that accounts have separate numbers. Consumers see
    stamps, so the account must not be readable in the name."""
    if not account:
        return producer
    return f"{blake2b(account.encode(), digest_size=8).hexdigest()}{_OF}{producer}"


def _gaps(asked: Sent, known: list[Sent]) -> list[tuple[int, int]]:
    """The numbers that are asked for and not known: (first, end) of each gap."""
    edges = [asked.first]
    for sent in known:
        edges += [sent.first, sent.end]
    edges.append(asked.end)
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


def _illegal(what: str) -> ResponseError:
    return for_code(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {what}.")


def _body_and_properties(piece: bytes) -> tuple[bytes, bytes]:
    """Raises ResponseError."""
    size, _, _, _, length = _SIZES.unpack_from(piece)
    text_at = _SIZES.size + length
    try:
        (text_length,) = _LENGTH.unpack_from(piece, text_at)
    except struct_error:
        text_length = -1
    if length < 0 or text_length < 0 or text_at + 2 + text_length != size:
        raise _illegal("a message of a batch has inconsistent lengths")
    return piece[_SIZES.size : text_at], piece[text_at + 2 :]


def _stamped(batch: bytes, stamp: bytes) -> bytes:
    """Add a property to the first message of a batch, in front of its properties."""
    first = batch[: int.from_bytes(batch[:4], "big")]
    body, properties = _body_and_properties(first)
    head = _SIZES.pack(len(first) + len(stamp), *_SIZES.unpack_from(first)[1:])
    try:
        length = _LENGTH.pack(len(properties) + len(stamp))
    except struct_error:
        raise _illegal("its properties are too long") from None
    return b"".join((head, body, length, stamp, properties, batch[len(first) :]))


# ---- records ----


def _has_stamp(record: memoryview, sent: Sent) -> bool:
    """True if a record is the first of `sent`; the count of `sent` may have been cut."""
    try:
        properties = property_bytes(record)
    except CorruptRecord:
        return False
    start = f"{sent.topic} {sent.queue_id} {sent.queue_offset} {sent.first} ".encode()
    producer = f" {sent.producer}\x02".encode()
    text = properties[len(_MARK) : properties.find(b"\x02") + 1]
    return properties.startswith(_MARK + start) and text.endswith(producer)


def _is_same(record: memoryview, body: bytes, properties: bytes) -> bool:
    """True if a stored message equals a sent message: the broker adds properties to the sender's."""
    try:
        return decode_record(record, check_crc=False, decompressed=False).body == body and (
            properties in property_bytes(record)
        )
    except CorruptRecord:
        return False
