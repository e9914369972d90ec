"""Headers and bodies as attrs classes, and Java's forms of them: a flat map of texts, a JSON object.

`decode` and `encode` are for headers (`extFields`), `Body` is the base of the JSON bodies; there is one
function for each class, which cattrs generates.

The reader is as lenient as Java's: a number may come as text or as a number, a flag is true only for "true"
in any case, unknown fields are ignored. A missing not-null field or an unreadable number is a
`RemoteProtocolError` that names the class and the field; Java would log it and go on with null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum
from functools import cache
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import attrs

from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol import json

if TYPE_CHECKING:
    import cattrs

H = TypeVar("H")

Int32 = Annotated[int, 32]
"""Java's int and Integer."""
Int64 = Annotated[int, 64]
"""Java's long and Long."""

REQUIRED: Final = {"required": True}
"""Metadata of a not-null field that has a default only so that the positional order can be RocketMQ's."""

_MAX_DIGITS = 20


def java_name(field: attrs.Attribute[Any]) -> str:
    """The field's name on the wire: its `java` metadata, else snake_case turned into camelCase."""
    named = field.metadata.get("java")
    if named is not None:
        return str(named)
    first, *rest = field.name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def short_name(field: attrs.Attribute[Any]) -> str:
    """The field's name in the one-letter form of a header: its `short` metadata."""
    return str(field.metadata["short"])


def is_required(field: attrs.Attribute[Any]) -> bool:
    """True if a header without the field is refused."""
    return field.default is attrs.NOTHING or bool(field.metadata.get("required"))


def read_int32(value: Any, _: Any = None) -> int:
    """A Java int from a number or its text; ValueError when it is neither or too big."""
    number = value if value.__class__ is int else _number(value)
    if -0x8000_0000 <= number <= 0x7FFF_FFFF:
        return number
    raise ValueError("is outside 32 bits")


def read_int64(value: Any, _: Any = None) -> int:
    """A Java long from a number or its text; ValueError when it is neither or too big."""
    number = value if value.__class__ is int else _number(value)
    if -0x8000_0000_0000_0000 <= number <= 0x7FFF_FFFF_FFFF_FFFF:
        return number
    raise ValueError("is outside 64 bits")


def _number(value: Any) -> int:
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and "_" not in value:
        try:
            return int(value)
        except ValueError:
            return _whole(value)
    raise ValueError("is not a number")


def _whole(text: str) -> int:
    """Integers in another form: 12.0 and 1e3 are numbers too, as they are for the typed decoders of
    `header_json`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if number.is_integer():
        return int(number)
    raise ValueError("is not a number")


def _bool(value: Any, _: Any = None) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _text(value: Any, _: Any = None) -> str:
    return value if value.__class__ is str else _as_text(value)


def _as_text(value: Any) -> str:
    if value is None:
        raise ValueError("is null")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    Int32: read_int32,
    Int64: read_int64,
    bool: _bool,
    str: _text,
}


_Decoder = Callable[[Mapping[str, Any]], Any]
_decoders: Final[dict[type, _Decoder]] = {}
_short_decoders: Final[dict[type, _Decoder]] = {}


def _new_decoder(cls: type, name_of: Callable[[Any], str] = java_name) -> _Decoder:
    from cattrs.gen import make_dict_structure_fn, override

    names = {field.name: override(rename=name_of(field)) for field in attrs.fields(cls)}
    structure: Callable[..., Any] = make_dict_structure_fn(cls, _converter(), **cast(Any, names))
    strict = [name_of(field) for field in attrs.fields(cls) if field.metadata.get("required")]

    def decode_class(ext: Mapping[str, Any]) -> Any:
        for name in strict:
            if name not in ext:
                raise KeyError(name)
        return structure(ext, cls)

    return decode_class


def _decoder_of(cls: type) -> _Decoder:
    decoder = _decoders[cls] = _new_decoder(cls)
    return decoder


def _short_decoder_of(cls: type) -> _Decoder:
    decoder = _short_decoders[cls] = _new_decoder(cls, short_name)
    return decoder


def decode(cls: type[H], ext: Mapping[str, Any]) -> H:
    """Read a header of class `cls` from the text map of a frame.

    Raises RemoteProtocolError, naming class and field, when a not-null field is missing or a number is
    unreadable.
    """
    try:
        value: H = (_decoders.get(cls) or _decoder_of(cls))(ext)
        return value
    except (KeyError, ValueError, TypeError):
        raise RemoteProtocolError(_complaint(cls, ext)) from None


def _complaint(cls: type[Any], ext: Mapping[str, Any]) -> str:
    """The error that names the field of `ext` that cannot be read; only called when decoding has failed."""
    hints = get_type_hints(cls, include_extras=True)
    for field in attrs.fields(cls):
        name = java_name(field)
        required = is_required(field)
        if name not in ext or (required and ext[name] is None):
            if required:
                return f"{cls.__name__}: field {name} is missing"
            continue
        if problem := _problem(hints[field.name], ext[name]):
            return f"{cls.__name__}: field {name} {problem}: {str(ext[name])[:80]!r}"
    return f"{cls.__name__}: the fields cannot be read"


def _problem(kind: Any, value: Any) -> str | None:
    if value is None:
        return None
    for known, reader in _READERS.items():
        if kind == known or kind == known | None:
            try:
                reader(value)
            except ValueError as error:
                return "is not a number" if "literal" in str(error) else str(error)
    return None


@cache
def _encoder(
    cls: type[Any], name_of: Callable[[Any], str] = java_name
) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    fields = attrs.fields(cls)
    names = tuple(name_of(field) for field in fields)
    return names, _reader_of(tuple(field.name for field in fields))


def _reader_of(attributes: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if not attributes:
        return lambda value: ()
    get = attrgetter(*attributes)
    return get if len(attributes) > 1 else lambda value: (get(value),)


def _texts(names: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, str]:
    return {
        name: value if value.__class__ is str else _as_text(value)
        for name, value in zip(names, values, strict=True)
        if value is not None
    }


def encode(value: Any) -> dict[str, str]:
    """The text map of a header value, as Java writes it; None is left out."""
    names, read = _encoder(value.__class__)
    return _texts(names, read(value))


def decode_short(cls: type[H], ext: Mapping[str, Any]) -> H:
    """Read the one-letter form of a header; raises as `decode`."""
    try:
        value: H = (_short_decoders.get(cls) or _short_decoder_of(cls))(ext)
        return value
    except (KeyError, ValueError, TypeError):
        long = {java_name(field): ext.get(short_name(field)) for field in attrs.fields(cast(Any, cls))}
        raise RemoteProtocolError(f"{_complaint(cls, long)} (short form)") from None


def encode_short(value: Any) -> dict[str, str]:
    """The one-letter form of a header."""
    names, read = _encoder(value.__class__, short_name)
    return _texts(names, read(value))


# --- bodies ---
#
# Reading: unknown fields are ignored, null counts as absent, absent means the default, an enum may come as
# its ordinal. Writing: fields in alphabetical order, None left out, which is fastjson's way.

REQUEST_VALUES: Final = 16_384
"""JSON values that one request may have: 4,000 queues of a lock. Each costs about a microsecond."""
LOOSE_VALUES: Final = 1_024
"""The same for JSON that only Java's reader accepts, which no known client sends."""
_READ_FAULTS = (ValueError, TypeError, KeyError, OverflowError)


class Body:
    """A JSON body: subclasses are attrs classes whose fields all have defaults."""

    __slots__ = ()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read a body; raises RemoteProtocolError, naming class and field, when it has another shape."""
        return cls.from_value(json.loads(data))

    @classmethod
    def from_request(cls, data: bytes, *, most: int = REQUEST_VALUES, loose: int = LOOSE_VALUES) -> Self:
        """Read a body from a peer that may be a stranger: a text with more than `most` values, or with more
        than `loose` when it is no strict JSON, is refused unread (RemoteProtocolError). Else as
        `from_json`."""
        count = json.count_values(data)
        if count > most:
            raise RemoteProtocolError(f"{cls.__name__}: {count} values in one body, at most {most} are read")
        return cls.from_value(json.loads(data, loose_values=loose))

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Make the body from a result of `json.loads`; raises as `from_json`."""
        try:
            return _converter().structure(value, cls)
        except _READ_FAULTS as error:
            raise RemoteProtocolError(f"{cls.__name__}: {error}") from None

    def to_value(self) -> dict[str, Any]:
        """The body as dicts and lists for a JSON writer."""
        return cast("dict[str, Any]", _converter().unstructure(self))

    def to_json(self, *, strict: bool = False) -> bytes:
        """Write the body: as Java writes it, or as `strict` JSON with all keys quoted.

        The forms differ only in maps with numbers or message queues as keys, and in NaN, which only Java's
        form has. Java reads both forms; clients with parsers of their own read only Java's.
        """
        value = self.to_value()
        return json.dumps(value) if strict or _is_plain(cast(Any, self.__class__)) else json.dumps_java(value)


@cache
def _is_plain(kind: Any) -> bool:
    """True when both forms of the JSON of a class or type are the same."""
    if _is_body(kind):
        return all(_is_plain(hint) for hint in get_type_hints(kind, include_extras=True).values())
    if get_origin(kind) is dict and get_args(kind)[0] is not str:
        return False
    return kind is not float and (get_origin(kind) is Annotated or all(map(_is_plain, get_args(kind))))


def _structure_body(cls: type[Body]) -> Callable[[Any, Any], Any]:
    from cattrs.gen import make_dict_structure_fn, override

    fields = attrs.fields(cast(Any, cls))
    names = {field.name: override(rename=java_name(field)) for field in fields}
    structure = make_dict_structure_fn(cast(Any, cls), _converter(), **cast(Any, names))

    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is not dict:
            raise RemoteProtocolError(f"{cls.__name__}: a JSON object expected, not {str(value)[:40]!r}")
        present = {name: item for name, item in value.items() if item is not None}
        try:
            return structure(present, cls)
        except _READ_FAULTS:
            raise RemoteProtocolError(_body_complaint(cls, present)) from None

    return read


def _body_complaint(cls: type[Body], present: dict[str, Any]) -> str:
    """The error that names the field that cannot be read; only called when reading has failed."""
    hints = get_type_hints(cls, include_extras=True)
    for field in attrs.fields(cast(Any, cls)):
        name = java_name(field)
        if name in present:
            try:
                _converter().structure(present[name], hints[field.name])
            except _READ_FAULTS as error:
                return f"{cls.__name__}: field {name} cannot be read ({error}): {str(present[name])[:80]!r}"
    return f"{cls.__name__}: the fields cannot be read"


def _unstructure_body(cls: type[Body]) -> Callable[[Any], dict[str, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    fields = sorted(attrs.fields(cast(Any, cls)), key=java_name)
    plan = [(java_name(f), attrgetter(f.name), _writer(hints[f.name])) for f in fields]

    def write(body: Any) -> dict[str, Any]:
        result = {}
        for name, read, convert in plan:
            value = read(body)
            if value is not None:
                result[name] = value if convert is None else convert(value)
        return result

    return write


def _writer(kind: Any) -> Callable[[Any], Any] | None:
    """The function that makes JSON values of a field type's values; None when they are JSON values
    already."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return None
    if type(None) in arguments:
        return _writer(next(item for item in arguments if item is not type(None)))
    if isinstance(kind, type) and (issubclass(kind, Body) or kind is MessageQueue):
        return _converter().get_unstructure_hook(kind)
    if origin is list:
        return _list_writer(_writer(arguments[0]))
    if origin is frozenset:
        return _set_writer(_writer(arguments[0]))
    if origin is dict:
        key = _queue_key if arguments[0] is MessageQueue else None
        return _dict_writer(key, _writer(arguments[1]))
    return None


def _list_writer(item: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return list if item is None else lambda values: [item(value) for value in values]


def _set_writer(item: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return sorted if item is None else lambda values: [item(value) for value in sorted(values)]


def _dict_writer(key: Callable[[Any], Any] | None, item: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if key is None and item is None:
        return dict
    write_key = key or (lambda value: value)
    write_item = item or (lambda value: value)
    return lambda values: {write_key(name): write_item(value) for name, value in values.items()}


def _queue_value(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _queue_key(queue: MessageQueue) -> json.ObjectKey:
    return json.ObjectKey(json.dumps(_queue_value(queue)).decode())


def _read_queue(value: Any, _: Any = None) -> MessageQueue:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError("is not a message queue")
    queue_id = value.get("queueId", 0)
    return MessageQueue(
        topic=_name(value.get("topic")),
        broker_name=_name(value.get("brokerName")),
        queue_id=int(queue_id if isinstance(queue_id, (int, str)) else "bad"),
    )


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _read_list(kind: Any) -> Callable[[Any, Any], Any]:
    read_item = _converter().get_structure_hook(get_args(kind)[0])
    make: Callable[[list[Any]], Any] = frozenset if _origin(kind) is frozenset else list

    def read(value: Any, _: Any = None) -> Any:
        if not isinstance(value, list):
            raise ValueError("a list expected")
        return make([read_item(item, None) for item in value])

    return read


def _read_dict(kind: Any) -> Callable[[Any, Any], Any]:
    read_key, read_item = (_converter().get_structure_hook(argument) for argument in get_args(kind))

    def read(value: Any, _: Any = None) -> Any:
        if not isinstance(value, dict):
            raise ValueError("a map expected")
        return {read_key(key, None): read_item(item, None) for key, item in value.items() if item is not None}

    return read


def _read_float(value: Any, _: Any = None) -> float:
    if isinstance(value, (int, float, str)):
        return float(value)
    raise ValueError("is not a number")


def _read_member(kind: Any) -> Callable[[Any, Any], Any]:
    """An enum of Java, kept as its name; Java also reads the ordinal."""
    members: type[IntEnum] | type[StrEnum] = get_args(kind)[1]
    names = list(members.__members__)

    def read(value: Any, _: Any = None) -> str:
        if isinstance(value, int) and 0 <= value < len(names):
            return names[value]
        if isinstance(value, str):
            return value
        raise ValueError(f"is no {members.__name__}")

    return read


def _origin(kind: Any) -> Any:
    return get_origin(kind)


def _is_body(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Body)


def _is_member(kind: Any) -> bool:
    return get_origin(kind) is Annotated and isinstance(get_args(kind)[1], type)


@cache
def _converter() -> cattrs.Converter:
    """The converter of Java's scalars, read leniently, and of the JSON bodies. Made, and cattrs loaded, for
    the first of them."""
    import cattrs

    made = cattrs.Converter(detailed_validation=False)
    made.register_structure_hook(str, _text)
    made.register_structure_hook(bool, _bool)
    made.register_structure_hook_func(lambda kind: kind == Int32, read_int32)
    made.register_structure_hook_func(lambda kind: kind == Int64, read_int64)
    made.register_structure_hook(float, _read_float)
    made.register_structure_hook(MessageQueue, _read_queue)
    made.register_unstructure_hook(MessageQueue, _queue_value)
    made.register_structure_hook_factory(lambda kind: _origin(kind) in (list, frozenset), _read_list)
    made.register_structure_hook_factory(lambda kind: _origin(kind) is dict, _read_dict)
    made.register_structure_hook_factory(_is_member, _read_member)
    made.register_structure_hook_factory(_is_body, _structure_body)
    made.register_unstructure_hook_factory(_is_body, _unstructure_body)
    return made
