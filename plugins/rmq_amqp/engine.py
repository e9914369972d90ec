"""The engine: qpid-proton as a machine of bytes, without its own input, output and event loop.

Links, sessions and the connection are proton's objects. Deliveries, of which there are many, are C pointers:
they are equal and hash alike while the delivery is not settled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import cproton
import proton
from proton._data import dat2obj

from rmq_amqp.values import DEPTH_MAX, Malformed

OPEN: Final = int(cproton.PN_CONNECTION_REMOTE_OPEN)
CLOSE: Final = int(cproton.PN_CONNECTION_REMOTE_CLOSE)
SESSION_OPEN: Final = int(cproton.PN_SESSION_REMOTE_OPEN)
SESSION_CLOSE: Final = int(cproton.PN_SESSION_REMOTE_CLOSE)
LINK_OPEN: Final = int(cproton.PN_LINK_REMOTE_OPEN)
LINK_CLOSE: Final = int(cproton.PN_LINK_REMOTE_CLOSE)
LINK_DETACH: Final = int(cproton.PN_LINK_REMOTE_DETACH)
FLOW: Final = int(cproton.PN_LINK_FLOW)
DELIVERY: Final = int(cproton.PN_DELIVERY)
TRANSPORT_ERROR: Final = int(cproton.PN_TRANSPORT_ERROR)

RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
TRANSACTIONAL: Final = 0x34
DECLARED: Final = 0x33

UNSPECIFIED: Final = int(cproton.PN_UNSPECIFIED)
COPY: Final = int(cproton.PN_DIST_MODE_COPY)
NEVER: Final = int(cproton.PN_EXPIRE_NEVER)
COORDINATOR: Final = int(cproton.PN_COORDINATOR)
_COMPOUND: Final = (cproton.PN_DESCRIBED, cproton.PN_ARRAY, cproton.PN_LIST, cproton.PN_MAP)
_LINK_EVENTS: Final = frozenset({LINK_OPEN, LINK_CLOSE, LINK_DETACH, FLOW})

symbol = proton.symbol


class Engine:
    """One connection, the server's side. `now` is in seconds of any clock that only goes forward."""

    def __init__(self, *, container: str, frame_bytes: int, channels: int, idle_seconds: float) -> None:
        self._transport = proton.Transport(proton.Transport.SERVER)
        self._transport.max_frame_size = frame_bytes
        self._transport.channel_max = channels
        self._transport.idle_timeout = idle_seconds
        self.connection = proton.Connection()
        self.connection.container = container
        self._collector = proton.Collector()
        self.connection.collect(self._collector)
        self._transport.bind(self.connection)
        self._idle_seconds = idle_seconds
        self._has_failed = self._is_deaf = False

    def expect_bytes(self, expects: bool) -> None:
        """Let a silent peer be none that has ended, until bytes are fed again: it is not read from."""
        if self._is_deaf is expects:
            self._is_deaf = not expects
            self._transport.idle_timeout = self._idle_seconds if expects else 0

    def feed(self, data: bytes) -> None:
        """Take bytes of the peer."""
        self.expect_bytes(True)
        at = 0
        while at < len(data) and not self._has_failed:
            room = self._transport.capacity()
            if room <= 0:
                self._has_failed = True  # a close that the peer has sent, or an error: no more bytes are read
                return
            part = data[at : at + room]
            at += len(part)
            try:
                self._transport.push(part)
            except (proton.ProtonException, OverflowError):
                self._has_failed = True

    def events(self) -> Iterator[tuple[int, Any]]:
        """The events so far, each with its link or delivery, as C pointers, or with None."""
        collector = self._collector._impl
        while True:
            event = cproton.pn_collector_peek(collector)
            if cproton.isnull(event):
                return
            kind = cproton.pn_event_type(event)
            if kind == DELIVERY:
                yield kind, cproton.pn_cast_pn_delivery(cproton.pn_event_context(event))
            elif kind in _LINK_EVENTS:
                yield kind, cproton.pn_cast_pn_link(cproton.pn_event_context(event))
            elif kind in (SESSION_OPEN, SESSION_CLOSE):
                yield kind, cproton.pn_cast_pn_session(cproton.pn_event_context(event))
            elif kind in (OPEN, CLOSE, TRANSPORT_ERROR):
                yield kind, None
            cproton.pn_collector_pop(collector)

    def output(self) -> bytes:
        """The bytes for the peer."""
        transport, parts = self._transport, []
        while True:
            try:
                size = transport.pending()
            except proton.ProtonException:
                break
            if size <= 0:
                break
            data = transport.peek(size)
            if not data:
                break
            transport.pop(len(data))
            parts.append(bytes(data))
        return b"".join(parts)

    @property
    def is_done(self) -> bool:
        """True if no more bytes are sent: the connection was closed, or has failed."""
        try:
            return bool(self._transport.pending() < 0)
        except proton.ProtonException:
            return True

    @property
    def error(self) -> str:
        """The reason why the engine has ended the connection; empty without one."""
        condition = self._transport.condition
        return "" if condition is None else f"{condition.name}: {condition.description}"

    def tick(self, now: float) -> float:
        """Check the idle time-outs; returns the time of the next check, 0 without one."""
        try:
            return float(self._transport.tick(now))
        except proton.ProtonException:
            return 0.0

    def close(self, condition: str = "", text: str = "", info: dict[Any, Any] | None = None) -> None:
        """Close the connection, with an error or without."""
        if condition:
            self.connection.condition = proton.Condition(condition, text, info)
        self.connection.close()

    def release(self) -> None:
        """Release the connection: no part of it is used any more."""
        self._transport.unbind()
        self.connection.free()
        self._collector.release()


# ---- links ----


def link_of(pointer: Any) -> Any:
    """proton's link of a pointer."""
    return proton.Link.wrap(pointer)


def session_of(pointer: Any) -> Any:
    """proton's session of a pointer."""
    return proton.Session.wrap(pointer)


def accept_link(link: Any) -> None:
    """Open a link that its peer has requested."""
    link.source.copy(link.remote_source)
    link.target.copy(link.remote_target)
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = link.remote_rcv_settle_mode


def accept_coordinator(link: Any) -> None:
    """Mark a link as a link to the coordinator of transactions."""
    accept_link(link)
    link.target.type = COORDINATOR
    link.target.capabilities.put_object(proton.symbol("amqp:local-transactions"))


def describe_subscription(link: Any, topic: str) -> None:
    """Name the durable subscription in the source of a link."""
    source = link.source
    source.type = proton.Terminus.SOURCE
    source.address = topic
    source.durability = proton.Terminus.DELIVERIES
    source.expiry_policy = proton.Terminus.EXPIRE_NEVER
    source.capabilities.put_object(proton.symbol("topic"))


def refuse_link(link: Any, condition: str, text: str) -> None:
    """Refuse a link: open it without a terminus, and close it by an error."""
    for terminus in (link.source, link.target):
        terminus.type = proton.Terminus.UNSPECIFIED
    link.open()
    end_link(link, condition, text)


def end_link(link: Any, condition: str = "", text: str = "") -> None:
    """Close a link, with an error or without."""
    if condition:
        set_condition(link, condition, text)
    link.close()


def set_condition(link: Any, condition: str, text: str) -> None:
    """Set the error with which a link will end."""
    link.condition = proton.Condition(condition, text)


# ---- values of a peer ----


def _value(data: Any) -> Any:
    """The first value of a peer's data; None without one. Raises Malformed when it is nested too deep, or
    cannot be read: proton reads values by a recursion, and raises all kinds of errors."""
    cproton.pn_data_rewind(data)
    depth = 0
    while depth >= 0:
        if not cproton.pn_data_next(data):
            depth -= 1
            if depth >= 0:
                cproton.pn_data_exit(data)
        elif cproton.pn_data_type(data) in _COMPOUND:
            depth += 1
            if depth > DEPTH_MAX:
                raise Malformed(f"values are nested deeper than {DEPTH_MAX}")
            cproton.pn_data_enter(data)
    try:
        return dat2obj(data)
    except Exception as error:
        raise Malformed(f"a value cannot be read: {error!r:.200}") from None


def _words(value: Any) -> list[str]:
    if isinstance(value, proton.Array):
        value = list(value.elements)
    found = value if isinstance(value, (list, tuple)) else [value]
    return [str(one) for one in found if isinstance(one, str)]


def words(data: Any) -> list[str]:
    """The symbols of a field of a terminus. Raises Malformed."""
    return _words(_value(data._data))


def desired_capabilities(connection: Any) -> list[str]:
    """The capabilities that a peer requests when it opens the connection. Raises Malformed."""
    return _words(_value(cproton.pn_connection_remote_desired_capabilities(connection._impl)))


def fields_of(data: Any) -> Any:
    """The first value of a field of a terminus; None without one. Raises Malformed."""
    return _value(data._data)


# ---- deliveries of a peer ----


link_behind = cproton.pn_delivery_link
session_behind = cproton.pn_link_session
is_partial = cproton.pn_delivery_partial
is_aborted = cproton.pn_delivery_aborted
is_readable = cproton.pn_delivery_readable
is_settled = cproton.pn_delivery_settled
is_updated = cproton.pn_delivery_updated
remote_state = cproton.pn_delivery_remote_state
settle = cproton.pn_delivery_settle
credit_of = cproton.pn_link_credit
is_draining = cproton.pn_link_get_drain
drained = cproton.pn_link_drained
give_credit = cproton.pn_link_flow


def receive(link: Any, inbox: bytearray) -> None:
    """Take the bytes of the current delivery of a link."""
    while size := cproton.pn_delivery_pending(cproton.pn_link_current(link)):
        count, data = cproton.pn_link_recv(link, size)
        if count <= 0:
            return
        inbox += data


def drop(link: Any, delivery: Any) -> None:
    """Release a delivery on a link that has ended on this side."""
    if cproton.pn_link_is_receiver(link) and cproton.pn_delivery_readable(delivery):
        receive(link, bytearray())
        if not cproton.pn_delivery_partial(delivery):
            cproton.pn_link_advance(link)
            cproton.pn_delivery_settle(delivery)


def advance(link: Any) -> None:
    """Move to the next delivery of a link."""
    cproton.pn_link_advance(link)


def is_failed(delivery: Any) -> bool:
    """True if the outcome `modified` reports a failed delivery."""
    return bool(cproton.pn_disposition_is_failed(cproton.pn_delivery_remote(delivery)))


def is_undeliverable(delivery: Any) -> bool:
    """True if the outcome `modified` rejects the message for this link."""
    return bool(cproton.pn_disposition_is_undeliverable(cproton.pn_delivery_remote(delivery)))


def state_of(delivery: Any) -> Any:
    """The fields of the peer's state, if it is not one of the outcomes. Raises Malformed."""
    return _value(cproton.pn_disposition_data(cproton.pn_delivery_remote(delivery)))


def update(delivery: Any, state: int, condition: str = "", text: str = "", fields: Any = None) -> None:
    """Send the state of a delivery to the peer, and settle it."""
    local = cproton.pn_delivery_local(delivery)
    if condition:
        error = cproton.pn_disposition_condition(local)
        cproton.pn_condition_set_name(error, condition)
        cproton.pn_condition_set_description(error, text)
    if fields is not None:
        proton.Data(cproton.pn_disposition_data(local)).put_object(fields)
    cproton.pn_delivery_update(delivery, state)
    cproton.pn_delivery_settle(delivery)


def accept_within(delivery: Any, transaction: bytes) -> None:
    """Accept a delivery as part of a transaction."""
    outcome = proton.Described(proton.ulong(ACCEPTED), [])
    update(delivery, TRANSACTIONAL, fields=[transaction, outcome])


# ---- deliveries to a peer ----


def send(link: Any, tag: bytes, data: bytes, *, is_settled: bool) -> Any:
    """Send a message; returns its delivery, which must not be used any more when it is sent settled."""
    delivery = cproton.pn_delivery(link, tag)
    cproton.pn_link_send(link, data)
    cproton.pn_link_advance(link)
    if is_settled:
        cproton.pn_delivery_settle(delivery)
    return delivery


def unsent(link: Any) -> int:
    """Bytes of the link's session that wait to be sent."""
    return int(cproton.pn_session_outgoing_bytes(cproton.pn_link_session(link)))


def unsent_of(session: Any) -> int:
    """Bytes of a session that wait to be sent."""
    return int(cproton.pn_session_outgoing_bytes(session))
