"""ProxyConfig: the settings of a proxy."""

from __future__ import annotations

import os
from typing import Final

from attrs import frozen

from rmq.config import again, at_least, setting
from rmq.errors import ConfigError
from rmq.protocol.auth.signature import Credentials
from rmq.server.settings import ServerSettings

PORT: Final = 8081
SECRET_CHARS_MAX: Final = 1_024


@frozen
class ProxyConfig(ServerSettings):
    """Settings of a proxy."""

    listen_port: int = again(ServerSettings, "listen_port", PORT)
    metrics_port: int = again(ServerSettings, "metrics_port", 5561)
    plugins: tuple[str, ...] = again(ServerSettings, "plugins", ("grpc",))
    namesrv_addr: str = setting(
        "127.0.0.1:9876", help="Name servers of the cluster (`host:port;host:port`)", important=True
    )
    proxy_access_key: str = setting(
        "", help="Account of the proxy at the brokers; it needs aclEnable=true here. Empty: open brokers"
    )
    proxy_secret_file: str = setting("", help="File whose first line is the secret of proxyAccessKey")
    proxy_max_calls: int = setting(
        20_000,
        help="Calls at brokers at a time, long polls included; more are refused (TOO_MANY_REQUESTS)",
        validator=at_least(100),
    )
    proxy_request_timeout: int = setting(
        3_000, help="Time for one request to a broker", unit="ms", validator=at_least(100)
    )
    proxy_cache_seconds: int = setting(
        20,
        help="How long the type of a topic and the settings of a group are not asked for again",
        unit="s",
        validator=at_least(0),
    )


def account_of_proxy(config: ProxyConfig) -> Credentials | None:
    """The account with which the proxy signs its requests; None without one. Raises ConfigError.

    An account of the proxy without accounts of its clients would give every client its permissions.
    """
    if not config.proxy_access_key:
        return None
    if not config.acl_enable:
        expected = (
            "empty, or aclEnable=true with the accounts of the clients: otherwise every client would use "
            "the proxy's permissions"
        )
        raise ConfigError("proxyAccessKey", config.proxy_access_key, expected)
    try:
        with open(os.path.expanduser(config.proxy_secret_file), encoding="utf-8") as file:
            secret = file.readline(SECRET_CHARS_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        expected = f"a file whose first line is the secret of {config.proxy_access_key}: {error}"
        raise ConfigError("proxySecretFile", config.proxy_secret_file, expected) from None
    return Credentials(config.proxy_access_key, secret)
