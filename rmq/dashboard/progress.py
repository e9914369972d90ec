"""Progress of all groups at a broker, the dearest answer of all: shared by sampler and pages."""

from __future__ import annotations

from functools import partial
from typing import Final

from rmq.client.admin import Admin, GroupProgress
from rmq.dashboard.clusters import Cache

PROGRESS_SECONDS: Final = 10.0
"""Limit of a broker's answer about the progress of all groups, and its shortest use by pages."""
REST: Final = 150.0
"""An answer is used for so many times as long as it took: it costs a broker less than 1 % of a core."""
LONGEST_SECONDS: Final = 300.0


async def progress_of(
    cache: Cache, admin: Admin, address: str, *, renewed: bool = False
) -> list[GroupProgress]:
    """The progress of all groups at a broker, perhaps of a while ago, unless `renewed`. Raises RmqError."""
    fetch = partial(admin.broker_consume_stats, address, timeout=PROGRESS_SECONDS)
    get = cache.renew if renewed else cache.get
    return await get(("progress", address), PROGRESS_SECONDS, fetch, rest=REST, longest=LONGEST_SECONDS)
