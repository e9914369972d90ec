"""Doors: other protocols beside RocketMQ's, served by plug-ins of a broker.

A plug-in lists its doors in `Plugin.doors()`. Each has a port of its own, or first bytes by which the broker
recognizes its peers on the port for clients. `serve(stream, host)` is run once for each connection: `stream`
carries the bytes of the peer, over TCP, TLS or WebSocket, and `host` is the broker with the rights of that
peer.

The broker keeps the rules: `host` raises AccessDenied for a call that the peer's account is not allowed, and
every bound of a client (connections, memory, held reads, sends that wait, memberships) holds for doors as
well. No function of `host` blocks. Functions given to it (`on_done`, `on_result`, `on_change`, those of
`defer`) are called in the event loop, one after the other, and must not block either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import field

from rmq.protocol.record import decode_record

if TYPE_CHECKING:
    from attrs import define, frozen

    from rmq.errors import ResponseError, RmqError
    from rmq.message import Message, StoredMessage
    from rmq.protocol.bodies import ConsumeMessageDirectlyResult
    from rmq.shares import Holders
else:
    from rmq.lazy_attrs import define, frozen

PUBLISH: Final = "publish"
"""To send to a topic."""
SUBSCRIBE: Final = "subscribe"
"""To read a topic."""
JOIN: Final = "join"
"""To read, commit and be a member as a group."""
ACTIONS: Final = (PUBLISH, SUBSCRIBE, JOIN)


@frozen
class Appended:
    """Outcome of a message that a plug-in stores.

    `error` is None when the message is as safe as the broker's settings require. With an error and an id the
    message is stored, but its safety is not known; with an error and no id the broker knows of no stored
    copy, and `queue_offset` is -1. `queue_offset` is the offset of the record in the log: for a delayed
    message, its offset in the schedule topic.
    """

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    error: ResponseError | None = None


OnAppended = Callable[[Appended], None]
"""Called with the outcome of a message, once, in the event loop. An error that it raises is logged."""


@frozen
class ReadRequest:
    """A consumer's request for messages of one queue, from an offset on, `max_msg_nums` at most.

    `subscription` are tags (`a || b`, `*` for all), or with `expression_type="SQL92"` an SQL expression.
    """

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int = 32
    subscription: str | None = "*"
    expression_type: str | None = None
    sub_version: int = field(default=0, init=False)
    topic_created_ms: None = field(default=None, init=False)
    sys_flag: int = field(default=4, init=False)
    """The flag PULL_SUBSCRIPTION of RocketMQ: the request brings its own filter expression, the field
    above."""


@frozen
class ReadResult:
    """Messages of a read, and the offset from which the reader continues.

    Without messages `next_offset` may still be greater, behind messages that did not match, or be a valid
    offset of the queue when the queue does not hold the requested offset.
    """

    messages: Sequence[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class Chooser(Protocol):
    """A door's choice among the messages of a take: a message that it refuses stays for other consumers.

    The choice for a message changes only when `version` changes.
    """

    @property
    def version(self) -> int:
        """The number of changes so far."""

    def __call__(self, message: StoredMessage) -> bool:
        """True if the consumer takes a message; False also leaves a message that another consumer has. The
        body is as it was sent: maybe compressed, and maybe damaged."""


@frozen
class TakeRequest:
    """A consumer's request for single messages of a topic, or with `queue_id` of a queue of the topic.

    Each message belongs to its consumer for `invisible_ms`, after which it is redelivered. `subscription` and
    `expression_type` are those of a ReadRequest. `in_order`: while a message of a message group
    (`__SHARDINGKEY`) is in flight, the next message of that group waits, and messages of other groups do not;
    None: the group's setting decides. A new group begins at the first message with `from_first`, otherwise at
    the place where RocketMQ's consumers begin. A message that `subscription` refuses is finished for the
    group; a message that `chooser` refuses stays. A take with `chooser` is not in order.
    """

    consumer_group: str
    topic: str
    max_msg_nums: int = 32
    invisible_ms: int = 60_000
    queue_id: int = -1
    subscription: str | None = "*"
    expression_type: str | None = None
    in_order: bool | None = None
    from_first: bool = False
    chooser: Chooser | None = None
    queue_offset: int = field(default=0, init=False)
    sub_version: int = field(default=0, init=False)
    topic_created_ms: None = field(default=None, init=False)
    sys_flag: int = field(default=4, init=False)


@define(eq=False)
class TakenMessage:
    """A message that a consumer has taken. `attempt` is 1 on the first delivery. To acknowledge, extend or
    give back the message, name it by `handle`."""

    _message: StoredMessage | None
    """None until it is asked for: then `records` has it."""
    handle: str
    attempt: int
    records: bytes = b""
    """Stored records, of which the one at the place `at` is the message's, whole and not compressed; or
    nothing, for a message that is known otherwise."""
    at: int = 0

    @property
    def message(self) -> StoredMessage:
        """The message."""
        if self._message is None:
            self._message = decode_record(self.records, self.at, check_crc=False)
        return self._message


OnTaken = Callable[["Sequence[TakenMessage] | ResponseError"], None]
"""Called once with the outcome of a held take. When the time of the take is over the outcome has no
messages."""

OnHandled = Callable[[Sequence["ResponseError | None"]], None]
"""Called once with the outcome of each handle, in their order; None is success."""


@frozen
class DeliverySettings:
    """Per-message delivery of a group: the attempts that a message has, whether they are taken by message
    group, and the delay in ms after each failed attempt (the last one holds for all further attempts).

    With `initial_ms` the delays grow by `multiplier` from it up to `max_ms`, and `delays_ms` is empty.
    """

    max_attempts: int
    in_order: bool
    delays_ms: tuple[int, ...] = ()
    initial_ms: int = 0
    max_ms: int = 0
    multiplier: float = 0.0


@frozen
class TopicView:
    """The facts about a topic that a client needs. `message_type` is NORMAL, FIFO, DELAY, TRANSACTION or
    MIXED where the topic names one, else empty.
    """

    read_queues: int
    write_queues: int
    can_read: bool
    can_write: bool
    message_type: str = ""


@frozen
class OpenTransaction:
    """A half message whose end the broker asks a producer for. `end_transaction` takes its
    `transaction_id`."""

    message: StoredMessage
    transaction_id: str


OnCheck = Callable[[OpenTransaction], None]
"""Called when the broker asks a producer whether a transaction was committed."""


@frozen
class Question:
    """An administrator's question to a consumer, with the function for its answer: the stacks of the
    consumer's threads, or, with `message`, the result of consuming that message now. Only the first answer
    counts, and none after the administrator's time-out."""

    answer: Callable[[str | ConsumeMessageDirectlyResult | RmqError], None]
    message: StoredMessage | None = None


OnQuestion = Callable[[Question], None]
"""Called with an administrator's question to a member. A ResponseError from the call is the answer."""


def transaction_id(appended: Appended) -> str:
    """The text that names a stored half message."""
    return transaction_at(appended.message_id, appended.queue_offset)


def transaction_at(message_id: str, queue_offset: int) -> str:
    """The text that names the half message of an offset message id, at an offset of the half queue."""
    return f"{message_id}.{queue_offset}"


OnRead = Callable[["ReadResult | ResponseError"], None]
"""Called once with the outcome of a held read. When the time of the read is over the result has no
messages."""

OnCommitted = Callable[["ResponseError | None"], None]
"""Called once: without an error when an offset is kept as safely as the broker's settings require, or with
the refusal."""


class DoorStream(Protocol):
    """The bytes of one peer. Also a `rmq.plugin.Peer`."""

    @property
    def peer_address(self) -> str:
        """``host:port`` of the other side."""

    @property
    def local_address(self) -> str:
        """``host:port`` of this side."""

    @property
    def certificate_name(self) -> str:
        """The common name of the peer's certificate, which TLS has verified; empty without one."""

    @property
    def state(self) -> dict[str, Any]:
        """Values of the connection, such as its account."""

    @property
    def is_closed(self) -> bool:
        """True if the connection has ended: further written bytes are dropped."""

    async def receive(self, most: int = 65_536) -> bytes:
        """At least one byte, at most `most`; none at the end.

        A peer that does not take its answers is not read from. Raises BrokenResourceError when the peer or
        the network fails. Cancelled: no bytes are lost.
        """

    async def receive_each(self, take: Callable[[bytes], None]) -> None:
        """Call `take` with all bytes as they come, until the peer ends; `take` must not block. Where the
        broker reads its sockets together, that is without a turn of the event loop for each read. Raises as
        `receive`, and the errors of `take`. Cancelled: no bytes are lost."""

    async def receive_exactly(self, count: int) -> bytes:
        """`count` bytes. Raises RemoteProtocolError when the peer ends before; else as `receive`."""

    async def receive_until(self, separator: bytes, most: int) -> bytes | None:
        """The bytes up to `separator`, which is left out; None at the end of the stream.

        Raises RemoteProtocolError when the separator does not come within `most` bytes, or the stream ends
        before it; else as `receive`.
        """

    def write(self, data: bytes) -> None:
        """Send bytes, soon. A closed connection drops the bytes; more than 64 MiB of unsent bytes close the
        connection."""

    def send(self, data: bytes) -> None:
        """Send bytes at once, as many as the peer takes; the rest as by `write`. For a door that has gathered
        its bytes."""

    @property
    def is_busy(self) -> bool:
        """True if many bytes wait to be sent, so that `drain` would wait."""

    async def drain(self) -> None:
        """Wait until few bytes wait to be sent, or the connection has ended."""

    def hold(self, count: int, since: float | None = None) -> None:
        """Count bytes of the peer that the door keeps in the broker's memory budget; the count holds until
        the next call.

        `since` is the time of the event loop (s) from which on the peer has owed the rest of a request, or
        the room for an answer; infinite if the peer owes nothing. Without `since`: the time since which the
        door has held any bytes. When memory is tight, the broker first cuts off the peers that have owed for
        the longest time.
        """

    def close(self, reason: str = "closed by this side") -> None:
        """End the connection soon: written bytes are still sent if the peer reads."""


class DoorHost(Protocol):
    """The broker, with the rights of one peer of a door."""

    @property
    def config(self) -> Any:
        """The broker's configuration, frozen."""

    def now_ms(self) -> int:
        """Wall time in ms, as stamped on messages."""

    @property
    def has_accounts(self) -> bool:
        """True if logins are checked: a peer without an account is then allowed little."""

    def authenticate(self, user: str, secret: str, *, signed: bytes | None = None) -> None:
        """Let the connection work for an account.

        `secret` is the account's secret; or, where `signed` is given, the Base64 of HMAC-SHA1 of those bytes
        under the secret. Raises AccessDenied for a wrong secret; a broker without access control accepts
        every login.
        """

    def authenticate_certificate(self) -> str:
        """Let the connection work for the account that the peer's certificate names by its common name;
        returns the name.

        Raises AccessDenied without a certificate, and when no such account exists; a broker without access
        control accepts every certificate.
        """

    def may(self, action: str, name: str) -> bool:
        """True if the peer may do one of `ACTIONS`, to a topic or as a group."""

    @property
    def holders(self) -> Holders:
        """The names under which the peer's shares of bounded tables are counted: its account, or its
        address."""

    def leader(self) -> str | None:
        """The address for clients of the master that takes messages in place of this broker, a slave; empty
        when the master is not known; None when this broker takes messages itself."""

    def topic(self, name: str) -> TopicView | None:
        """The facts about a topic of this broker; None when the topic does not exist."""

    def make_topic(self, name: str) -> TopicView:
        """The facts about a topic; a missing topic is created if a first message would create it. Raises
        AccessDenied, ResponseError."""

    def append(
        self,
        message: Message,
        on_done: OnAppended | None = None,
        *,
        queue_id: int | None = None,
        holds: bool = False,
    ) -> None:
        """Store a message, by the rules of a send. Messages of one round of the loop are written at once.
        Without `queue_id` the topic's queues take turns.

        With the properties of a half message (`TRAN_MSG`, `PGROUP`) the message is a half message:
        `transaction_id` of the outcome names it, and the broker may ask a producer that has joined by
        `produce` for its end.

        `on_done` is called with the outcome when the message is as safe as the broker's settings require.
        With `holds` a message of an account over its quota is stored when its time has come, within 2 s, and
        may be refused at that time, to `on_done`; without `holds`, and for a longer wait, the message is
        refused at once (SYSTEM_BUSY, whose `wait_seconds` is the time).

        Raises AccessDenied, ResponseError for a refusal (too long, no such topic, the broker is busy or
        stops), InvalidMessage, and StoreError; `on_done` is not called after an error.
        """

    def read(self, request: ReadRequest) -> ReadResult:
        """Read messages now. Raises AccessDenied, ResponseError."""

    def hold(self, request: ReadRequest, on_result: OnRead, seconds: float) -> None:
        """Read messages as soon as there are any; after `seconds` (maxSuspendTimeMills at most) the result is
        empty. Never calls `on_result` before the function returns, nor after the connection has ended.

        Raises AccessDenied, ResponseError for a refusal, or when too many reads wait.
        """

    def take(self, request: TakeRequest) -> list[TakenMessage]:
        """Take messages now. A message is redelivered when its lease or the connection ends. Raises
        AccessDenied, ResponseError."""

    def hold_take(self, request: TakeRequest, on_taken: OnTaken, seconds: float) -> Callable[[], None]:
        """Take messages as soon as there are any, new or redelivered; none after `seconds`
        (maxSuspendTimeMills at most). Never calls `on_taken` before the function returns, nor after the
        connection has ended. Returns a function that ends the wait without a call.

        Raises AccessDenied, ResponseError for a refusal, or when too many takes wait.
        """

    def acknowledge(self, group: str, topic: str, handles: Sequence[str], on_done: OnHandled) -> None:
        """Acknowledge messages: no consumer of the group gets them again. `on_done` is called when the
        acknowledgement is as safe as the broker's settings require; at once, before the function returns,
        where nothing has to be written.

        An outcome with the code NO_MESSAGE: the lease has ended, or another consumer has the message; with
        MESSAGE_ILLEGAL: the text is no handle. A second acknowledgement is a success. Raises AccessDenied,
        ResponseError.
        """

    def extend(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        """Renew the lease of a message: redeliver it `invisible_ms` after now, not before. Returns the new
        handle; the old handle acknowledges as well. Raises AccessDenied, ResponseError."""

    def nack(
        self,
        group: str,
        topic: str,
        handles: Sequence[str],
        after_ms: int | None = None,
        *,
        counts: bool = True,
    ) -> list[ResponseError | None]:
        """Nack messages: redeliver them after `after_ms`; None: by the retry policy of the group. The attempt
        counts: after the last attempt the message becomes a dead letter. Without `counts` the delivery is no
        attempt, because no application has seen the message. Returns the outcome of each handle. Raises
        AccessDenied, ResponseError."""

    def dead_letter(self, group: str, topic: str, handles: Sequence[str], on_done: OnHandled) -> None:
        """Make messages dead letters of the group now. `on_done` as for `acknowledge`. Raises AccessDenied,
        ResponseError, StoreError."""

    def browse(
        self, group: str, topic: str, queue_id: int, offset: int, most: int = 32
    ) -> tuple[list[StoredMessage], int]:
        """Look at messages of a queue from an offset on, `most` at most, and take none. Returns the messages
        that the group has not finished, and the offset for the next call. Raises AccessDenied,
        ResponseError."""

    def topics_of_group(self, group: str) -> list[str]:
        """The topics of which a group has offsets. Raises AccessDenied."""

    def end_group(self, group: str, on_done: OnCommitted | None = None) -> None:
        """Delete a group and its offsets, now. `on_done` is called when the deletion is saved, or with the
        refusal. Raises AccessDenied."""

    def note(self, group: str) -> str:
        """The text that `set_note` has kept of a group; empty without one. Raises AccessDenied."""

    def set_note(self, group: str, text: str) -> None:
        """Keep a short text with the configuration of a group, until the group ends. Raises AccessDenied, and
        ResponseError for an unknown group."""

    def delivery_settings(self, group: str) -> DeliverySettings:
        """The settings of per-message delivery of a group. Raises AccessDenied."""

    def queues(self, topic: str) -> int:
        """The number of queues of a topic that are read; 0 when the topic does not exist."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The offset of the first message of a queue, and the offset behind its last message."""

    def position(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset of a group in a queue; -1 without a committed offset. Raises AccessDenied."""

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, on_done: OnCommitted | None = None
    ) -> None:
        """Keep the consumer offset of a group. Raises AccessDenied; `on_done` gets any other refusal."""

    def join(
        self,
        group: str,
        client_id: str,
        subscriptions: Mapping[str, str],
        on_change: Callable[[str], None] = lambda group: None,
        on_question: OnQuestion | None = None,
    ) -> None:
        """Become a member of a group: topic -> expression of tags. Until `leave`, or the end of the
        connection, the member counts for lag, `rmq group members` and the other members.

        `on_change(group)` is called when the members have changed, so that `share` gives other queues.
        `on_question` is called with the questions of administrators; without it the member has no stacks and
        consumes nothing directly. Raises AccessDenied, ResponseError.
        """

    def members(self, group: str) -> list[str]:
        """The client ids of a group's members."""

    def share(self, group: str, topic: str) -> list[int]:
        """The queues of a topic of this broker that are this member's, by RocketMQ's average allocation;
        none while the peer is no member.
        """

    def leave(self, group: str) -> None:
        """Leave a group."""

    def another_client(self) -> DoorHost:
        """The host for another client of the same connection, where the peer's protocol lets several share
        one: its account, its memberships and the messages that it has taken are its own. It ends with the
        connection, or by `end_client`. Raises ResponseError when the account or address has its share of such
        clients.
        """

    def end_client(self) -> None:
        """Forget the state of a client that `another_client` made: its messages are given back."""

    def produce(self, group: str, client_id: str, on_check: OnCheck = lambda transaction: None) -> None:
        """Become a producer of a group, until the end of the connection: `on_check` is called with a half
        message of the group whose end is not known. Raises ResponseError."""

    def stop_producing(self, group: str) -> None:
        """Stop being a producer of a group."""

    def end_transaction(
        self,
        group: str,
        transaction_id: str,
        message_id: str,
        commits: bool | None,
        on_done: OnCommitted | None = None,
    ) -> None:
        """Commit or roll back a half message of a producer group; None: the producer has not decided.
        `message_id` is its unique key. `on_done` is called when the decision is as safe as the broker's
        settings require. Raises AccessDenied, ResponseError."""

    def commit_transactions(
        self,
        group: str,
        halves: Sequence[tuple[str, str]],
        acknowledgements: Sequence[tuple[str, str, Sequence[str]]],
        on_done: OnCommitted,
    ) -> None:
        """Commit half messages of a producer group, each as (transaction id, unique key), and acknowledge
        messages, as (group, topic, handles): all or nothing, even if the broker is killed during the call.

        `on_done` is called when all of it is as safe as the broker's settings require. With an error nothing
        of it holds; but with the code FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE all of
        it holds, and may be lost with this broker. Many half messages take several turns of the loop; the
        sequences must not change until `on_done` is called. Raises AccessDenied, ResponseError, StoreError:
        nothing of it holds.
        """

    def recall(self, topic: str, handle: str, on_done: OnAppended) -> str:
        """Take back a message that waits for its time, by the producer's recall handle; returns its unique
        key. Raises AccessDenied, ResponseError, StoreError."""

    def defer(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after `seconds`; returns a function that prevents the call. No call is made after the
        connection has ended. Raises ResponseError when too many calls wait."""

    def turn(self, work: Callable[[], None]) -> None:
        """Handle the bytes that have come. If no other connection is at work, the messages that the work
        stores and acknowledges are written, and their outcomes reported, before the function returns: that
        saves a round of the event loop."""

    def soon(self, call: Callable[[], None]) -> None:
        """Call `call` once at the end of this round of the loop, after all outcomes that the broker reports
        in the round, however often the function is given: for bytes that should leave together. No call is
        made after the connection has ended."""


Serve = Callable[[DoorStream, DoorHost], Awaitable[None]]


@frozen(kw_only=True)
class Door:
    """A protocol of a plug-in.

    `name` is used in metrics and logs. `port` is its own, on the address of the other ports (0: any free
    port); None without a port. `first_bytes` are the bytes with which each connection begins: such
    connections to the port for clients go to this door; not 0x00, 0x16 or `GET `, which are RocketMQ's, TLS
    and WebSocket. Peers must speak first.

    `serve` returns to end the connection. `goodbye` gives the last bytes for a peer when the broker stops,
    after all of its responses. `connections` bounds the connections of its own port. With `websocket` the
    door also accepts WebSocket upgrades, with one of the `subprotocols`: on its own port, and with
    `first_bytes` on the port for clients. The server closes a connection on which no byte moves for
    `idle_seconds` (None: serverChannelMaxIdleTimeSeconds).
    """

    name: str
    serve: Serve
    port: int | None = None
    first_bytes: bytes = b""
    goodbye: Callable[[DoorStream], bytes] | None = None
    connections: int = 1_000
    websocket: bool = False
    subprotocols: Sequence[str] = ()
    idle_seconds: float | None = None

    def fault(self) -> str:
        """The reason why a server cannot open the door; empty without one."""
        if not self.name.isidentifier():
            return f"has a door named {self.name!r}; its name must be a word"
        if self.port is None and not self.first_bytes:
            return f"gives door {self.name} neither a port nor first bytes"
        if self.port is not None and not 0 <= self.port <= 65_535:
            return f"gives door {self.name} the port {self.port}; it must be 0 to 65535"
        if self.first_bytes and (
            self.first_bytes[0] in (0x00, 0x16) or b"GET ".startswith(self.first_bytes[:4])
        ):
            return f"gives door {self.name} first bytes that are RocketMQ's, TLS's or WebSocket's"
        return ""


def check_doors(doors: Sequence[tuple[str, Door]]) -> tuple[str, str] | None:
    """The first plug-in with a door that cannot be opened beside the others, and the reason; None without
    one."""
    names: set[str] = {"clients", "slaves"}
    taken: list[bytes] = []
    for plugin, door in doors:
        fault = door.fault()
        if not fault and door.name in names:
            fault = f"has a door named {door.name}, as another has"
        if not fault and door.first_bytes:
            both = [
                one for one in taken if one.startswith(door.first_bytes) or door.first_bytes.startswith(one)
            ]
            fault = f"has a door that begins as another does: {door.name}" if both else ""
        if fault:
            return plugin, fault
        names.add(door.name)
        if door.first_bytes:
            taken.append(door.first_bytes)
    return None
