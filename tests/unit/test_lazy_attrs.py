"""Classes that are made when they are needed are those that attrs would have made at once."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import weakref
from typing import Any, ClassVar, get_type_hints

import attrs
import pytest

from rmq import lazy_attrs
from rmq.protocol import bodies, headers


@lazy_attrs.frozen
class Point:
    """A place."""

    x: int
    y: int = 2
    names: list[str] = attrs.field(factory=list, kw_only=True)
    origin: ClassVar[str] = "here"

    def moved(self, by: int) -> Point:
        return Point(self.x + by, self.y)

    @classmethod
    def zero(cls) -> Point:
        return cls(0, 0)


@lazy_attrs.define(eq=False)
class Mutable:
    value: int = attrs.field(default=1, converter=int)


@lazy_attrs.define
class Base:
    one: int = 1


@lazy_attrs.define
class Derived(Base):
    two: int = 2


def is_made(cls: type) -> bool:
    return not isinstance(vars(cls)["__init__"], lazy_attrs._NotMade)


def test_nothing_is_made_before_it_is_needed() -> None:
    @lazy_attrs.define
    class Fresh:
        value: int = 1

    assert not is_made(Fresh)
    same = Fresh
    assert Fresh(3).value == 3
    assert is_made(Fresh)
    assert Fresh is same


def test_a_frozen_one_is_as_attrs_makes_it() -> None:
    point = Point(1, names=["a"])
    assert (point.x, point.y, point.names) == (1, 2, ["a"])
    assert point == Point(1, 2, names=["a"])
    assert point != Point(1, 3)
    assert repr(point) == "Point(x=1, y=2, names=['a'])"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        point.x = 5
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Point()
    assert hash(Point(1, names=())) == hash(Point(1, names=()))
    assert point.moved(3) == Point(4)
    assert Point.zero() == Point(0, 0)
    assert Point.origin == "here"
    assert Point.__doc__ == "A place."
    assert Point.__name__ == Point.__qualname__ == "Point"
    match point:
        case Point(x, y):
            assert (x, y) == (1, 2)
        case _:
            pytest.fail("does not match")


def test_a_mutable_one_is_as_attrs_makes_it() -> None:
    value = Mutable("7")
    assert value.value == 7
    value.value = "8"
    assert value.value == 8, "the converter runs when it is set, too"
    assert value != Mutable(8)
    with pytest.raises(AttributeError):
        value.other = 1
    assert not hasattr(value, "__dict__")
    assert weakref.ref(value)() is value
    with pytest.raises(TypeError, match="unhashable"):
        hash(Base())


def test_attrs_and_the_library_know_it() -> None:
    assert attrs.has(Point)
    assert [field.name for field in attrs.fields(Point)] == ["x", "y", "names"]
    assert attrs.evolve(Point(1), x=4) == Point(4)
    assert attrs.asdict(Derived()) == {"one": 1, "two": 2}
    assert list(inspect.signature(Point).parameters) == ["x", "y", "names"]
    assert get_type_hints(Point)["names"] == list[str]
    assert copy.copy(Point(3)) == Point(3) == copy.deepcopy(Point(3)) == pickle.loads(pickle.dumps(Point(3)))
    assert isinstance(Derived(), Base)
    assert Derived(3, 4) != Base(3)


def test_what_was_pickled_is_read_before_one_was_made() -> None:
    data = pickle.dumps(bodies.TopicList(["a"]))
    code = f"import pickle; print(pickle.loads({data!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "TopicList(topic_list=['a'], broker_addr=None)\n"


@pytest.mark.parametrize(
    "cls",
    [cls for module in (headers, bodies) for cls in vars(module).values() if attrs.has(cls)],
    ids=lambda cls: cls.__name__,
)
def test_headers_and_bodies_are_as_attrs_makes_them(cls: type[Any]) -> None:
    """All that stands in a class made at once stands in the late one, too."""
    made = attrs.frozen if "__setattr__" in vars(cls) and cls.__hash__ is not None else attrs.define
    fields = {
        field.name: attrs.field(
            default=field.default, repr=field.repr, kw_only=field.kw_only, metadata=field.metadata
        )
        for field in attrs.fields(cls)
        if not field.inherited
    }
    twin = made(type(cls.__name__, cls.__bases__, {"__annotations__": cls.__annotations__, **fields}))
    assert set(vars(twin)) - {"__doc__"} <= set(vars(cls))
    late, at_once = (inspect.signature(one).parameters.values() for one in (cls, twin))
    assert [(each.name, each.kind) for each in late] == [(each.name, each.kind) for each in at_once]
    assert [repr(each.default) for each in late] == [repr(each.default) for each in at_once]
