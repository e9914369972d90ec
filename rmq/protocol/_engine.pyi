"""What the compiled engine offers. What is not said here is as in the functions that it stands for."""

from collections.abc import Callable, Collection, Mapping, Sequence
from mmap import mmap
from typing import Any, TypeAlias, overload

from rmq.protocol.command import Command

SEAM: int

class SendRun:
    """Consecutive sends of one chunk that are plain: SEND_MESSAGE_V2 with an answer, no batch, in ASCII,
    without properties of a meaning of their own, to queues that have lanes. It stands among the commands of a
    chunk.
    """

    count: int
    largest: int
    """Bytes of the largest body."""
    flag: int
    """As a command's: that of a request."""
    account: str | None
    """Whose name all of them bring; None for no account, and where `Lanes.is_signed` was not set."""

    def topics(self) -> list[str]:
        """Where they go to, each once."""

    def signed(self) -> list[tuple[bytes, bytes, str, str]]:
        """Of each, in their order: all that its signature or proof covers, as rmq.protocol.auth.signature
        has it; the signature or proof that it brings; and of a proof nonce and time, empty for a signature.
        Nothing where there is no account.
        """

    def __len__(self) -> int:
        """How many: `count`."""

    def placed(self) -> list[tuple[int, int, int]]:
        """Once they are put, (queue id, physical offset, queue offset) of each."""

    def commands(self) -> list[Command]:
        """The sends one by one, for the long way."""

    def replies(
        self, json_parts: tuple[bytes, ...], binary_fields: bytes, language: int, version: int
    ) -> bytes:
        """The frames of the answers that say that all are stored, each in the form of its request.

        `json_parts` are what stands before, between and after queue id, physical offset, queue offset and
        opaque; `binary_fields` what stands before the physical offset.
        """

class Lanes:
    """The queues that plain sends may go to. Whoever changes what holds for a queue calls `clear`, and runs
    that were made before go the long way.
    """

    suffix: bytes
    """Stored after each one's properties."""
    is_indexed: bool
    """Whether `commit` gives entries for the index."""
    is_open: bool
    """Whether there may be runs at all."""
    is_signed: bool
    """Whether runs are of one account each, and know what is signed; else only sends that are not signed are
    plain."""

    def __init__(
        self,
        rare: Collection[str],
        store_host: bytes,
        host_flag: int,
        born_v6_flag: int,
        sender_flags: int,
        pulls: PullLanes | None = None,
    ) -> None:
        """`rare` are the names of properties that no plain send has, `sender_flags` the bits of the sys flag
        that it may have, the other two those that tell of hosts. With the lanes of `pulls`, `split` makes
        their runs too.
        """

    def add(self, queue: Any, sys_flag: int) -> None:
        """Open the lane of a ConsumeQueue; its records get these bits too."""

    def clear(self) -> None:
        """Close all lanes."""

    @property
    def wants_more(self) -> bool:
        """Whether `take_wanted` would give any."""

    def take_wanted(self) -> set[tuple[str, int]]:
        """Queues without a lane, as (topic, queue id), that sends went to since the last call; not all."""

    def split(
        self, data: bytes, max_frame: int, max_header: int, most: int
    ) -> tuple[list[Command], int, int]:
        """As `rmq.protocol.frames.split_frames`, with a SendRun or PullRun in place of each run; and how many
        frames."""

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
        run has to go the long way. More runs may follow at the log's next place, then `commit` or `rollback`.
        """

    def counts(self) -> list[tuple[str, int, int]]:
        """Of the runs that are being put: (topic, messages, bytes) for each of its queues."""

    def commit(self, now: int) -> tuple[list[tuple[Any, int, bytes]], Rows | None]:
        """The runs are in the log: what their queues get, as (queue, how many, units), and the index."""

    def rollback(self) -> None:
        """The runs are not in the log."""

class Rows:
    """Rows for the index, (key hash, physical offset, store timestamp) each, in the order of the log."""

    records: int
    """Of how many records they are; some may have none."""

    def __len__(self) -> int:
        """How many rows."""

    @overload
    def __getitem__(self, at: int) -> tuple[int, int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...
    def split(self, records: int) -> tuple[Rows, Rows]:
        """Those of the first so many records, and the others. These rows are not to be used any more."""

def key_rows(entries: Sequence[tuple[str, tuple[str, ...], int, int] | Rows]) -> Rows:
    """As `rmq.store.files.index.KeyHash.rows`; entries may be rows already."""

def pack_entries(
    view: memoryview,
    rows: Rows,
    count: int,
    used: int,
    slots: int,
    begin: int,
    entries_at: int,
) -> tuple[int, int]:
    """As `rmq.store.files.index.pack_entries`."""

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
    """As `rmq.protocol.record.build_batch`: the records, their physical offsets, the units of their queue,
    and their rows for the index where it `is_indexed`. `is_marked`: the suffix has tags or keys. None for a
    batch that is not plain: not whole, to a topic or with properties that are not ASCII, or long.
    """

def batch_ids(prefix: bytes, positions: list[int]) -> bytes:
    """The offset message ids of a batch, separated by commas; each begins with `prefix`."""

def choose(
    units: bytes | bytearray | memoryview,
    log_start: int,
    log_end: int,
    old: int,
    most: tuple[int, int],
    most_old: tuple[int, int],
    matches: Callable[[int], bool] | None,
) -> tuple[int, int, int, int, int, list[tuple[int, int]]]:
    """As `rmq.store.reader.choose`."""

def gather(view: memoryview, first: int, ranges: list[tuple[int, int]], total: int) -> bytes | None:
    """The bytes of ranges of addresses, `total` of them, from a view that begins at the address `first`; None
    when they are not all in it."""

# Pulls in runs; they are in `_pulls.pxi`.

class PullRun:
    """Consecutive pulls of one chunk that are plain, 32 at most: in JSON and ASCII, from queues that have
    lanes and hold the wanted offset, of clients of one language. It stands among the commands of a chunk.
    """

    count: int
    flag: int
    """As a command's: that of a request."""
    commits: bool
    """Whether any of them commits an offset."""
    language: str

    def __len__(self) -> int:
        """Their number: `count`."""

    def commands(self, first: int = 0) -> list[Command]:
        """The pulls from number `first` on one by one, for the long way."""

    def committed(self, first: int, stop: int) -> list[tuple[int, str, str, int, int]]:
        """Of the pulls from number `first` to before `stop` that commit an offset: (number, group, topic,
        queue id, offset)."""

    def given(self, first: int, stop: int) -> list[tuple[str, str, int, int, int]]:
        """Of the pulls from number `first` to before `stop`, which are answered: (topic, group, queue id,
        messages, bytes)."""

class PullLanes:
    """The queues that plain pulls may read. Of all that a lane rests on, settings and refusals of the broker
    are not compared at each pull: when they change, `clear` is called, and earlier runs go the long way.
    """

    is_open: bool
    """Whether runs are made at all; not before the first `reset`."""

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
        the tags codes are given; None: all."""

    def reset(self, is_open: bool, reads_slaves: bool) -> None:
        """Close all lanes, and set whether runs are made from now on, and whether answers suggest the broker
        that the group's configuration names."""

    def clear(self) -> None:
        """Close all lanes."""

    @property
    def wants_more(self) -> bool:
        """Whether `take_wanted` would return any."""

    def take_wanted(self) -> list[tuple[str, str, int, str | None]]:
        """(group, topic, queue id, expression) of pulls without a lane since the last call; not all."""

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
        """Answer pulls of a run from number `at` on. The result is the number of the first that was not
        answered, and the bytes of all answers. A pass ends after about a MiB of messages, and before a pull
        that has to go the long way.

        `tables` are the groups, the topics, a function from a group's name to its members, and a dictionary
        that gets the queues in which messages behind `reach` wait, a physical offset, as in
        `StoreView.get`. `bounds` are the bytes of the log that count as being in memory, the most messages
        and bytes in memory and on disk, and the most messages and bytes of a pull."""

    def take_counts(self) -> list[tuple[str, str, int, int, int]]:
        """(group, topic, pulls, messages, bytes) that were answered since the last call."""

# Of a client; they are in `_client.pxi`.

def place_in(mapping: mmap, view: memoryview) -> int:
    """Where in a mapping the bytes of a view begin; -1 when they are not all in it."""

class PulledReader:
    """Reads pulled messages, as the functions of `rmq.client.consume.message_view` that it stands for."""

    def __init__(self, kind: type[Any], alike: Any, unique_key: str, magic: int) -> None:
        """`kind` is the class of pulled messages in Python, `alike` the AlikeProperties that it reads by."""

    def messages(
        self, buffer: bytes, broker_name: str, window: Any, kind: type[Any]
    ) -> tuple[list[Any], int]:
        """The messages, of the class `kind`, and where those end that can be read."""

    def body(self, message: Any) -> bytes:
        """As PulledMessage.body."""

    def properties(self, message: Any) -> dict[str, str]:
        """As PulledMessage.properties."""

    def message_id(self, message: Any) -> str:
        """As StoredMessage.message_id."""

class BatchBody:
    """The body of a batch send, which takes plain messages as they are; see `rmq.client.produce.batches`."""

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
        """It takes messages of exactly the class `kind`, to `topic`, whose bodies have less than `body_most`
        bytes and whose properties have none of the names `reserved`; `most` are its own bytes."""

    def add(self, message: Any, unique_id: str) -> int:
        """As BatchBody.add."""

    def add_encoded(self, message: bytes) -> int:
        """As BatchBody.add_encoded."""

    def take(self) -> bytes:
        """As BatchBody.take."""

# Of a client; they are in `_frames.pxi`.

class AnswerReader:
    """Splits the bytes of a client's connection: answers with plain headers are made by the engine."""

    def __init__(self, kind: type[Command], other_language: str, json_form: int) -> None:
        """`kind` is `Command`, `other_language` the language of a header that names none, `json_form` the
        number of the JSON form."""

    def split(
        self, data: bytes, max_frame: int, max_header: int, most: int
    ) -> tuple[list[Command], int, int]:
        """As `rmq.protocol.frames.split_frames`; and how many frames there were."""

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
"""Which values are there, as bits, or None for all; how many are not; where each ends, as 32-bit numbers of
this machine after a 0; the bytes of all."""

def find_records(data: Any, at: int, end: int, magic: int, least: int) -> tuple[bytes, int]:
    """As `rmq.spark.formats.records.find_records`, with the places as 64-bit numbers of this machine."""

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
