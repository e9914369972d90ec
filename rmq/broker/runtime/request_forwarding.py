"""Request forwarding: a slave of a set with controllers forwards client requests to its master, and returns
the responses.

RocketMQ's clients ask for routes every 30 s, and no response of a server makes them ask sooner. After a
handover, or when the process of a dead master was started again, they send to an address where a slave
listens. Forwarding lets these sends go on at once.

A request goes out over the single connection to the master unchanged, except for its opaque and its remark,
which marks it as forwarded: signatures do not cover these two. The request is a row of the broker's pending
requests until its response arrives; no task waits. While the master is absent, or takes no messages yet,
requests are held for a moment, bounded in number and bytes. A forwarded request is never forwarded again: two
brokers that take each other for the master refuse it. The master decides by its lease whether it may answer,
as for any request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.errors import ConnectionLost, ResponseError, RmqError, for_code
from rmq.protocol.auth.signature import PROOF
from rmq.protocol.codes import LANGUAGE, RequestCode, ResponseCode
from rmq.protocol.command import Command, check_body, next_opaque
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.server.deferred import Deferred
from rmq.shares import NOBODY, Holders

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.broker import Broker, Handler
    from rmq.broker.replication.failover.replica_manager import ReplicaManager
    from rmq.remoting.connection import Connection
else:
    from rmq.lazy_attrs import frozen

SENDS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
OTHERS: Final = (
    RequestCode.END_TRANSACTION,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
)
ANSWER_SECONDS: Final = 3.0
"""So long an answer of the master is waited for: its sender gives up then, too."""
HOLD_SECONDS: Final = 2.0
"""So long a request waits for a master that takes it: its sender has some time left then to go elsewhere."""
AGAIN_SECONDS: Final = 0.1
"""After a refusal of the master, until what is held is sent to it again."""
HELD_MAX: Final = 2_500
HELD_BYTES_MAX: Final = 16 << 20
"""Requests of one account or address that are held, and the bytes of their bodies; others may have some
beside it."""
FORWARDED: Final = "handed on by a replica for "
"""Begins the remark of a request that is handed on; the client's address follows."""

UNAVAILABLE: Final = int(ResponseCode.SERVICE_NOT_AVAILABLE)

SENT_AGAIN: Final = frozenset((*SENDS, RequestCode.END_TRANSACTION, RequestCode.CONSUMER_SEND_MSG_BACK))
"""Requests that are sent again after the master has refused them for now: they are stored nowhere. An offset
may be committed all the same, and a later one be after it."""
OURS: Final = LANGUAGE
"""Clients of ours ask for routes as soon as a broker refuses, and should: with old routes they would ask a
slave where a queue ends."""


@frozen
class HeldRequest:
    """A request that waits for a master that takes messages. `fallback` answers the request without
    forwarding; `refusal` is the master's refusal, if the request was forwarded before."""

    request: Command
    connection: Connection
    fallback: Handler
    until: float
    refusal: Command | None = None
    holders: Holders = NOBODY


def is_forwarded(request: Command) -> bool:
    """True if a replica has handed this request on already."""
    return request.remark is not None and request.remark.startswith(FORWARDED)


class RequestForwarder(ClientOnlyEndpoint):
    """The endpoint of the connection to the master; see the module. `ready(address)` is that connection if it
    is open and takes another request, else None; `wake` is called when a request is held."""

    def __init__(
        self, manager: ReplicaManager, ready: Callable[[str], Connection | None], wake: Callable[[], None]
    ) -> None:
        self._manager = manager
        self._ready = ready
        self._wake = wake
        self._broker: Broker | None = None
        self._before: dict[int, Handler] | None = None  # of a master that hands over
        self._is_ending = False
        self._held: Deferred[str, HeldRequest] = Deferred(
            2 * HELD_MAX, "the requests that wait for a master", bytes_most=2 * HELD_BYTES_MAX
        )
        self._again_at = 0.0
        self._used: Connection | None = None  # over which requests were sent last

    # ---- the role ----

    def begin(self, broker: Broker) -> None:
        """This broker is a slave now: forward to its master the requests that it would refuse."""
        self.forget()
        self._broker = broker
        self._wrap(broker, OTHERS)

    def forget(self) -> None:
        """The previous service has ended, and with it the connections of its clients."""
        self._broker = self._before = None
        self._is_ending = False
        self._held.drain()

    def _wrap(self, broker: Broker, others: tuple[RequestCode, ...]) -> None:
        send = broker.handlers[SENDS[0]]
        handlers = dict.fromkeys(SENDS, self._handler(send))  # one object, by which the broker knows sends
        handlers |= {code: self._handler(broker.handlers[code]) for code in others}
        broker.use_handlers(broker.handlers | handlers)

    def pause(self, broker: Broker) -> None:
        """This broker is a master that steps down: hold the messages that come. No effect when called
        again."""
        if self._broker is None:
            self._broker = broker
            self._before = broker.handlers
            self._wrap(broker, (RequestCode.CONSUMER_SEND_MSG_BACK,))

    def go_on(self) -> None:
        """The handover is cancelled: serve the held requests. No effect unless paused."""
        broker = self._broker
        if broker is not None and self._before is not None and not self._is_ending:
            broker.use_handlers(self._before)
            self._broker = self._before = None
            for one in self._held.drain():
                broker.run_late(one.fallback, one.request, one.connection)

    def end(self, *, answers: bool) -> None:
        """The service ends. Responses of the master are not waited for any more. Held requests are only
        answered if `answers`. Otherwise another service follows: clients repeat a request without a response
        when their connection breaks, but would repeat a refused request at this broker at once, which is too
        soon."""
        broker = self._broker
        if broker is not None:
            self._leave(broker, None)
            if answers:
                self._broker = None
                for one in self._held.drain():
                    self._give_up(broker, one)
            else:
                self._is_ending = True
                for one in self._held.values():
                    one.connection.reset_on_close()

    def _leave(self, broker: Broker, link: Connection | None) -> None:
        """Send over `link` from now on; responses of another connection are not waited for."""
        before, self._used = self._used, link
        if before is not None:
            broker.pending_requests.on_close(before)

    def _link(self) -> Connection | None:
        if self._is_ending:
            return None
        master = self._manager.master
        return None if master is None else self._ready(master.address)

    # ---- requests of clients ----

    def _handler(self, fallback: Handler) -> Handler:
        def handle(request: Command, connection: Connection, now: int) -> Command | None:
            """Hand the request on, or answer as without a relay. Raises ResponseError."""
            broker = self._broker
            if is_forwarded(request):
                self._manager.count_forwarded(refused=True)
                raise for_code(
                    UNAVAILABLE, "this broker is not the master now, and the request was forwarded"
                )
            if broker is None or request.language == OURS:
                return fallback(request, connection, now)
            check_body(request.code, len(request.body), broker.store.config.max_message_size)
            holders = broker.settings.holders_of(connection)
            one = HeldRequest(request, connection, fallback, broker.clock() + HOLD_SECONDS, holders=holders)
            if self._hand_on(broker, one) or self._hold(one):
                return None
            self._manager.count_forwarded(refused=True)
            return fallback(request, connection, now)

        return handle

    def _hand_on(self, broker: Broker, one: HeldRequest) -> bool:
        """Send a request to the master; False without a connection, or when too much is on its way."""
        link = self._link()
        if link is None or broker.clock() < self._again_at or self._held:
            return False
        return self._send(broker, one, link)

    def _send(self, broker: Broker, one: HeldRequest, link: Connection) -> bool:
        if link is not self._used:
            self._leave(broker, link)
        request = one.request
        command = request.with_ext(request.ext)
        command.opaque = next_opaque()
        command.remark = f"{FORWARDED}{one.connection.peer_address}"
        if request.is_oneway:
            link.notify(command)
        else:
            try:
                broker.pending_requests.call(
                    link,
                    command,
                    ANSWER_SECONDS,
                    lambda answer: self._answered(broker, one, answer),
                    one.connection,
                )
            except ResponseError:
                return False
        self._manager.count_forwarded()
        return True

    def _answered(self, broker: Broker, one: HeldRequest, answer: Command | RmqError) -> None:
        """The master has answered, or will not."""
        request = one.request
        if isinstance(answer, RmqError):
            # It may be stored: no code that says that it is not.
            ended = isinstance(answer, ConnectionLost)
            why = "the connection to the master ended" if ended else "the master did not answer in time"
            response = request.reply(ResponseCode.SYSTEM_ERROR, f"{why}, it may have taken this request")
        else:
            response = answer.with_ext(answer.ext)
            response.opaque = request.opaque
            # Said of a request that is stored nowhere. One with a proof is not taken twice.
            if answer.code == UNAVAILABLE and request.code in SENT_AGAIN and PROOF not in request.ext:
                self._again_at = broker.clock() + AGAIN_SECONDS
                again = HeldRequest(request, one.connection, one.fallback, one.until, response, one.holders)
                if broker is self._broker and broker.clock() < one.until and self._hold(again):
                    return
        _answer(broker, one, response)

    # ---- what waits ----

    def _hold(self, one: HeldRequest) -> bool:
        if self._held.full(one.holders, len(one.request.body)):
            return False
        self._keep(one)
        if self._is_ending:
            one.connection.reset_on_close()
        if len(self._held) == 1:
            self._wake()  # it looks again by itself as long as something is held
        return True

    def _keep(self, one: HeldRequest) -> None:
        self._held.add("", one, holders=one.holders, size=len(one.request.body))

    def step(self) -> bool:
        """Send held requests if the master is connected, and refuse requests that waited too long. Return
        whether more wait."""
        broker = self._broker
        if broker is None:
            return False
        now = broker.clock()
        link = self._link() if now >= self._again_at else None
        for one in self._held.drain():
            if one.connection.is_closed:
                continue
            if now >= one.until:
                self._give_up(broker, one)
            elif link is None or link.is_closed or link.is_busy or not self._send(broker, one, link):
                self._keep(one)
        return bool(self._held)

    def _give_up(self, broker: Broker, one: HeldRequest) -> None:
        """Give up a request: answer with the master's refusal, or without forwarding."""
        self._manager.count_forwarded(refused=True)
        if one.refusal is not None:
            _answer(broker, one, one.refusal)
        elif not one.connection.is_closed:
            broker.run_late(one.fallback, one.request, one.connection)

    # ---- the connection to the master ----

    def on_response(self, response: Command, connection: Connection) -> None:
        """The master has answered."""
        if self._broker is not None:
            self._broker.pending_requests.on_response(response, connection)

    def on_close(self, connection: Connection) -> None:
        """The connection to a master has ended."""
        if self._broker is not None:
            self._broker.pending_requests.on_close(connection)


def _answer(broker: Broker, one: HeldRequest, response: Command) -> None:
    if not one.connection.is_closed:
        broker.run_late(lambda request, connection, now: response, one.request, one.connection)
