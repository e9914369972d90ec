"""MessageModel, under the name of its module in the old package, which has a native library."""

from __future__ import annotations

from rmq.compat.rocketmq.values import MessageModel

__all__ = ["MessageModel"]
