"""Frames: bytes to commands and back, in either form of the header.

A frame is its length (4 bytes, not counting themselves), the form (1 byte) and length (3 bytes) of the
header, the header, and the body. Big-endian. A reply uses the form of its request. `Decoder` takes bytes as
they come and gives whole commands; only the decoder keeps an unfinished frame.

The work of every frame and every message is in a few functions over buffers, which know nothing of
connections, brokers or stores. Compiled functions could replace them: `split_frames` (bytes to commands; with
the compiled engine a run of plain sends stays a value) and `encode_pull_reply_head` in this module,
`build_record`, `build_batch`, `decode_batch` and `decode_record` in `rmq.protocol.record`,
`decode_properties` and the caches of `SentProperties` and `TagsAndKeys` in `rmq.protocol.properties`; and the
responses to sends, `Answers.stored` in `rmq.broker.produce.acks`. Their tests compare them with the general
functions.
"""

from __future__ import annotations

import json
from itertools import repeat
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final

from rmq.errors import LocalProtocolError, RemoteProtocolError
from rmq.protocol.codes import LANGUAGE, VERSION
from rmq.protocol.command import JSON, MAX_FRAME, ROCKETMQ, Command
from rmq.protocol.damaged import KINDS, LongHeader, refusal, request_of
from rmq.protocol.header_binary import read_binary, write_binary
from rmq.protocol.header_json import TYPED_READERS, read_general, read_json, write_json

if TYPE_CHECKING:
    from rmq.protocol._engine import AnswerReader, Lanes

_PREFIX = Struct(">iI")
_LENGTH = Struct(">i")

# --- reading ---


def split_frames(
    data: bytes, max_frame: int, max_header: int = 0xFF_FFFF, most: int = 0x7FFF_FFFF
) -> tuple[list[Command], int]:
    """The whole frames at the start of `data`, a limited number of them, as commands, and the number of bytes
    that they took.

    Raises RemoteProtocolError for impossible lengths and for headers that cannot be read.
    """
    commands: list[Command] = []
    add = commands.append
    typed, general = TYPED_READERS.get, read_general
    unpack = _PREFIX.unpack_from
    at, end = 0, len(data)
    for _ in repeat(None, most):
        if end - at < 8:
            break
        length, word = unpack(data, at)
        header_length = word & 0xFF_FFFF
        if header_length > max_header or not header_length + 4 <= length <= max_frame:
            raise _bad_length(length, header_length, max_frame, max_header)
        stop = at + 4 + length
        if stop > end:
            break
        body_at = at + 8 + header_length
        header = data[at + 8 : body_at]
        kind = word >> 24
        if kind == JSON:
            command = typed(header[:12], general)(header) or read_json(header)
        elif kind == ROCKETMQ:
            command = read_binary(header)
        else:
            raise _bad_kind(kind)
        command.body = data[body_at:stop]
        add(command)
        at = stop
    if end - at >= 4:
        frame_size(data, at, max_frame)
    return commands, at


def read_head(data: bytes) -> tuple[Command, int]:
    """The command at the start of `data`, if its header is whole, without its body, and the length of the
    body.

    Raises RemoteProtocolError for a header that cannot be read.
    """
    length, word = _PREFIX.unpack_from(data, 0)
    size = word & 0xFF_FFFF
    header, kind = data[8 : 8 + size], word >> 24
    if kind == JSON:
        return TYPED_READERS.get(header[:12], read_general)(header) or read_json(header), length - 4 - size
    if kind == ROCKETMQ:
        return read_binary(header), length - 4 - size
    raise _bad_kind(kind)


def head_size(data: bytes) -> int:
    """Bytes of the frame at the start of `data` up to its body; `data` has at least 8 bytes of the frame."""
    word: int = _PREFIX.unpack_from(data, 0)[1]
    return 8 + (word & 0xFF_FFFF)


def frame_size(data: bytes, at: int, max_frame: int = 0x7FFF_FFFF) -> int:
    """Bytes of the frame that begins at `at`, its length field included. Raises RemoteProtocolError."""
    length: int = _LENGTH.unpack_from(data, at)[0]
    if not 4 <= length <= max_frame:
        raise _bad_length(length, 0, max_frame)
    return length + 4


def _bad_kind(kind: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"serialization type {kind} is neither 0 (JSON) nor 1 (ROCKETMQ)")


_OTHER_SERVERS: Final = {
    b"HTTP": "an HTTP server",
    b"<!DO": "an HTTP server",  # the answer of some servers to a text that is no request
    b"<htm": "an HTTP server",
    b"<HTM": "an HTTP server",
    b"SSH-": "an SSH server",
    b"-ERR": "a Redis server",
}
"""Other servers, by the first bytes of their answers, which would be read as the length of a frame."""


def _bad_length(
    length: int, header_length: int, max_frame: int, max_header: int = 0xFF_FFFF
) -> RemoteProtocolError:
    if (server := _OTHER_SERVERS.get((length & 0xFFFF_FFFF).to_bytes(4, "big"))) is not None:
        return RemoteProtocolError(f"{server} speaks there, none of RocketMQ: check the address and the port")
    if length > max_frame:
        return RemoteProtocolError(f"a frame of {length} bytes is over the limit of {max_frame}")
    if length < 4:
        return RemoteProtocolError(f"a frame of {length} bytes cannot be")
    if max_header < header_length <= length:
        return RemoteProtocolError(f"a header of {header_length} bytes is over the limit of {max_header}")
    return RemoteProtocolError(f"a header of {header_length} bytes does not fit a frame of {length} bytes")


# --- writing ---


class Framed:
    """A request with a ready frame, and the fields by which its response is found."""

    __slots__ = ("code", "frame", "opaque")

    def __init__(self, code: int, opaque: int, frame: bytes) -> None:
        self.code = code
        self.opaque = opaque
        self.frame = frame


def json_frame(header: str, body: bytes) -> bytes:
    """The frame of a header that is JSON."""
    return _frame(header.encode(), body, JSON)


def encode(command: Command | Framed) -> bytes:
    """The frame of any command, in its own serialization. Raises LocalProtocolError for a command that cannot
    be encoded."""
    if isinstance(command, Framed):
        return command.frame
    try:
        if command.serialization == ROCKETMQ:
            return _frame(write_binary(command), command.body, ROCKETMQ)
        return _frame(write_json(command), command.body, JSON)
    except (ValueError, TypeError, struct_error) as error:
        raise LocalProtocolError(f"command {command.code} has no frame: {error}") from error


def _frame(header: bytes, body: bytes, kind: int) -> bytes:
    size = len(header)
    return b"".join((_PREFIX.pack(4 + size + len(body), kind << 24 | size), header, body))


_inside_json: dict[str, str] = {}


def _escaped(text: str) -> str:
    """`text` in its form between the quotes of a JSON text; remembered, for the few texts of replies."""
    known = _inside_json.get(text)
    if known is None:
        if len(_inside_json) >= _TEXTS_MAX:
            _inside_json.clear()
        known = _inside_json[text] = json.dumps(text, ensure_ascii=False)[1:-1]
    return known


_TEXTS_MAX: Final = 1024
_REPLY_END: Final = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
_LANGUAGE: Final = f'"flag":1,"language":"{LANGUAGE}","opaque":'


def encode_pull_reply_head(
    request: Command,
    code: int,
    remark: str,
    offsets: tuple[int, int, int, int],
    body_length: int,
) -> bytes:
    """The frame of a pull's answer up to its body of `body_length` bytes, which the caller sends after it.

    `offsets` are (broker id to ask next, next begin, min, max).
    """
    suggest, next_begin, low, high = offsets
    if request.serialization == ROCKETMQ:
        ext = {
            "suggestWhichBrokerId": str(suggest),
            "nextBeginOffset": str(next_begin),
            "minOffset": str(low),
            "maxOffset": str(high),
        }
        reply = Command(code, request.opaque, 1, ext, remark=remark, serialization=ROCKETMQ)
        head = write_binary(reply)
        return _PREFIX.pack(4 + len(head) + body_length, ROCKETMQ << 24 | len(head)) + head
    header = (
        f'{{"code":{code:d},"extFields":{{"suggestWhichBrokerId":"{suggest}","maxOffset":"{high}",'
        f'"nextBeginOffset":"{next_begin}","minOffset":"{low}"}},{_LANGUAGE}{request.opaque},'
        f'"remark":"{_inside_json.get(remark) or _escaped(remark)}"{_REPLY_END}'
    ).encode()
    size = len(header)
    return _PREFIX.pack(4 + size + body_length, size) + header


def encode_pop_reply_head(
    opaque: int, times: tuple[int, int], starts: str, offsets: str, counts: str, body_length: int
) -> bytes:
    """The frame of a pop's answer up to its body of `body_length` bytes, which the caller sends after it.

    `times` are the time of the take and the length of the leases (ms); the texts are those of
    `PopMessageResponseHeader`, and have no character that JSON escapes. The request is JSON: the code of a
    pop does not fit the binary form.
    """
    taken, invisible = times
    header = (
        f'{{"code":0,"extFields":{{"popTime":"{taken}","invisibleTime":"{invisible}","reviveQid":"0",'
        f'"restNum":"0","startOffsetInfo":"{starts}","msgOffsetInfo":"{offsets}","orderCountInfo":"{counts}"}},'
        f"{_LANGUAGE}{opaque}{_REPLY_END}"
    ).encode()
    size = len(header)
    return _PREFIX.pack(4 + size + body_length, size) + header


def encode_ack_reply(opaque: int) -> bytes:
    """The frame of a good answer to an acknowledgement. The request is JSON, as a pop."""
    header = f'{{"code":0,{_LANGUAGE}{opaque}{_REPLY_END}'.encode()
    return _PREFIX.pack(4 + len(header), len(header)) + header


# --- a stream ---

_SMALL_BYTES: Final = 4096
REFUSED_AT_ONCE: Final = 16
"""Frames that cannot be read, in one call of `feed`: each costs some 0.2 ms, and other peers wait."""
_NO_LIMIT: Final = 0x7FFF_FFFF
SKIPPED_FRAMES: Final = 4
"""Factor: a frame of up to this many times `max_frame` is read and dropped; a longer one ends its
connection."""


class Decoder:
    """Bytes in, commands out, however the bytes are cut. Holds at most one unfinished frame.

    The work is linear in the bytes fed. `max_frame` and `max_header` are the most bytes of a frame and of its
    header. `feed` gives at most `most` commands; when `has_more` is set, a call with no bytes gives the next
    commands. The header of an unfinished frame of more than `ask_from` bytes is shown in `head` before its
    body is collected. With `lanes`, of the compiled engine, a run of plain sends is one value among the
    commands, a `SendRun`; an `AnswerReader` in place of lanes reads the responses to a client. A request that
    cannot be read, or is too long, is dropped, and `refused` has its response.
    """

    __slots__ = (
        "_ask_from",
        "_is_shown",
        "_lanes",
        "_long",
        "_most",
        "_needed",
        "_pieces",
        "_unread",
        "buffered",
        "has_more",
        "head",
        "head_body",
        "max_frame",
        "max_header",
        "refused",
    )

    def __init__(
        self,
        max_frame: int = MAX_FRAME,
        *,
        max_header: int = _NO_LIMIT,
        most: int = _NO_LIMIT,
        ask_from: int = _NO_LIMIT,
        lanes: Lanes | AnswerReader | None = None,
    ) -> None:
        self.max_frame = max_frame
        self.max_header = max_header
        self.buffered = 0
        """Held bytes of the unfinished frame."""
        self.has_more = False
        self.head: Command | None = None
        """A command whose body has not come yet. Its reader sets this to None, and may `skip` the body."""
        self.head_body = 0
        """Bytes of the body of `head`."""
        self.refused: list[Command] = []
        """Responses to dropped requests. The sender of the responses clears the list."""
        self._most = most
        self._ask_from = ask_from
        self._lanes = lanes
        self._pieces: list[bytes | bytearray] = []  # of the unfinished frame
        self._needed = 0  # bytes that are needed before the next look: the whole frame, or its header
        self._is_shown = False  # the header of the unfinished frame was
        self._unread = 0  # bytes of a skipped frame that have not come yet
        self._long: LongHeader | None = None  # of the skipped frame, until its header has come

    def feed(self, data: bytes) -> list[Command]:
        """The commands that `data` completes.

        Raises RemoteProtocolError, which ends the connection: the stream cannot be read any further, or a
        request that cannot be read has no opaque for a response.
        """
        if data.__class__ is not bytes:
            data = bytes(data)  # a WebSocket gives bytearrays; templates of headers keep slices as keys
        if self._unread:
            data = self._drop(data)
        self.has_more = False
        if self._pieces:
            self._add(data)
            if self.buffered < self._needed:
                return []
            # One join, however many pieces there are: a large frame is copied once.
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.buffered = 0
        try:
            if self._lanes is None:
                commands, consumed = split_frames(data, self.max_frame, self.max_header, self._most)
                count = len(commands)
            else:
                commands, consumed, count = self._lanes.split(
                    data, self.max_frame, self.max_header, self._most
                )
        except RemoteProtocolError:
            commands, consumed, count = self._split_damaged(data)
        if consumed < len(data):
            self._keep(data[consumed:])
            self.has_more = count >= self._most
        return commands

    def look(self) -> None:
        """Show the header of the unfinished frame in `head` now, if it has come and was not shown before."""
        if not self._is_shown and self.buffered >= 8:
            rest = b"".join(self._pieces)
            self._pieces = [rest]
            if head_size(rest) <= len(rest):
                self._show(rest)

    def take_head(self) -> Command | None:
        """The header of the unfinished frame, once; None when it is unknown, or was taken."""
        head, self.head = self.head, None
        return head

    def skip(self) -> None:
        """Drop the unfinished frame, and the part of it that has not come yet."""
        self._unread = max(0, frame_size(b"".join(self._pieces), 0) - self.buffered)
        self._pieces.clear()
        self.buffered = 0

    def clear(self) -> None:
        """Drop the unfinished frame; no bytes can be fed after this."""
        self._pieces.clear()
        self.buffered = 0

    def _add(self, data: bytes) -> None:
        if len(data) < _SMALL_BYTES:  # else a peer could make us hold an object for each byte
            if self._pieces[-1].__class__ is not bytearray:
                self._pieces.append(bytearray())
            self._pieces[-1] += data
        else:
            self._pieces.append(data)
        self.buffered += len(data)

    def _keep(self, rest: bytes) -> None:
        self._pieces.append(rest)
        self.buffered = len(rest)
        self._is_shown = False
        if len(rest) < 8:
            self._needed = 8
            return
        self._needed = max(8, frame_size(rest, 0))  # fewer bytes than `rest` has when `has_more`
        if self._needed > max(self._ask_from, len(rest)):
            head = head_size(rest)
            if len(rest) < head:
                self._needed = head
            else:
                self._show(rest)

    def _show(self, rest: bytes) -> None:
        self._is_shown = True
        try:
            self.head, self.head_body = read_head(rest)
        except RemoteProtocolError as error:
            self._refuse(request_of(rest[4], rest[8 : head_size(rest)]), error)
            self.skip()

    # --- frames that cannot be read ---

    def _split_damaged(self, data: bytes) -> tuple[list[Command], int, int]:
        """Split frames as `split_frames` does, and count them; each frame that cannot be read is refused
        alone."""
        commands: list[Command] = []
        at, end, count = 0, len(data), 0
        while count < self._most and end - at >= 8:
            length, word = _PREFIX.unpack_from(data, at)
            header, kind = word & 0xFF_FFFF, word >> 24
            if not header + 4 <= length <= SKIPPED_FRAMES * self.max_frame:
                raise _bad_length(length, header, self.max_frame, self.max_header)
            if kind not in KINDS:
                raise _bad_kind(kind)
            stop = at + 4 + length
            count += 1
            if header > self.max_header or length > self.max_frame:
                reason = _bad_length(length, header, self.max_frame, self.max_header)
                self._long, self._unread = LongHeader(kind, header, str(reason)), length - 4
                self._drop(data[at + 8 : stop])
            elif stop > end:
                break
            else:
                try:
                    commands += split_frames(data[at:stop], self.max_frame)[0]
                except RemoteProtocolError as error:
                    self._refuse(request_of(kind, data[at + 8 : at + 8 + header]), error)
                    if len(self.refused) >= REFUSED_AT_ONCE and stop < end:
                        return commands, stop, self._most
            at = min(stop, end)
        if 4 <= end - at < 8:
            frame_size(data, at, SKIPPED_FRAMES * self.max_frame)
        return commands, at, count

    def _drop(self, data: bytes) -> bytes:
        """The bytes behind a skipped frame."""
        dropped = min(self._unread, len(data))
        self._unread -= dropped
        if (long := self._long) is not None:
            long.add(data[:dropped])
            if not long.left:
                self._long = None
                self._refuse(long.request(), RemoteProtocolError(long.remark), is_too_long=True)
        return data[dropped:]

    def _refuse(
        self, request: Command | None, error: RemoteProtocolError, *, is_too_long: bool = False
    ) -> None:
        if request is None:
            raise error
        if not request.is_oneway:
            self.refused.append(refusal(request, str(error), is_too_long=is_too_long))
