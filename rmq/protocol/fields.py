"""Header values to and from the flat text map of a frame header (`extFields`); one compiled function a class.

The reader is as lenient as Java's: a number may come as text or as a number, a flag is true only for "true"
in any case, unknown fields are ignored. A missing not-null field or an unreadable number is a
`RemoteProtocolError` that names the class and the field; Java would log it and go on with null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar, cast, get_type_hints

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, override

from rmq.errors import RemoteProtocolError

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
    """12.0 and 1e3 are numbers too, as they are for the engine's faster reader."""
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


def _new_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(bool, _bool)
    converter.register_structure_hook_func(lambda kind: kind == Int32, read_int32)
    converter.register_structure_hook_func(lambda kind: kind == Int64, read_int64)
    return converter


converter: Final = _new_converter()
"""Reads Java's scalars leniently; `rmq.protocol.body` adds the JSON bodies."""

_READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    Int32: read_int32,
    Int64: read_int64,
    bool: _bool,
    str: _text,
}


_decoders: Final[dict[type, Callable[[Mapping[str, Any]], Any]]] = {}


def _new_decoder(cls: type) -> Callable[[Mapping[str, Any]], Any]:
    names = {field.name: override(rename=java_name(field)) for field in attrs.fields(cls)}
    structure: Callable[..., Any] = make_dict_structure_fn(cls, converter, **cast(Any, names))
    strict = [java_name(field) for field in attrs.fields(cls) if field.metadata.get("required")]

    def decode_class(ext: Mapping[str, Any]) -> Any:
        for name in strict:
            if name not in ext:
                raise KeyError(name)
        return structure(ext, cls)

    _decoders[cls] = decode_class
    return decode_class


def decode(cls: type[H], ext: Mapping[str, Any]) -> H:
    """Read a header of class `cls` from the text map of a frame.

    Raises RemoteProtocolError, naming class and field, when a not-null field is missing or a number is
    unreadable.
    """
    try:
        value: H = (_decoders.get(cls) or _new_decoder(cls))(ext)
        return value
    except (KeyError, ValueError, TypeError):
        raise RemoteProtocolError(_complaint(cls, ext)) from None


def _complaint(cls: type[Any], ext: Mapping[str, Any]) -> str:
    """Say which field of `ext` cannot be read; only called when decoding has failed."""
    hints = get_type_hints(cls, include_extras=True)
    for field in attrs.fields(cls):
        name = java_name(field)
        required = field.default is attrs.NOTHING or field.metadata.get("required", False)
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
def _encoder(cls: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    fields = attrs.fields(cls)
    names = tuple(java_name(field) for field in fields)
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


# The short names of SendMessageRequestHeaderV2, in the positional order of SendMessageRequestHeader.
_V2_NAMES: Final = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "batch": "m",
    "max_reconsume_times": "l",
    "bname": "n",
}


_v2_decoders: Final[dict[type, Callable[[Mapping[str, Any], Any], Any]]] = {}


def _new_v2_decoder(cls: type) -> Callable[[Mapping[str, Any], Any], Any]:
    names = {name: override(rename=short) for name, short in _V2_NAMES.items()}
    _v2_decoders[cls] = make_dict_structure_fn(cls, converter, **cast(Any, names))
    return _v2_decoders[cls]


def decode_v2(cls: type[H], ext: Mapping[str, Any]) -> H:
    """Read the one-letter form of a send header; raises as `decode`."""
    try:
        value: H = (_v2_decoders.get(cls) or _new_v2_decoder(cls))(ext, cls)
        return value
    except (KeyError, ValueError, TypeError):
        long = {name: ext.get(short) for name, short in _V2_NAMES.items()}
        named = {java_name(field): long[field.name] for field in attrs.fields(cast(Any, cls))}
        raise RemoteProtocolError(f"{_complaint(cls, named)} (short form)") from None


def encode_v2(value: Any) -> dict[str, str]:
    """The one-letter form of a send header; written out, since a producer makes one for each message."""
    ext = {
        "a": value.producer_group,
        "b": value.topic,
        "c": value.default_topic,
        "d": str(value.default_topic_queue_nums),
        "e": str(value.queue_id),
        "f": str(value.sys_flag),
        "g": str(value.born_timestamp),
        "h": str(value.flag),
    }
    if value.properties is not None:
        ext["i"] = value.properties
    if value.reconsume_times is not None:
        ext["j"] = str(value.reconsume_times)
    ext["k"] = "true" if value.unit_mode else "false"
    ext["m"] = "true" if value.batch else "false"
    if value.max_reconsume_times is not None:
        ext["l"] = str(value.max_reconsume_times)
    if value.bname is not None:
        ext["n"] = value.bname
    return ext
