"""The gRPC door of `rmq dev`, for RocketMQ's 5.x clients; needs the extra `grpc`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from rmq.errors import PortInUse

if TYPE_CHECKING:
    from rmq import embedded

PORT: Final = 8081
NAME: Final = "grpc"
KEY: Final = "grpcPort"


def is_installed() -> bool:
    """True if the extra `grpc` is installed."""
    from importlib.util import find_spec

    try:
        return all(find_spec(name) is not None for name in ("h2", "hpack", "google.protobuf"))
    except ModuleNotFoundError:  # the package `google` is missing, too
        return False


def with_door(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a broker, with the plug-in added."""
    plugins = [name.strip() for name in settings.get("plugins", "").split(",") if name.strip()]
    if NAME not in plugins:
        plugins.append(NAME)
    return {**settings, "plugins": ",".join(plugins)}


@asynccontextmanager
async def opened(
    data_dir: str | os.PathLike[str],
    *,
    host: str,
    namesrv_port: int,
    broker_port: int,
    settings: Mapping[str, str],
    port: int = PORT,
) -> AsyncIterator[tuple[embedded.System, str]]:
    """Run a pair with the door, as `embedded.open`; yields the pair, and the text with the door's address.

    The door is on the broker's port, and on a port of its own where that is free. Both take TLS with a
    certificate that no client can verify: the Java and Go clients use TLS by default, and do not verify.
    `grpcPort` among the settings takes precedence over `port`.
    """
    from rmq import embedded
    from rmq.remoting.transports.tls import TlsConfig

    own = dict(settings)
    asked = own.pop(KEY, None)
    async with AsyncExitStack() as stack:

        async def enter(on: str) -> embedded.System:
            return await stack.enter_async_context(
                embedded.open(
                    data_dir,
                    host=host,
                    namesrv_port=namesrv_port,
                    broker_port=broker_port,
                    settings=with_door(own),
                    plugin_settings={KEY: on},
                    tls=TlsConfig(tls_mode="permissive", tls_test_mode=True),
                )
            )

        why = ""
        try:
            system = await enter(str(port) if asked is None else asked)
        except PortInUse as error:
            if asked is not None or not error.address.endswith(f":{port}"):
                raise
            why = f" (port {port} is in use; see --grpc-port)"
            system = await enter("0")
        yield system, f"{system.also.get(NAME, system.broker_address)}{why}"
