"""A name server and two masters over real sockets, in a thread of their own, for commands that run trio
themselves.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import trio
from attrs import define, field

import rmq
from rmq import embedded
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service as broker_service
from rmq.config import load_all
from rmq.store.config import StoreConfig

T = TypeVar("T")


def work(namesrv: str, scenario: Callable[[rmq.Client], Coroutine[Any, Any, T]]) -> T:
    """Run `scenario(client)` with a client of the cluster, in a loop of this thread."""

    async def with_client() -> T:
        async with rmq.connect(namesrv) as client:
            return await scenario(client)

    return trio.run(with_client)


@define
class Masters:
    """The running cluster: names `embedded` and `second`, cluster `DefaultCluster`."""

    namesrv: str = ""
    first: str = ""
    second: str = ""
    settings: dict[str, str] = field(factory=dict)
    _token: trio.lowlevel.TrioToken | None = None
    _ready: threading.Event = field(factory=threading.Event)
    _stop: trio.Event | None = None
    _failure: BaseException | None = None

    def work(self, scenario: Callable[[rmq.Client], Coroutine[Any, Any, T]]) -> T:
        """Run `scenario(client)` in a loop of this thread."""
        return work(self.namesrv, scenario)

    def serve(self, folder: pathlib.Path) -> None:
        """The thread: both masters until `stop`."""
        try:
            trio.run(self._serve, folder)
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    def started(self) -> None:
        """Wait until both replicas are registered."""
        assert self._ready.wait(20)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the thread."""
        if self._token is not None and self._stop is not None and self._failure is None:
            self._token.run_sync_soon(self._stop.set)

    async def _serve(self, folder: pathlib.Path) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        async with (
            embedded.open(folder / "first", settings=self.settings) as system,
            trio.open_nursery() as nursery,
        ):
            self.namesrv, self.first = system.namesrv_address, system.broker_address
            own = {
                "namesrvAddr": self.namesrv,
                "brokerName": "second",
                "brokerIP1": "127.0.0.1",
                "listenPort": "0",
                "storePathRootDir": str(folder / "second"),
            }
            config, store_config = load_all(
                (BrokerConfig, StoreConfig),
                arguments={**embedded.SETTINGS, **self.settings, **own},
                environment={},
            )
            addresses = await nursery.start(partial(broker_service.run, config, store_config))
            self.second = addresses[0]
            self._ready.set()
            await self._stop.wait()
            nursery.cancel_scope.cancel()


@contextmanager
def running(folder: pathlib.Path, **settings: str) -> Iterator[Masters]:
    """The cluster for the length of the block; `settings` are those of both masters."""
    masters = Masters(settings=settings)
    thread = threading.Thread(target=masters.serve, args=(folder,), daemon=True)
    thread.start()
    try:
        masters.started()
        yield masters
    finally:
        masters.stop()
        thread.join(20)
