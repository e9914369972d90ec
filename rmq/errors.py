"""Every exception of rmq, and the mapping from response codes to them.

The tree follows the side that can remove the cause: the caller (`ConfigError`, `InvalidName`), the network
(`ConnectFailed`, `ConnectionLost`, `RequestTimeout`), the peer (`ResponseError` and its kinds), the disk
(`StoreError`). Each class has `retriable`, which is true if the same request may succeed elsewhere or later,
and `hint`, the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final


class RmqError(Exception):
    """The root of all errors that rmq raises on purpose.

    `retriable`: the same request may succeed elsewhere or later. `hint`: a sentence with the remedy. `broker`
    is the name or address of the server of the error, empty without a server.
    """

    retriable: ClassVar[bool] = False
    hint: str = ""
    broker: str = ""


class ConfigError(RmqError, ValueError):
    """A setting or an argument has a wrong value: `key`, `value`, the `expected` form, and the source."""

    hint = "correct the setting where it is written"

    def __init__(self, key: str, value: object, expected: str, source: str = "") -> None:
        where = f" ({source})" if source else ""
        super().__init__(f"{key} = {value!r:.200}{where}: expected {expected}")
        self.key, self.value, self.expected, self.source = key, value, expected, source


class InvalidType(ConfigError, TypeError):
    """An argument is of a wrong type: `key`, `value`, what was `expected`."""

    hint = "correct the call"


def check_type(argument: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Raises InvalidType unless `value` is one of `kinds`; True and False are no numbers."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise InvalidType(argument, value, expected)


def check_number(argument: str, value: object, least: float, *, whole: bool = True) -> None:
    """Raises InvalidType unless `value` is a number, ConfigError when it is less than `least`."""
    kind, expected = ((int,), "an int") if whole else ((int, float), "a number")
    check_type(argument, value, kind, f"{expected}, at least {least:g}")
    assert isinstance(value, (int, float))
    if not value >= least:  # so written, NaN is refused
        raise ConfigError(argument, value, f"{expected}, at least {least:g}")


def check_callable(
    argument: str, value: object, expected: str, *, takes: int | None = 1, is_awaited: bool = True
) -> None:
    """Raises InvalidType unless `value` can be called, with so many arguments; None: with any. A generator
    function is refused, because a call runs nothing of it; with `is_awaited` false an async function is
    refused, because nothing awaits its result."""
    if not callable(value):
        raise InvalidType(argument, value, expected)
    from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature

    forms = value, getattr(value, "__call__", None)  # noqa: B004 - of an object
    if any(isgeneratorfunction(one) or isasyncgenfunction(one) for one in forms):
        raise InvalidType(argument, value, f"{expected}, without yield: a call would run nothing of it")
    if not is_awaited and any(map(iscoroutinefunction, forms)):
        raise InvalidType(argument, value, f"{expected}, not async: nothing awaits its result")
    if takes is None:
        return
    try:
        form = signature(value)
    except ValueError:  # the arguments of some functions in C are not known
        return
    try:
        form.bind(*[None] * takes)
    except TypeError as error:
        raise InvalidType(argument, value, f"{expected} ({error})") from None


def not_open(what: str, use: str = "use the consumer") -> LocalProtocolError:
    """The error of an object that is used outside of its block: `what` names the object, `use` the remedy."""
    return LocalProtocolError(f"the {what} is not open: {use} inside its block")


class InvalidName(RmqError, ValueError):
    """A topic or group name that RocketMQ does not allow."""

    hint = "use 1 to 127 letters, digits and the characters % | _ -"

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(f"{kind} {name!r} is not a valid name: {reason}")
        self.kind, self.name, self.reason = kind, name, reason


class LocalProtocolError(RmqError):
    """A message or an argument of the local side breaks the protocol: a wrong argument of the caller, or a
    bug in rmq."""

    hint = "correct the call: the error names the fault"


class RemoteProtocolError(RmqError):
    """Bytes of the other side break the protocol: the connection ends."""

    hint = "check that a RocketMQ server listens there, and that both sides agree on TLS"


class ConnectFailed(RmqError, ConnectionError):
    """No connection to `address` could be made; `cause` has the stage and the reason. With `was_open` the
    peer ended an open connection before the request was written."""

    retriable = True
    hint = "check that the server runs, and that the address it registered is reachable from here"

    def __init__(self, address: str, cause: object, *, was_open: bool = False) -> None:
        super().__init__(f"cannot connect to {address}: {cause}")
        self.address, self.cause, self.was_open = address, cause, was_open
        self.broker = address


class ConnectionLost(RmqError, ConnectionError):
    """The connection to `address` ended while a caller waited for it.

    With `was_sent` the server may have carried the request out; without it, the connection ended before the
    request was written.
    """

    retriable = True
    hint = "try again; the request may have been carried out"

    def __init__(self, address: str, cause: object = None, *, was_sent: bool = True) -> None:
        super().__init__(f"connection to {address} was lost" + (f": {cause}" if cause else ""))
        self.address, self.cause, self.was_sent = address, cause, was_sent
        self.broker = address
        if not was_sent:
            self.hint = "try again; the request was not sent"


MUTE: Final = ", and has never sent a byte: is it a RocketMQ server?"
"""End of the error text for a peer that has never sent a byte."""


class RequestTimeout(RmqError, TimeoutError):
    """`address` did not answer request `code` within `seconds`. The server may have carried the request
    out."""

    retriable = True
    hint = "try again or wait longer; the request may have been carried out"

    def __init__(self, address: str, code: int, seconds: float, *, is_mute: bool = False) -> None:
        """`is_mute`: the peer has never sent a byte."""
        text = f"{address} did not answer request {code} within {seconds:g} s"
        super().__init__(text + MUTE if is_mute else text)
        self.address, self.code, self.seconds = address, code, seconds
        self.broker = address


NETWORK_ERRORS = (ConnectFailed, ConnectionLost, RequestTimeout)
"""Errors of the network, which say nothing about the request itself: another server may answer it."""


class WindowFull(RmqError, TimeoutError):
    """A send found no room within `seconds`: `size` sends to `broker` are in flight. The message was not
    sent."""

    retriable = True
    hint = "send fewer at once, or let sends wait longer (send_queue_ms); see how busy the broker is"

    def __init__(self, broker: str, size: int, seconds: float) -> None:
        super().__init__(f"{size} sends were on their way to {broker} for {seconds:g} s: no room for another")
        self.broker, self.size, self.seconds = broker, size, seconds


class ReplyTimeout(RequestTimeout):
    """The request was stored, but no reply came within `seconds`."""

    retriable = False
    hint = "check that consumers of the topic run, and that they reply"

    def __init__(self, message_id: str, topic: str, code: int, seconds: float) -> None:
        RmqError.__init__(self, f"no reply to message {message_id} in {topic} within {seconds:g} s")
        self.address, self.code, self.seconds = topic, code, seconds
        self.message_id = message_id
        self.hint = f"check that consumers of {topic} run, and that they reply"


class PortInUse(RmqError, OSError):
    """Another process listens on `address`; `setting` is the setting with that address, where it is known."""

    hint = "see which process listens there, for example with ss -ltnp"

    def __init__(self, address: str, setting: str = "") -> None:
        by = f" ({setting})" if setting else ""
        what = "stop the other process or choose another port"
        super().__init__(f"cannot listen on {address}{by}: the port is in use; {what}")
        self.address = address


class ResponseError(RmqError):
    """The other side refused a request: `code` and `remark` are its response, `address` its address."""

    code: int = 1
    hint = "read the remark: it is the server's own reason"
    refresh_route: ClassVar[bool] = False

    def __init__(self, code: int | None = None, remark: str | None = None, address: str = "") -> None:
        self.code = type(self).code if code is None else code
        self.remark = remark or ""
        self.address = self.broker = address
        if type(self) is ResponseError:
            self.hint = _HINTS.get(self.code, self.hint)
        where = f"{address}: " if address else ""
        super().__init__(f"{where}{type(self).__name__} ({self.code}): {self.remark or 'no reason given'}")


_HINTS = {
    4: "read the remark, and send the message again",
    15: "take a newer client: the broker does not serve one of this version",
    18: "take another name: there is a topic of that name",
    27: "wait for the next heartbeat: the broker has no filter data of this consumer yet",
    28: "wait for the next heartbeat: the broker has newer filter data",
    203: "end the transaction with the producer group that began it",
    207: "look at what the client does with the message: it was not consumed in time",
    208: "check the id: there is no such message",
    209: "read the remark; only an administrator may change accounts",
    210: "read the remark; only an administrator may delete accounts",
    211: "read the remark; only an administrator may change the white addresses",
    215: "slow down: the broker limits how fast this client may ask",
}
"""The class for response codes without a class of their own."""


class SystemFailure(ResponseError):
    """The server failed inside; its log has the traceback."""

    code, retriable = 1, True
    hint = "read the remark and the server's log, and try again"


_WAIT: Final = re.compile(r"retry in ([0-9]{1,9}) ms")


class SystemBusy(ResponseError):
    """The broker refuses the request for now: it is overloaded, or the account is over its quota."""

    code, retriable = 2, True
    hint = "slow down or add brokers; the remark has the numbers"

    @property
    def wait_seconds(self) -> float:
        """Seconds to wait, from the response to an account over its quota; 0 without a number in the
        response."""
        found = _WAIT.search(self.remark or "")
        return 0.0 if found is None else int(found[1]) / 1000


class RequestCodeNotSupported(ResponseError):
    """The server does not know this request."""

    code = 3
    hint = "check that it is a server of the right kind, and new enough for this request"


class FlushDiskTimeout(ResponseError):
    """Stored, but not on disk in time. In the response to a send this is a status, not an error."""

    code = 10
    hint = "the message is stored; if this repeats, the disk is slow: see syncFlushTimeout"


class SlaveNotAvailable(ResponseError):
    """Stored, but no slave is available for a copy. In the response to a send this is a status, not an
    error."""

    code = 11
    hint = "the message is stored; start a slave, or let the master be an ASYNC_MASTER"


class FlushSlaveTimeout(ResponseError):
    """Stored, but not on a slave in time. In the response to a send this is a status, not an error."""

    code = 12
    hint = "the message is stored; if this repeats, the slave or the network to it is slow"


class MessageIllegal(ResponseError):
    """The broker refuses this message: its size, properties or topic name."""

    code = 13
    hint = "correct the message as the remark says"


class InvalidMessage(MessageIllegal, ValueError):
    """A message, or a batch, that breaks a rule: the remark names the field, its value and the allowed
    values. Raised before anything is sent."""

    hint = "correct the message"

    def __str__(self) -> str:
        return self.remark


class InvalidMessageType(InvalidMessage, TypeError):
    """A field of a message has a wrong type: the remark names the field, its value and the expected type."""


class ServiceNotAvailable(ResponseError):
    """The broker cannot write now: disk full, slave role or shutting down; the remark says which."""

    code, retriable = 14, True
    hint = "look at the broker's disk and log; another broker of the topic may take the message"


class NoPermission(ResponseError):
    """The topic, group or account does not allow this."""

    code, retriable = 16, True
    hint = "check the permissions of the topic and of the account"


class TopicNotExist(ResponseError):
    """The topic is unknown, and is not created automatically."""

    code, retriable, refresh_route = 17, True, True
    hint = "create the topic, or set autoCreateTopicEnable=true on the broker"


class PullNotFound(ResponseError):
    """No message at that offset yet."""

    code = 19
    hint = "wait: the pull continues when messages arrive"


class PullRetryImmediately(ResponseError):
    """No message matched in the part that was searched; continue from the offset in the response."""

    code = 20
    hint = "continue from the offset in the response"


class PullOffsetMoved(ResponseError):
    """The offset is outside of the queue; the response names a valid offset."""

    code = 21
    hint = "continue from the offset in the response"


class QueryNotFound(ResponseError):
    """No message is stored for this query."""

    code = 22
    hint = "check the key, the id and the time; old messages are deleted after fileReservedTime"


class SubscriptionParseFailed(ResponseError):
    """The broker cannot read the filter expression."""

    code = 23
    hint = "correct the expression; SQL92 needs enablePropertyFilter=true on the broker"


class SubscriptionNotExist(ResponseError):
    """The broker has no subscription of the group to this topic (yet)."""

    code = 24
    hint = "let all members of the group subscribe to the same; a new one waits for its heartbeat"


class SubscriptionNotLatest(ResponseError):
    """The broker has a newer subscription of this group than the one in the request."""

    code = 25
    hint = "restart the members that have the older subscription"


class SubscriptionGroupNotExist(ResponseError):
    """The consumer group is unknown, and is not created automatically."""

    code = 26
    hint = "create the group, or set autoCreateSubscriptionGroup=true on the broker"


class NoBuyerId(ResponseError):
    """The message lacks the buyer id that this broker's unit asks for."""

    code, retriable = 204, True
    hint = "give the message the property that its unit asks for"


class NotInCurrentUnit(ResponseError):
    """The message belongs to another unit than this broker's."""

    code, retriable = 205, True
    hint = "another broker of the topic may belong to the unit"


class ConsumerNotOnline(ResponseError):
    """No member of the group is connected."""

    code = 206
    hint = "start a member of the group"


_KINDS: dict[int, type[ResponseError]] = {kind.code: kind for kind in ResponseError.__subclasses__()}


class AccessDenied(NoPermission):
    """The account is not known to the server, its signature is wrong, or a plugin refused the request."""

    retriable = False
    hint = "check the account and its permissions"


class AskerGone(SystemFailure):
    """No client waits for this reply: the client that asked has disconnected, or its time-out has passed."""

    retriable = False
    hint = "drop the request: its sender does not wait for the reply any more"


_REMARKS = (
    (
        re.compile(
            r"[Cc]heck signature failed|No accessKey is configured|No acl config for|AclException.*signature"
            r"|User:.* is not found|username cannot be null"
        ),
        (NoPermission.code, SystemFailure.code),
        AccessDenied,
    ),
    (re.compile(r"push reply message\b.*\b(fail|not found)"), (SystemFailure.code,), AskerGone),
)
"""Errors that have no response code, in RocketMQ neither: the text tells them apart. RocketMQ's own broker
refuses an account with code 1; rmq and RocketMQ 5.x use 16."""


def for_code(code: int, remark: str | None = None, address: str = "") -> ResponseError:
    """The exception for a response code; a code without a class of its own gives a plain ResponseError."""
    kind = _KINDS.get(code, ResponseError)
    if remark and code in (NoPermission.code, SystemFailure.code):
        kind = next((one for text, codes, one in _REMARKS if code in codes and text.search(remark)), kind)
    return kind(code, remark, address)


class NoRoute(RmqError):
    """No name server knows a broker for `topic`; with `refused`, no name server accepts this account."""

    retriable = True
    hint = "create the topic, or check that a broker is registered at the name servers"

    def __init__(
        self, topic: str, asked: Sequence[str] = (), detail: str = "", *, refused: bool = False
    ) -> None:
        servers = f" at {', '.join(asked)}" if asked and not refused else ""
        what = "refused: the route of" if refused else "no route for"
        super().__init__(f"{what} topic {topic!r}{servers}" + (f": {detail}" if detail else ""))
        self.topic, self.asked, self.refused = topic, tuple(asked), refused
        self.hint = f"create the topic {topic!r}, or check that a broker is registered at these name servers"
        if refused:
            self.hint = "check the account and its permissions"


class Unreachable(NoRoute, ConnectionError):
    """No name server could be asked: `causes` has the error of each address."""

    hint = "check that the name servers run, and that these addresses are reachable from here"

    def __init__(self, topic: str, causes: Mapping[str, Exception]) -> None:
        super().__init__(topic, tuple(causes))
        self.causes = dict(causes)
        why = "; ".join(str(cause) for cause in causes.values())
        asked = f" for the route of topic {topic!r}" if topic else ""
        self.args = (f"no name server could be asked{asked}: {why}",)
        self.hint = type(self).hint


class NotNameServers(NoRoute):
    """The servers at these addresses do not know requests for routes: they are brokers, most likely."""

    retriable = False

    def __init__(self, topic: str, asked: Sequence[str]) -> None:
        super().__init__(topic, asked)
        what = "is no name server: a broker" if len(asked) == 1 else "are no name servers: brokers"
        self.args = (f"{', '.join(asked)} {what}, as it seems; requests for routes are not known there",)
        self.hint = "give the address of a name server: its port is 9876 by default, a broker's 10911"
        self.refused = True


class NotReady(RmqError):
    """A consumer has no place in its group yet, though no call has failed: see `Client.ready`."""

    retriable = True
    hint = "wait longer; brokers tell members of each other within seconds, or within heartbeatBrokerInterval"

    def __init__(self, group: str, topics: Sequence[str] = (), reason: str = "") -> None:
        missing = f"has not got its share of the queues yet of {', '.join(topics)}"
        super().__init__(f"{group} {reason or missing}")
        self.group, self.topics, self.reason = group, tuple(topics), reason
        if reason:
            self.hint = "restart the consumer, or the process, if this lasts"


class InvalidBody(RmqError, ValueError):
    """The body of a message does not fit the model of an app's handler, and the consumer ends: see
    `App.consumer`. The message is redelivered."""

    hint = "correct the model, or the topic; `rmq msg` shows the message"


class StrayCancellation(RmqError):
    """A cancellation that was not aimed at the task in which it was raised: for example, the handler awaited
    a task or a future that another task cancelled. Its `__cause__` is the cancellation."""

    hint = "catch the cancellation where the other task or future is awaited, or shield what is awaited"

    def __init__(self, text: str = "it awaited a task or a future that another task has cancelled") -> None:
        super().__init__(text)


class SendFailed(RmqError):
    """No broker took the message: `attempts` holds (broker, error, seconds); the last error is the cause.
    Equal attempts at the same broker are listed once: `counts` has their numbers, and `seconds` is the last
    one's."""

    retriable = True
    hint = "see the attempts: the last one's hint counts"

    def __init__(
        self, attempts: Sequence[tuple[str, BaseException, float]], counts: Sequence[int] | None = None
    ) -> None:
        latest: dict[tuple[str, str], tuple[tuple[str, BaseException, float], int]] = {}
        for attempt, count in zip(attempts, counts or [1] * len(attempts), strict=True):
            key = attempt[0], str(attempt[1])
            latest[key] = attempt, latest.pop(key, (attempt, 0))[1] + count
        self.attempts = [attempt for attempt, _ in latest.values()]
        self.counts = [count for _, count in latest.values()]
        tries = "; ".join(
            f"{broker} {f'{count} times, last ' if count > 1 else ''}after {elapsed:.3f} s: {error}"
            for (broker, error, elapsed), count in latest.values()
        )
        super().__init__(f"not sent after {sum(self.counts)} attempt(s): {tries}")
        attempts = self.attempts
        if attempts:
            self.broker, self.__cause__ = attempts[-1][0], attempts[-1][1]
            self.hint = getattr(attempts[-1][1], "hint", "") or self.hint


class StoreError(RmqError):
    """The store cannot do the requested work."""

    hint = "look at the broker's log and disk; rmq store check looks into the store's folder"


class CorruptRecord(StoreError):
    """A record at `offset` of `path` is damaged: `reason`. It is not the end of the log."""

    hint = "look with rmq store check, then mend it with rmq store repair"

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: damaged record at offset {offset}: {reason}")
        self.path, self.offset, self.reason = path, offset, reason


class LaterFormat(StoreError):
    """A file was written by a later version of rmq, in a format that this version cannot read."""

    hint = "start the version that wrote it, or a later one; the file is unchanged"

    def __init__(self, path: str, what: str, writer: str) -> None:
        super().__init__(f"{path}: {what}; it was written by rmq {writer or 'of an unknown version'}")
        self.path, self.what, self.writer = path, what, writer


class DiskFull(StoreError):
    """The store's disk has no room; the text has the numbers."""

    hint = "free some room, or keep messages for less time (fileReservedTime)"


class OffsetOutOfRange(StoreError):
    """An offset outside of the store's range."""

    hint = "read between the queue's minimum and maximum offset"


class StoreLocked(StoreError):
    """Another broker owns the store folder `path`."""

    hint = "the folder's lock file is held by a living process: find it with lsof or fuser"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is locked by another broker; stop it or choose another folder (storePathRootDir)"
        )
        self.path = path


class StoreCopied(StoreLocked):
    """Another broker, at `address`, has registered with the identity that our folder `path` holds."""

    hint = "two folders are copies of one: each replica needs a folder of its own"

    def __init__(self, path: str, address: str) -> None:
        StoreError.__init__(
            self,
            f"a broker at {address} has registered with the identity in {path}/config/controller.json: one of"
            " the two folders is a copy; stop the one that is, and remove this file there",
        )
        self.path = path
