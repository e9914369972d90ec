"""RocketMQ and Spark: data sources for PySpark, and the pipelines made of them. Needs the extra `spark`.

Nothing else in rmq imports this package (the command does, when `rmq spark` is called), and it imports
neither pyspark nor pyarrow before something is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq.spark.runtime import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from rmq.spark import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
