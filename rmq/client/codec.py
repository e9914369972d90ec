"""Codecs: bodies of messages as values, and back, by msgspec or pydantic. Each is imported when it is used.

MsgspecCodec(Order)            Order is a msgspec.Struct, a dataclass, an attrs class, a TypedDict ...
PydanticCodec(list[Order])     what pydantic can validate
"""

from __future__ import annotations

from typing import Any, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

from rmq.errors import ConfigError, InvalidBody, InvalidMessageType, InvalidType, check_type
from rmq.message import StoredMessage
from rmq.protocol.properties import reason_of

T = TypeVar("T")


@runtime_checkable
class Codec(Protocol[T]):
    """Converter between the body of a message and a value."""

    def decode(self, body: bytes) -> T:
        """The value of a body. Raises any exception for a body that cannot be decoded."""

    def encode(self, value: T) -> bytes:
        """The body of a value. Raises any exception for a value that cannot be encoded."""


class MsgspecCodec(Generic[T]):
    """JSON, or MessagePack, of msgspec's types: its Structs, dataclasses, attrs classes, TypedDicts, enums,
    datetimes, and lists and dicts of them.

    `decode` checks types and raises msgspec.DecodeError. Raises ConfigError for another `form`, and TypeError
    for a model that msgspec does not support.
    """

    def __init__(self, model: type[T], form: Literal["json", "msgpack"] = "json") -> None:
        import msgspec

        if form not in ("json", "msgpack"):
            raise ConfigError("form", form, "'json' or 'msgpack'")
        self.model = model
        library = msgspec.json if form == "json" else msgspec.msgpack
        self._decoder: Any = library.Decoder(model)
        self._encoder: Any = library.Encoder()

    def decode(self, body: bytes) -> T:
        return cast(T, self._decoder.decode(body))

    def encode(self, value: T) -> bytes:
        return cast(bytes, self._encoder.encode(value))


class PydanticCodec(Generic[T]):
    """JSON of what pydantic 2 can validate: its models, and any type that its TypeAdapter takes.

    `decode` raises pydantic.ValidationError. Raises ImportError where pydantic is not installed.
    """

    def __init__(self, model: type[T]) -> None:
        import pydantic

        self.model = model
        self._adapter: Any = pydantic.TypeAdapter(model)

    def decode(self, body: bytes) -> T:
        return cast(T, self._adapter.validate_json(body))

    def encode(self, value: T) -> bytes:
        return cast(bytes, self._adapter.dump_json(value))


class _Bytes:
    def decode(self, body: bytes) -> bytes:
        return body

    def encode(self, value: bytes) -> bytes:
        check_type("body", value, bytes, "bytes")
        return value


class _Text:
    def decode(self, body: bytes) -> str:
        return body.decode()

    def encode(self, value: str) -> bytes:
        check_type("body", value, str, "text")
        return value.encode()


def codec_of(model: Any) -> Codec[Any]:
    """The codec of a model: a codec itself, `bytes` (the body unchanged), `str` (UTF-8), a class of pydantic,
    or else a type of msgspec. Raises InvalidType for any other model."""
    if not isinstance(model, type) and isinstance(model, Codec):
        return model
    if model is bytes:
        return _Bytes()
    if model is str:
        return _Text()
    if _is_pydantic(model):
        return PydanticCodec(model)
    try:
        codec = MsgspecCodec(model)
    except TypeError as error:
        raise InvalidType(
            "model", model, f"a type of msgspec's or pydantic's, or an rmq.Codec: {error}"
        ) from None
    if unknown := unknown_classes(model):
        named = ", ".join(one.__qualname__ for one in unknown)
        expected = (
            "a dataclass, a msgspec.Struct, an attrs class, a TypedDict, a model of pydantic, or an"
            f" rmq.Codec; {named} is a plain class, of which no body can be made (is @dataclass missing?)"
        )
        raise InvalidType("model", model, expected)
    return codec


def unknown_classes(model: Any) -> list[type]:
    """The plain classes in a model: msgspec makes a decoder for them, and then refuses every body."""
    import msgspec.inspect

    found: dict[type, None] = {}
    seen: set[int] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(model)]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, msgspec.inspect.CustomType):
            found[one.cls] = None
        elif isinstance(one, (msgspec.inspect.Type, msgspec.inspect.Field)):
            waiting += [getattr(one, name) for name in one.__struct_fields__]
        elif isinstance(one, tuple):
            waiting += one
    return list(found)


def value_of(message: StoredMessage, codec: Codec[T]) -> T:
    """The value of a message's body. Raises InvalidBody, with the codec's own error as its cause."""
    try:
        return codec.decode(message.body)
    except Exception as error:
        text = f"the body of message {message.message_id} does not fit the model: {reason_of(error)}"
        raise InvalidBody(text) from error


def body_of(value: Any) -> bytes:
    """A value as the body of a message: bytes unchanged, text as UTF-8, anything else as JSON. Raises
    InvalidMessageType for a value without JSON."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if _is_pydantic(type(value)):
        return PydanticCodec(type(value)).encode(value)
    import msgspec

    try:
        return msgspec.json.encode(value)
    except TypeError as error:
        raise InvalidMessageType(remark=f"the body cannot be written as JSON: {error}") from None


def _is_pydantic(kind: Any) -> bool:
    """True for a model or a dataclass of pydantic 2; this imports nothing."""
    return hasattr(kind, "__pydantic_validator__")
