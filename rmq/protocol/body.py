"""What all JSON bodies share: attrs classes read leniently, as fastjson does, and written in its field order.

Reading: unknown fields are ignored, null counts as absent, absent means the default, an enum may come as its
ordinal. Writing: fields in alphabetical order, None left out, which is fastjson's way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, StrEnum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Self, cast, get_args, get_origin, get_type_hints

import attrs
from cattrs.gen import make_dict_structure_fn, override

from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol import json
from rmq.protocol.fields import converter, java_name

_READ_FAULTS = (ValueError, TypeError, KeyError, OverflowError)


class Body:
    """A JSON body: subclasses are attrs classes whose fields all have defaults."""

    __slots__ = ()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read a body; raises RemoteProtocolError, naming class and field, when it has another shape."""
        return cls.from_value(json.loads(data))

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Make the body of what `json.loads` gave; raises as `from_json`."""
        try:
            return converter.structure(value, cls)
        except _READ_FAULTS as error:
            raise RemoteProtocolError(f"{cls.__name__}: {error}") from None

    def to_value(self) -> dict[str, Any]:
        """The body as dicts and lists for a JSON writer."""
        return cast("dict[str, Any]", converter.unstructure(self))

    def to_json(self, *, strict: bool = False) -> bytes:
        """Write the body: as Java writes it, or as `strict` JSON with all keys quoted.

        Only maps with numbers or message queues as keys differ, and NaN, which only Java's form takes. Java
        reads both; clients that pick these bodies apart by hand read only Java's.
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
    fields = attrs.fields(cast(Any, cls))
    names = {field.name: override(rename=java_name(field)) for field in fields}
    structure = make_dict_structure_fn(cast(Any, cls), converter, **cast(Any, names))

    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is not dict:
            raise RemoteProtocolError(f"{cls.__name__}: a JSON object expected, not {str(value)[:40]!r}")
        present = {name: item for name, item in value.items() if item is not None}
        try:
            return structure(present, cls)
        except _READ_FAULTS:
            raise RemoteProtocolError(_complaint(cls, present)) from None

    return read


def _complaint(cls: type[Body], present: dict[str, Any]) -> str:
    """Say which field cannot be read; only called when reading has failed."""
    hints = get_type_hints(cls, include_extras=True)
    for field in attrs.fields(cast(Any, cls)):
        name = java_name(field)
        if name in present:
            try:
                converter.structure(present[name], hints[field.name])
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
    """How values of a field type become JSON values; None when they are such already."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return None
    if type(None) in arguments:
        return _writer(next(item for item in arguments if item is not type(None)))
    if isinstance(kind, type) and (issubclass(kind, Body) or kind is MessageQueue):
        return converter.get_unstructure_hook(kind)
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
    read_item = converter.get_structure_hook(get_args(kind)[0])
    make: Callable[[list[Any]], Any] = frozenset if _origin(kind) is frozenset else list

    def read(value: Any, _: Any = None) -> Any:
        if not isinstance(value, list):
            raise ValueError("a list expected")
        return make([read_item(item, None) for item in value])

    return read


def _read_dict(kind: Any) -> Callable[[Any, Any], Any]:
    read_key, read_item = (converter.get_structure_hook(argument) for argument in get_args(kind))

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


converter.register_structure_hook(float, _read_float)
converter.register_structure_hook(MessageQueue, _read_queue)
converter.register_unstructure_hook(MessageQueue, _queue_value)
converter.register_structure_hook_factory(lambda kind: _origin(kind) in (list, frozenset), _read_list)
converter.register_structure_hook_factory(lambda kind: _origin(kind) is dict, _read_dict)
converter.register_structure_hook_factory(_is_member, _read_member)
converter.register_structure_hook_factory(_is_body, _structure_body)
converter.register_unstructure_hook_factory(_is_body, _unstructure_body)
