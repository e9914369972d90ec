"""The interface of the compiled engine. Unless a docstring differs, each function behaves as its counterpart
in Python."""

from collections.abc import Callable, Collection, Mapping, Sequence
from mmap import mmap
from typing import Any, TypeAlias, overload

from rmq.protocol.command import Command

SEAM: int

class SendRun:
    """Consecutive plain sends of one chunk: SEND_MESSAGE_V2 with a response, no batch, in ASCII, without
    properties that need a slower path, to queues with lanes. A run stands among the commands of a chunk."""

    count: int
    largest: int
    """Bytes of the largest body."""
    flag: int
    """The flag of a command: that of a request."""
    account: str | None
    """The account of all sends; None without an account, and where `Lanes.is_signed` was not set."""

    def topics(self) -> list[str]:
        """The topics of the sends, each once."""

    def signed(self) -> list[tuple[bytes, bytes, str, str]]:
        """For each send in order: the bytes that its signature or proof covers, as in
        rmq.protocol.auth.signature; the signature or proof; nonce and time of a proof, empty for a signature.
        Empty without an account."""

    def __len__(self) -> int:
        """The number of sends: `count`."""

    def placed(self) -> list[tuple[int, int, int]]:
        """(queue id, physical offset, queue offset) of each send, once the run is put."""

    def commands(self) -> list[Command]:
        """The sends as commands, for the slower path."""

    def replies(
        self, json_parts: tuple[bytes, ...], binary_fields: bytes, language: int, version: int
    ) -> bytes:
        """The frames of the responses for stored sends, each in the form of its request.

        `json_parts` are the parts before, between and after queue id, physical offset, queue offset and
        opaque; `binary_fields` is the part before the physical offset.
        """

class Lanes:
    """The queues that accept plain sends. A caller that changes a fact about a queue calls `clear`, and
    earlier runs take the slower path."""

    suffix: bytes
    """Stored after the properties of each message."""
    is_indexed: bool
    """True if `commit` returns entries for the index."""
    is_open: bool
    """True if runs are made at all."""
    is_signed: bool
    """True if runs are of one account each, and keep the signed bytes; otherwise only unsigned sends are
    plain."""

    def __init__(
        self,
        rare: Collection[str],
        store_host: bytes,
        host_flag: int,
        born_v6_flag: int,
        sender_flags: int,
        pulls: PullLanes | None = None,
        takes: TakeLanes | None = None,
    ) -> None:
        """`rare` are the names of properties that no plain send has, `sender_flags` the bits of the sys flag
        that it may have, the other two the bits for hosts. With the lanes of `pulls` and `takes`, `split`
        makes their runs too."""

    def add(self, queue: Any, sys_flag: int) -> None:
        """Open the lane of a ConsumeQueue; its records get these bits too."""

    def clear(self) -> None:
        """Close all lanes."""

    @property
    def wants_more(self) -> bool:
        """True if `take_wanted` would return any."""

    def open_topic(self, topic: str, queues: int) -> None:
        """Let `CallSends` take sends to a topic, in its first `queues` queues, until `clear`."""

    def is_open_topic(self, topic: str) -> bool:
        """True if `open_topic` was called for the topic."""

    def take_wanted(self) -> set[tuple[str, int]]:
        """Queues without a lane, as (topic, queue id), of sends since the last call; not all of them."""

    def split(
        self, data: bytes, max_frame: int, max_header: int, most: int
    ) -> tuple[list[Command], int, int]:
        """Split frames as `rmq.protocol.frames.split_frames` does, with a SendRun or PullRun in place of each
        run, and count the frames."""

    def put(
        self,
        run: SendRun,
        queues: Mapping[tuple[str, int], Any],
        position: int,
        left: int,
        now: int,
        born_host: bytes,
    ) -> bytes | None:
        """The records of a run, for the log at `position`, in whose file `left` bytes are left; None when the
        run must take the slower path. More runs may follow at the log's next place, then `commit` or
        `rollback`."""

    def counts(self) -> list[tuple[str, int, int]]:
        """(topic, messages, bytes) for each queue of the runs that are being put."""

    def commit(self, now: int) -> tuple[list[tuple[Any, int, bytes]], Rows | None]:
        """Note that the runs are in the log; return the entries of their queues, as (queue, number, units),
        and of the index."""

    def rollback(self) -> None:
        """Note that the runs are not in the log."""

class Rows:
    """Rows for the index, (key hash, physical offset, store timestamp) each, in the order of the log."""

    records: int
    """The number of their records, of which some may have no rows."""

    def __len__(self) -> int:
        """The number of rows."""

    @overload
    def __getitem__(self, at: int) -> tuple[int, int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...
    def split(self, records: int) -> tuple[Rows, Rows]:
        """The rows of the first `records` records, and the other rows. Do not use this object afterwards."""

def key_rows(entries: Sequence[tuple[str, tuple[str, ...], int, int] | Rows]) -> Rows:
    """Same as `rmq.store.files.index.KeyHash.rows`; entries may be rows already."""

def pack_entries(
    view: memoryview,
    rows: Rows,
    count: int,
    used: int,
    slots: int,
    begin: int,
    entries_at: int,
) -> tuple[int, int]:
    """Same as `rmq.store.files.index.pack_entries`."""

def build_batch(
    batch: bytes,
    suffix: bytes,
    place: tuple[int, int, int, int],
    born: tuple[int, bytes],
    stored: tuple[int, bytes],
    reconsume_times: int,
    topic: bytes,
    is_indexed: bool,
    is_marked: bool,
) -> tuple[bytes, list[int], bytes, Rows | None] | None:
    """Build a batch as `rmq.protocol.record.build_batch` does: the records, their physical offsets, the units
    of their queue, and their rows for the index if it `is_indexed`. `is_marked`: the suffix has tags or keys.
    None for a batch that is not plain: not whole, with a topic or properties that are not ASCII, or too
    long."""

def batch_ids(prefix: bytes, positions: list[int]) -> bytes:
    """The offset message ids of a batch, separated by commas; each begins with `prefix`."""

def read(
    units: bytes | bytearray | memoryview,
    log_start: int,
    log_end: int,
    old: int,
    most: tuple[int, int],
    most_old: tuple[int, int],
    matches: Callable[[int], bool] | None,
    file_view: Callable[[int], tuple[int, memoryview]],
    small: int,
) -> tuple[int, int, int, int, int, list[bytes | memoryview] | None]:
    """Same as `rmq.store.reader.choose`, with the bytes of the ranges in place of the ranges: if there are
    several, of less than `small` bytes on average, as one copy. `file_view(address)` gives the begin of the
    file that holds an address, and its bytes. None if a range does not lie in a single file."""

# Plain sends of gRPC; they are in `_grpc.pxi`.

class CallSends:
    """Reads requests of gRPC's SendMessage into runs."""

    def __init__(self, lanes: Lanes, reserved: Collection[str]) -> None:
        """For the open topics of `lanes`; no property of an application may have a name of `reserved`."""

    def begin(self, data: bytes) -> SendRun | None:
        """A run without sends, for requests in `data`; None while no send is plain."""

    def take(self, run: SendRun, begin: int, end: int, call: int, turn: int, now: int, host: bytes) -> bool:
        """Take the SendMessageRequest between two places in the data of a run into the run; False for one
        that is not plain, with the run unchanged. The message is the `turn`th whose queues take turns, comes
        at `now` (ms) from `host`, and its answer goes to the stream `call`."""

    def answers(self, run: SendRun, parts: tuple[bytes, ...]) -> tuple[bytes, int]:
        """The frames of HTTP/2 that answer the sends of a run, which are stored, and how many of their bytes
        are data. `parts` are the block of the headers; the status of an answer, the key of its entry, the
        entry's status, the keys of the message id and of the offset; and the block of the trailers."""

# Answers to gRPC's ReceiveMessage; they are in `_receives.pxi`.

def plain_records(data: bytes, magic: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """The good records with two IPv4 hosts and a body that is not compressed, from the first on up to any
    other: the place in `data`, the queue offset, the physical offset and the bytes of the body of each; and
    the place behind them."""

class CallMessages:
    """Writes stored records as the ReceiveMessageResponse of each."""

    def __init__(
        self,
        parts: tuple[bytes, ...],
        silent: Collection[str],
        special: Collection[str],
        md5: Callable[[bytes], Any],
    ) -> None:
        """`parts` are `rmq_grpc.encoding.MESSAGE_PARTS`. Clients do not see the properties `silent`; records
        with a property of `special` are not plain. `md5` is that of hashlib."""

    def message(self, data: bytes, at: int, handle: str, attempt: int, invisible_ms: int) -> bytes | None:
        """The answer for the record of `plain_records` at a place in `data`; None for one that is not
        plain."""

# Pulls in runs; they are in `_pulls.pxi`.

class PullRun:
    """Consecutive plain pulls of one chunk, 32 at most: in JSON and ASCII, from queues that have lanes and
    the wanted offset, of clients of one language. A run stands among the commands of a chunk."""

    count: int
    flag: int
    """The flag of a command: that of a request."""
    commits: bool
    """True if any of them commits an offset."""
    language: str

    def __len__(self) -> int:
        """The number of pulls: `count`."""

    def commands(self, first: int = 0) -> list[Command]:
        """The pulls from number `first` on as commands, for the slower path."""

    def committed(self, first: int, stop: int) -> list[tuple[int, str, str, int, int]]:
        """The commits of the pulls from number `first` to before `stop`: (number, group, topic, queue id,
        offset)."""

    def given(self, first: int, stop: int) -> list[tuple[str, str, int, int, int]]:
        """The answered pulls from number `first` to before `stop`: (topic, group, queue id, messages,
        bytes)."""

class PullLanes:
    """The queues that plain pulls may read. The lanes do not check settings and refusals of the broker at
    each pull: when these change, the broker calls `clear`, and earlier runs take the slower path."""

    is_open: bool
    """True if runs are made at all; false before the first `reset`."""

    def __init__(
        self,
        parts: tuple[bytes, ...],
        readable_end: Callable[[Any, int], int],
        scan_units: int,
        small_bytes: int,
    ) -> None:
        """`parts` are the constant parts of an answer's JSON header: before, between and after the broker to
        ask next, the queue's end, the next offset, the queue's start and the opaque. `readable_end`,
        `scan_units` and `small_bytes` are those of `rmq.store.reader`."""

    def __len__(self) -> int:
        """The number of lanes."""

    def add(
        self,
        queue: Any,
        key: tuple[str, int],
        group_name: str,
        group: Any,
        topic: Any,
        expression: str | None,
        subscription: Any,
        model: str | None,
        version: int,
        codes: Collection[int] | None,
    ) -> None:
        """Open a lane for a ConsumeQueue, whose `key` is (topic, queue id), as a group reads it: with an
        expression of TAG in each pull, or with None and the `subscription` and message model of the group's
        members, of that version. `group` and `topic` are the rows of their tables. Only messages with one of
        the tags codes are returned; None: all."""

    def reset(self, is_open: bool, reads_slaves: bool) -> None:
        """Close all lanes, and set whether runs are made from now on, and whether answers suggest the broker
        in the group's configuration."""

    def clear(self) -> None:
        """Close all lanes."""

    @property
    def wants_more(self) -> bool:
        """True if `take_wanted` would return any."""

    def take_wanted(self) -> list[tuple[str, str, int, str | None]]:
        """(group, topic, queue id, expression) of pulls without a lane since the last call; not all of
        them."""

    def answer(
        self,
        run: PullRun,
        at: int,
        tables: tuple[Any, Any, Any, dict[tuple[str, int], None]],
        queues: Mapping[tuple[str, int], Any],
        log: Any,
        bounds: tuple[int, int, int, int, int, int, int],
        reach: int | None,
    ) -> tuple[int, list[bytes | memoryview]]:
        """Answer pulls of a run from number `at` on. The result is the number of the first pull without an
        answer, and the bytes of all answers. A pass ends after some 128 KiB of messages, and before a pull
        that must take the slower path.

        `tables` are the groups, the topics, a function from a group's name to its members, and a dictionary
        that gets the queues in which messages behind `reach` wait, a physical offset, as in `StoreView.get`.
        `bounds` are the bytes of the log that count as being in memory, the most messages and bytes in memory
        and on disk, and the most messages and bytes of a pull.
        """

    def take_counts(self) -> list[tuple[str, str, int, int, int]]:
        """(group, topic, pulls, messages, bytes) of the pulls answered since the last call."""

# Takes in runs; they are in `_takes.pxi`.

class TakeRun:
    """Consecutive plain pops and acknowledgements of batches of one chunk. A run stands among the commands of
    a chunk."""

    count: int
    flag: int
    """The flag of a command: that of a request."""
    rows: list[tuple[Any, int, bytes]]
    """The lane, the opaque and the body of each request."""
    generation: int
    """The generation of the lanes when the run was made: of another one, it has lanes that were closed."""

    def __len__(self) -> int:
        """The number of requests: `count`."""

    def commands(self, first: int = 0) -> list[Command]:
        """The requests from number `first` on as commands, for the slower path."""

class TakeLanes:
    """Lanes of plain takes, by the header of their requests with 0 in place of its opaque and of
    `bornTime`, and an empty `attemptId`: a printable ASCII text in JSON, without escapes, of at most 1
    KiB."""

    is_open: bool
    """True if runs are made at all; false before the first `reset`."""
    generation: int
    """The number of times that all lanes were closed."""

    def __init__(self, parts: tuple[bytes, ...], small_bytes: int) -> None:
        """`parts` are the constant parts of the JSON header of an answer to a pop: before, between and after
        the time of the take, the length of the lease, queue id, first offset, queue id, all offsets and the
        opaque. `small_bytes` is that of `rmq.store.reader`."""

    def __len__(self) -> int:
        """The number of lanes."""

    def add(self, key: bytes, lane: Any) -> None:
        """Open a lane, which may be any value but None."""

    def remove(self, key: bytes) -> None:
        """Close a lane if it is open."""

    def reset(self, is_open: bool) -> None:
        """Close all lanes, and set whether runs are made from now on."""

    def clear(self) -> None:
        """Close all lanes."""

    @property
    def wants_more(self) -> bool:
        """True if `take_wanted` would return any."""

    def take_wanted(self) -> list[bytes]:
        """The headers without a lane since the last call; not all of them."""

    def read(
        self,
        queue: Any,
        log: Any,
        bounds: tuple[int, int, int, int, int],
        offset: int,
        most: int,
        numbers: tuple[int, int, int],
    ) -> tuple[int, list[bytes | memoryview]] | None:
        """The bytes of the `most` messages of a ConsumeQueue from an offset on, counted and as an answer to a
        pop; None if queue or bounds have fewer messages. `bounds` are the first five of those of
        `PullLanes.answer`, `numbers` the time of the take, the length of the lease, and the opaque."""

# Of a client; they are in `_client.pxi`.

def place_in(mapping: mmap, view: memoryview) -> int:
    """The place in a mapping where the bytes of a view begin; -1 when some of them are outside of it."""

class PulledReader:
    """Reads pulled messages, as the functions of `rmq.client.consume.message_view` do."""

    def __init__(self, kind: type[Any], alike: Any, unique_key: str, magic: int) -> None:
        """`kind` is the class of pulled messages in Python, `alike` its AlikeProperties."""

    def messages(
        self, buffer: bytes, broker_name: str, window: Any, kind: type[Any]
    ) -> tuple[list[Any], int]:
        """The messages, of the class `kind`, and the end of the readable ones."""

    def body(self, message: Any) -> bytes:
        """Same as PulledMessage.body."""

    def properties(self, message: Any) -> dict[str, str]:
        """Same as PulledMessage.properties."""

    def message_id(self, message: Any) -> str:
        """Same as StoredMessage.message_id."""

class BatchBody:
    """The body of a batch send, which takes plain messages unencoded; see `rmq.client.produce.batches`."""

    count: int

    def __init__(
        self,
        kind: type[Any],
        reserved: frozenset[str],
        topic: str,
        wait_store: bool,
        body_most: int,
        most: int,
    ) -> None:
        """The body takes messages of exactly the class `kind`, to `topic`, whose bodies have less than
        `body_most` bytes and whose properties have none of the names `reserved`; `most` is the limit of its
        own bytes."""

    def add(self, message: Any, unique_id: str) -> int:
        """Same as BatchBody.add."""

    def add_encoded(self, message: bytes) -> int:
        """Same as BatchBody.add_encoded."""

    def take(self) -> bytes:
        """Same as BatchBody.take."""

# Of a client; they are in `_frames.pxi`.

class AnswerReader:
    """Splits the bytes of a client's connection: the engine makes responses with plain headers."""

    def __init__(self, kind: type[Command], other_language: str, json_form: int) -> None:
        """`kind` is `Command`, `other_language` the language for a header without one, `json_form` the number
        of the JSON form."""

    def split(
        self, data: bytes, max_frame: int, max_header: int, most: int
    ) -> tuple[list[Command], int, int]:
        """Split frames as `rmq.protocol.frames.split_frames` does, and count them."""

def frame_send(
    ends: tuple[bytes, bytes, bytes, bytes],
    numbers: tuple[int, int, int, int],
    properties: str,
    is_batch: bool,
    opaque: int,
    body: bytes,
) -> bytes | None:
    """The frame of a send, as `rmq.client.produce.outgoing.SendTemplate.framed` makes it; None for properties
    that are not plain ASCII. `ends` are the constant parts of its header: the begin, before and behind the
    variable part, and the end; `numbers` its code, sys flag, time (ms) and flag."""

# Of Spark's data sources; they are in `_columns.pxi`.

_Texts: TypeAlias = tuple[bytes | None, int, bytes, bytes]
"""The bits of the values that exist, or None for all; the number of missing values; the end of each value, as
32-bit numbers of this machine after a 0; the bytes of all values."""

def find_records(data: Any, at: int, end: int, magic: int, least: int) -> tuple[bytes, int]:
    """Same as `rmq.spark.formats.records.find_records`, with the places as 64-bit numbers of this machine."""

def read_columns(
    data: Any,
    starts: bytes,
    magic: int,
    left: int,
    numbers: list[tuple[int, int, int]],
    wanted: int,
    names: list[tuple[bytes, bool]],
) -> (
    tuple[list[bytes], _Texts | None, _Texts | None, tuple[bytes, _Texts, _Texts] | None, list[_Texts]] | None
):
    """Columns of the records at these places; None where one is not whole, not plain or not in UTF-8, or
    where they do not ascend.

    `left` are the bits of the sys flag that no plain record has. `numbers` are fields as (place in the
    record, bytes, factor): those with a factor become numbers of this machine times it, as near as 64 bits
    go, those with 0 stay as they are. `wanted` is a sum of 1 (topics), 2 (bodies), 4 (names and values of
    all properties) and 8 (None if a record has a name twice, or too many to look). `names` are those of
    properties whose last values are wanted, at most 8, and whether the offset message id stands for one that
    is not there. The result is (the bytes of each field, topics, bodies, (ends of each record's pairs,
    names, values), the values of each name).
    """

# Of a slave; it is in `_copies.pxi`.

def read_run(
    data: bytes, at: int, start: int, rare: Collection[bytes], check_crc: bool, with_rows: bool
) -> tuple[int, int, list[tuple[str, int, int, int, bytes]], Rows | None] | None:
    """The plain records of the log from byte `at` on in `data`, whose first byte has the physical offset
    `start`; None without one. `rmq.store.files.scan.parse` accepts each of them, with the same `check_crc`.

    Plain are ASCII texts, topics that are not `rare`, no PREPARED or ROLLBACK record, and in each queue
    consecutive queue offsets. The result is (place after the records, store time of the last one, (topic,
    queue id, first queue offset, number, units) of each queue, rows for the index). There are no rows unless
    `with_rows`, and none for records without keys.
    """
