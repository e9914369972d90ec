"""Bodies that are Protobuf messages -> rows, by the package `protobuf` in Spark's Python workers, and the
Spark schema of such rows.

Spark's own functions need a package of its version in the session, cannot distinguish a body that does not
fit from an empty message, and do not read the numbers that clients of a schema registry put before a message.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from rmq.errors import ConfigError

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from pyspark.sql.types import DataType, StructType

Descriptor = Any
FieldDescriptor = Any
"""Types of the library: each has two kinds, one in C, which its types mix."""
Read = Callable[[Any], Any]
"""Type of a value from the library -> function to Spark's value."""

UNSIGNED_DIGITS: Final = 20
"""Digits of the largest number of 64 bits without a sign, which Spark's long does not hold."""
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"


def description_of(data: bytes) -> bytes:
    """A descriptor set of `protoc --descriptor_set_out`: of a set, or of the description of a single file,
    possibly in base64, as a schema registry gives it with ``format=serialized``. Raises ConfigError for any
    other input."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message import DecodeError

    with suppress(binascii.Error, ValueError):
        data = base64.b64decode(data, validate=True)
    for is_set in (True, False):
        try:
            if is_set:
                found = FileDescriptorSet.FromString(data)
            else:
                found = FileDescriptorSet(file=[FileDescriptorProto.FromString(data)])
        except DecodeError:
            continue
        if found.file and all(file.name and (file.message_type or file.dependency) for file in found.file):
            return found.SerializeToString()
    raise ConfigError("schema", "", "what `protoc --include_imports --descriptor_set_out=FILE` writes")


def schema_of(description: bytes, message: str) -> StructType:
    """The Spark schema of a message's rows: numbers without a sign are the next larger type, enumerations
    text, Timestamp and Duration Spark's own.

    Raises ConfigError for a message that is missing or contains itself.
    """
    return _struct(_message_type(description, message).DESCRIPTOR, ())


def reader(
    description: bytes, message: str, *, framed: bool
) -> Callable[[bytes | None], tuple[Any, ...] | None]:
    """A function from a body to a row of `schema_of`; it returns None for a body that is no such message, or
    that has none of the message's fields. The function can be pickled. `framed`: a registry's five bytes come
    before each message, followed by the numbers that locate the message's type in its file."""

    def read(body: bytes | None) -> tuple[Any, ...] | None:
        from google.protobuf.message import DecodeError

        if body is None:
            return None
        kind, row = _compiled(description, message)
        data = bytes(body)
        try:
            found = kind.FromString(data[_framing(data) :] if framed else data)
        except (DecodeError, ValueError, IndexError):
            return None
        if not found.IsInitialized() or (not found.ListFields() and found.ByteSize()):
            return None
        answer: tuple[Any, ...] = row(found)
        return answer

    return read


def _framing(data: bytes) -> int:
    """The length of the header that a registry's clients put before a message: a zero, four bytes, and the
    count of further numbers, each a zigzag varint; no number stands for one that is 0. Raises IndexError,
    ValueError."""
    if data[0] != 0:
        raise ValueError("no frame of a registry")
    at = 5
    left, is_count = 1, True
    while left:
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        left, is_count = (number >> 1, False) if is_count else (left - 1, False)
    return at


@lru_cache(maxsize=64)
def _compiled(description: bytes, message: str) -> tuple[type[Message], Read]:
    kind = _message_type(description, message)
    return kind, _row(kind.DESCRIPTOR)


def _message_type(description: bytes, message: str) -> type[Message]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import Default, DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool, files = (
        DescriptorPool(),
        {file.name: file for file in FileDescriptorSet.FromString(description).file},
    )
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        if name in files:
            file = files[name]
        else:  # one of the files that come with the library
            _known_types()
            file = type(next(iter(files.values())))()
            Default().FindFileByName(name).CopyToProto(file)
        for other in file.dependency:
            add(other)
        pool.Add(file)

    try:
        for name in files:
            add(name)
        names = [name for file in files.values() for name in _names(file.package, file.message_type)]
        if message not in names:
            matching = [name for name in names if name.rpartition(".")[2] == message]
            if len(matching) != 1:
                raise ConfigError("message", message, f"one of {', '.join(sorted(names))}")
            (message,) = matching
        return GetMessageClass(pool.FindMessageTypeByName(message))
    except (KeyError, TypeError) as error:
        expected = f"a descriptor set with all that it imports ({str(error).strip()})"
        raise ConfigError("schema", "", expected) from None


def _known_types() -> None:
    """Load the types of Google's that a description may import without containing them."""
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers"):
        importlib.import_module(f"google.protobuf.{name}_pb2")


def _names(prefix: str, kinds: Any) -> list[str]:
    found = []
    for kind in kinds:
        name = f"{prefix}.{kind.name}" if prefix else kind.name
        if not kind.options.map_entry:
            found += [name, *_names(name, kind.nested_type)]
    return found


# --- types ---


def _struct(message: Descriptor, above: tuple[str, ...]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    if message.full_name in above:
        raise ConfigError(
            "message", above[0], f"a message that does not contain itself ({message.full_name})"
        )
    above = (*above, message.full_name)
    return StructType([StructField(field.name, _type(field, above)) for field in message.fields])


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> DataType:
    from pyspark.sql.types import ArrayType, MapType

    if _is_map(field):
        key, value = field.message_type.fields
        return MapType(_one_type(key, above), _one_type(value, above))
    return ArrayType(_one_type(field, above)) if field.is_repeated else _one_type(field, above)


def _one_type(field: FieldDescriptor, above: tuple[str, ...]) -> DataType:
    from pyspark.sql import types as T

    if field.type in (field.TYPE_MESSAGE, field.TYPE_GROUP):
        if field.message_type.full_name == _TIMESTAMP:
            return T.TimestampType()
        if field.message_type.full_name == _DURATION:
            return T.DayTimeIntervalType()
        return _struct(field.message_type, above)
    if field.type == field.TYPE_BYTES:
        return T.BinaryType()
    found: dict[int, DataType] = {
        field.CPPTYPE_INT32: T.IntegerType(),
        field.CPPTYPE_INT64: T.LongType(),
        field.CPPTYPE_UINT32: T.LongType(),
        field.CPPTYPE_UINT64: T.DecimalType(UNSIGNED_DIGITS, 0),
        field.CPPTYPE_DOUBLE: T.DoubleType(),
        field.CPPTYPE_FLOAT: T.FloatType(),
        field.CPPTYPE_BOOL: T.BooleanType(),
        field.CPPTYPE_ENUM: T.StringType(),
        field.CPPTYPE_STRING: T.StringType(),
    }
    return found[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# --- rows ---


def _row(message: Descriptor) -> Read:
    """Fields with presence are null when unset; all other fields have their default."""
    parts = [(field.name, field.has_presence, _reading(field)) for field in message.fields]

    def read(found: Any) -> tuple[Any, ...]:
        return tuple(
            None if has_presence and not found.HasField(name) else one(getattr(found, name))
            for name, has_presence, one in parts
        )

    return read


def _reading(field: FieldDescriptor) -> Read:
    if _is_map(field):
        read_key, read_value = map(_one_reading, field.message_type.fields)
        return lambda found: {read_key(key): read_value(found[key]) for key in found}
    one = _one_reading(field)
    return (lambda found: [one(each) for each in found]) if field.is_repeated else one


def _one_reading(field: FieldDescriptor) -> Read:
    if field.type in (field.TYPE_MESSAGE, field.TYPE_GROUP):
        if field.message_type.full_name == _TIMESTAMP:
            return lambda found: found.ToDatetime(tzinfo=UTC)
        if field.message_type.full_name == _DURATION:
            return lambda found: found.ToTimedelta()
        return _row(field.message_type)
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Decimal
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    return lambda found: found
