"""attrs classes whose methods are made on first use.

attrs takes half a millisecond to write and compile the methods of a class; headers and bodies alone have 120
classes, and a program uses few.

`define` and `frozen` replace attrs' own. Their classes have slots, annotations and their own methods from the
start, and stay the same class. Methods cannot use `super()`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

_FIRST = ("__init__", "__attrs_attrs__", "__setstate__")
"""Attributes that a caller may read while no instance exists: reading one makes all methods."""

_CLASS_VARIABLE = ("ClassVar", "typing.ClassVar")


class _NotMade:
    """Placeholder of a class attribute until attrs has made it."""

    __slots__ = ("_make", "_name")

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        self._make()
        return getattr(owner if instance is None else instance, self._name)


def define(cls: type[Any] | None = None, **options: Any) -> Any:
    """`attrs.define`."""
    decorate = partial(attrs.define, **options)
    return _late(decorate, cls) if cls is not None else partial(_late, decorate)


def frozen(cls: type[Any] | None = None, **options: Any) -> Any:
    """`attrs.frozen`."""
    return define(cls, frozen=True, **options)


def _late(decorate: Callable[[type[Any]], type[Any]], written: type[Any]) -> type[Any]:
    own = vars(written)
    hints = own.get("__annotations__", {}).items()
    fields = tuple(name for name, hint in hints if not str(hint).startswith(_CLASS_VARIABLE))
    dropped = {*fields, "__dict__", "__weakref__"}
    has_weak_references = any("__weakref__" in vars(base) for base in written.__mro__[1:])

    def make() -> None:
        for name, value in vars(decorate(written)).items():
            if name in _FIRST or name not in vars(late):
                setattr(late, name, value)

    late: type[Any] = type(
        written.__name__,
        written.__bases__,
        {
            **{name: value for name, value in own.items() if name not in dropped},
            **{name: _NotMade(make) for name in _FIRST},
            "__qualname__": written.__qualname__,
            "__slots__": fields if has_weak_references else (*fields, "__weakref__"),
        },
    )
    return late
