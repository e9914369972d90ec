"""One request or response in memory: the `Command`, and the limits of its form.

`rmq.protocol.frames` makes commands of bytes, and bytes of commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final, TypeVar

from rmq.errors import for_code
from rmq.protocol import headers
from rmq.protocol.codes import (
    CONTROLLER_MESSAGE,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    IDEMPOTENT_SEND,
    LANGUAGE,
    VERSION,
    RequestCode,
    ResponseCode,
)

H = TypeVar("H")

JSON: Final = 0
ROCKETMQ: Final = 1
MAX_FRAME: Final = 16 * 1024 * 1024
"""Bytes of the largest frame that Java's servers and clients take (frameMaxLength)."""

SEND_V2_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        IDEMPOTENT_SEND,
    }
)
"""Requests whose header has the one-letter names of SendMessageRequestHeaderV2."""

SECRET_FIELDS: Final = frozenset({"secretKey", "Signature", "SecurityToken", "RmqProof", "RmqNonce"})
"""Header fields that no log shows."""

_opaques = count(1)


def next_opaque() -> int:
    """A number for the next request of this process; 31 bits, then from 0 again."""
    return next(_opaques) & 0x7FFF_FFFF


class Command:
    """A request or response.

    `ext` is the header's text map (`extFields`), `header` the typed header if the decoder has made it, else
    None: `read` returns the typed form of either. `language` is RocketMQ's name of the language.
    """

    __slots__ = (
        "_ext",
        "_raw",
        "body",
        "code",
        "flag",
        "header",
        "language",
        "opaque",
        "remark",
        "serialization",
        "version",
    )

    def __init__(
        self,
        code: int,
        opaque: int,
        flag: int = 0,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
        language: str = LANGUAGE,
        version: int = VERSION,
        serialization: int = JSON,
        header: Any = None,
        raw: bytes = b"",
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self._ext = ext
        self.body = body
        self.remark = remark
        self.language = language
        self.version = version
        self.serialization = serialization
        self.header = header
        self._raw = raw

    @property
    def ext(self) -> Mapping[str, str]:
        """The header's text map; parsed from the frame only on first use.

        Raises RemoteProtocolError when a part that the typed header does not use cannot be read.
        """
        if self._ext is None:
            self._ext = self._read_ext(self._raw) if self._raw else {}
        return self._ext

    def _read_ext(self, raw: bytes) -> Mapping[str, str]:
        """Parse the text map of a header whose decoder made only the typed value; the subclass knows the
        form."""
        raise NotImplementedError

    def ext_as_sent(self) -> Mapping[str, str] | None:
        """The text map with the bytes as they came, if some are no UTF-8 (in the form of surrogateescape);
        else None. Clients such as the C++ client sign the bytes."""
        return None

    def with_ext(self, ext: Mapping[str, str]) -> Command:
        """A copy with another text map, and without the typed header, which would not fit it."""
        return Command(
            self.code,
            self.opaque,
            self.flag,
            ext,
            self.body,
            self.remark,
            self.language,
            self.version,
            self.serialization,
        )

    def shrink(self) -> None:
        """Drop text map and body, for a request that waits: only its typed header is read later."""
        self._ext, self._raw, self.body = None, b"", b""

    @property
    def is_response(self) -> bool:
        """True if the command is a response."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """True if the command is a request without a response."""
        return self.flag & FLAG_ONEWAY != 0

    @classmethod
    def request(
        cls,
        code: int,
        header: Any = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        remark: str | None = None,
    ) -> Command:
        """A request with a new opaque; `header` is a header value or a text map."""
        flag = FLAG_ONEWAY if oneway else 0
        return cls(int(code), next_opaque(), flag, _fields(code, header), body, remark)

    def reply(
        self, code: int = 0, remark: str | None = None, header: Any = None, body: bytes = b""
    ) -> Command:
        """The response to this request: the same opaque and serialization."""
        ext = header if header is None or isinstance(header, Mapping) else headers.encode(header)
        return Command(
            int(code), self.opaque, FLAG_RESPONSE, ext, body, remark, serialization=self.serialization
        )

    def read(self, header_class: type[H]) -> H:
        """The typed header. Raises RemoteProtocolError that names a missing or unreadable field."""
        made: Any = self.header
        found: H = made
        if made is not None:
            kind = made.__class__
            # The JSON decoder may have made a msgspec struct with the same fields, which is faster to make.
            if kind is header_class or getattr(kind, "stands_for", None) is header_class:
                return found
        if header_class is headers.SendMessageRequestHeader and self.code in SEND_V2_CODES:
            made = headers.decode_send_v2(self.ext)
        else:
            made = headers.decode(header_class, self.ext)
        found = self.header = made
        return found

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        fields = {name: "***" if name in SECRET_FIELDS else value for name, value in self.ext.items()}
        fields = fields or self.header
        return (
            f"<{kind} {self.code} opaque={self.opaque} remark={self.remark!r} {fields} body={len(self.body)}>"
        )


def _fields(code: int, header: Any) -> Mapping[str, str] | None:
    if header is None or isinstance(header, Mapping):
        return header
    if code in SEND_V2_CODES and isinstance(header, headers.SendMessageRequestHeader):
        return headers.encode_send_v2(header)
    return headers.encode(header)


# --- the longest body ---
#
# Reading a body costs more than its bytes, above all in JSON. RocketMQ takes any body up to a frame of
# 16 MiB: a heartbeat of 15 MB stopped all other work for 8 s and needed 1.2 GB in rmq.

KIB: Final = 1024
OTHERS_BYTES: Final = 256 * KIB
"""The longest body of requests that `BODY_BYTES` does not name: 3,000 queues of a lock, 1,000 topics of a
subscription."""
SMALLEST_BODY_LIMIT: Final = 64 * KIB
"""Size up to which every request may have a body, so that its limit need not be looked up."""

BODY_BYTES: Final[Mapping[int, int]] = {
    RequestCode.HEART_BEAT: 512 * KIB,
    RequestCode.REGISTER_BROKER: MAX_FRAME,  # all topics of a broker
    CONTROLLER_MESSAGE: MAX_FRAME,  # a snapshot of all broker sets
}
MESSAGES: Final = SEND_V2_CODES | {RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE}
_REMARK_ROOM: Final = 64 * KIB
"""Bytes over the limit up to which a message is read, so that its refusal can name the sizes of all its
parts."""


def body_limit(code: int, message_bytes: int) -> int:
    """Bytes of the longest body of a request; `message_bytes` is the longest message (maxMessageSize)."""
    if code in MESSAGES:
        return message_bytes + _REMARK_ROOM
    return BODY_BYTES.get(code, OTHERS_BYTES)


def check_body(code: int, size: int, message_bytes: int) -> None:
    """Raises ResponseError for a body that is too long: MESSAGE_ILLEGAL for messages, else SYSTEM_ERROR."""
    limit = body_limit(code, message_bytes)
    if size > limit:
        refusal = ResponseCode.MESSAGE_ILLEGAL if code in MESSAGES else ResponseCode.SYSTEM_ERROR
        raise for_code(refusal, f"the body of request {code} has {size} bytes, {limit} are the most")
