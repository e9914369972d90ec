"""The loops that write a broker's tables: texts are made in slices, and written in threads."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn

import anyio

from rmq.broker.broker import Broker
from rmq.broker.replication.failover.delivery_checkpoint import DeliveryCheckpoint
from rmq.errors import StoreError
from rmq.remoting.loop import Wakeup, run_cooperatively
from rmq.server.saving import write_files

TOPICS: Final = "topics"
GROUPS: Final = "subscriptionGroup"

log = logging.getLogger("rmq.broker")


class Saver:
    """Saves the tables of a broker at intervals, and at once when `requested` is set because a request waits.
    `blocking` runs work that waits for the disk."""

    def __init__(
        self, broker: Broker, blocking: Callable[[Callable[[], Any]], Awaitable[Any]], requested: Wakeup
    ) -> None:
        self._broker = broker
        self._blocking = blocking
        self._requested = requested
        self._confirmed = DeliveryCheckpoint(broker.role, broker.store, broker.files, broker.delivery)
        self._saving, self._saving_rows = anyio.Lock(), anyio.Lock()

    async def persist(self) -> NoReturn:
        """Save all that has changed, each flushConsumerOffsetInterval."""
        while True:
            await anyio.sleep(self._broker.config.flush_consumer_offset_interval / 1000)
            await self.save()

    async def save_on_request(self) -> NoReturn:
        """Save topics created by sends, and changes of administrators, because requests wait for the save.
        Raises StoreError, after it has answered these requests with the error."""
        while True:
            await self._requested.wait()
            try:
                await self.save_topics()
            finally:
                is_followed = self._broker.is_slave and self._broker.groups.unsaved
                if is_followed or self._broker.changes.wait_for(GROUPS):
                    await self._save_rows(GROUPS)
                    self._broker.wake.follower()

    async def save_topics(self) -> None:
        """Save the topics if some are unsaved. Raises StoreError."""
        try:
            await self._save_rows(TOPICS)
        except StoreError as error:
            self._broker.acknowledgement.topics_not_saved(error)
            raise
        self._broker.acknowledgement.topics_saved()
        self._broker.wake.follower()

    async def save(self) -> None:
        """Save all tables that have changed. A table that cannot be saved is logged, and saved the next
        time."""
        for save in (self.save_topics, partial(self._save_rows, GROUPS)):
            try:
                await save()
            except StoreError as error:
                log.error("cannot save a table, will try again: %s", error)
        async with self._saving:
            self._confirmed.look()
            texts = await run_cooperatively(self._broker.saving())
            try:
                write = partial(self._broker.store.save_configs, texts)
                await self._broker.disk_work.do(write, "a write of tables has been under way")
            except StoreError as error:
                log.error("cannot save %s, will try again: %s", ", ".join(texts), error)
                self._broker.files.not_saved(texts)
                self._broker.wake.flush()  # if it was the log that could not be synced, it is mended there

    async def save_deferred(self) -> None:
        """Write the files that administrators change beside the tables, and answer the administrators.
        Cancelled: a file that is being written is completed, without a response to its administrator."""
        await write_files(self._broker.deferred_saves, self._blocking)

    async def _save_rows(self, name: str) -> None:
        """Save a versioned table if rows of it are unsaved. Raises StoreError."""
        table, changes = self._broker.files.versioned[name], self._broker.changes
        async with self._saving_rows:
            made = table.made
            if table.unsaved:
                try:
                    write = await run_cooperatively(self._broker.files.saving(name))
                    await self._broker.disk_work.do(write, f"a write of {name}.json has been under way")
                except StoreError as error:
                    changes.not_saved(name, error)
                    raise
                table.saved(made)
            changes.saved(name, made)
