"""Errors out of task groups that callers do not see."""

from __future__ import annotations

import pytest
import trio

from rmq.errors import StoreError
from rmq.remoting.loop import unwrap_groups


async def fail(error: BaseException) -> None:
    raise error


async def test_one_error_comes_out_of_nested_groups_as_itself() -> None:
    with pytest.raises(StoreError, match="full"), unwrap_groups():
        async with trio.open_nursery(), trio.open_nursery() as inner:
            inner.start_soon(fail, StoreError("full"))


async def test_a_group_of_several_errors_of_one_task_stays() -> None:
    group = ExceptionGroup("mine", [ValueError("a"), ValueError("b")])
    with pytest.raises(ExceptionGroup, match="mine") as raised, unwrap_groups():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, group)
    assert [str(error) for error in raised.value.exceptions] == ["a", "b"]


async def test_ctrl_c_comes_before_others_and_names_them() -> None:
    both = BaseExceptionGroup("", [StoreError("full"), KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt) as raised, unwrap_groups():
        raise both
    assert "full" in "".join(raised.value.__notes__)
