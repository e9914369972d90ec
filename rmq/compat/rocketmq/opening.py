"""Opened: common settings, start and end of producers and consumers.

A started object is kept alive until its `shutdown`, or until the interpreter ends: callbacks come also when
the program has dropped it. After a fork the child has none of the parent's connections: a producer opens its
own with the next send, a consumer consumes in the parent only.
"""

from __future__ import annotations

import logging
import os
import threading
import urllib.error
import urllib.request
from typing import Any, ClassVar, Final, Self

from rmq.client import blocking
from rmq.client.client import ConnectOptions, local_address
from rmq.client.session.requests import parse_name_servers
from rmq.compat.rocketmq.exceptions import RocketMQException
from rmq.compat.rocketmq.values import Text, failing, text
from rmq.errors import ConfigError
from rmq.protocol.auth.signature import Credentials

log = logging.getLogger("rmq.compat.rocketmq")

DOMAIN_SECONDS: Final = 3.0
"""Time-out of a request to a name server domain, in seconds."""
DOMAIN_BYTES: Final = 64 * 1024

_started: set[Opened] = set()
_of_parents: list[blocking.Client] = []
"""Clients of the process from which this one was forked. They must never be collected: closing their loops
here would change the epoll object that the parent uses."""


class Opened:
    """A producer or consumer of a program, with a client of its own."""

    _kind: ClassVar[str]
    _start_failed: type[RocketMQException]

    def __init__(self, group_id: Text) -> None:
        self._group = text("group_id", group_id)
        self._name_servers = ""
        self._domain = ""
        self._instance_name = ""
        self._credentials: Credentials | None = None
        self._lock = threading.RLock()
        self._client: blocking.Client | None = None
        self._was_forked = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, exec_type: object, value: object, traceback: object) -> None:
        self.shutdown()

    # --- settings ---

    def set_group(self, group_name: Text) -> None:
        """Set the group."""
        self._check_unstarted("set_group")
        self._group = text("group_name", group_name)

    def set_name_server_address(self, addr: Text) -> None:
        """Set the name servers: ``host:port``, several joined by ``;``. ``tls://`` before the first is for
        TLS. Without an address, and without a domain, NAMESRV_ADDR of the environment counts."""
        self._check_unstarted("set_name_server_address")
        address = text("addr", addr)
        with failing(RocketMQException):
            parse_name_servers(address)
        self._name_servers = address

    def set_name_server_domain(self, domain: Text) -> None:
        """Set the URL that answers with the addresses of the name servers. `start` requests it once."""
        self._check_unstarted("set_name_server_domain")
        self._domain = text("domain", domain)

    def set_namesrv_addr(self, addr: Text) -> None:
        """`set_name_server_address`, as 0.4 called it."""
        self.set_name_server_address(addr)

    def set_namesrv_domain(self, domain: Text) -> None:
        """`set_name_server_domain`, as 0.4 called it."""
        self.set_name_server_domain(domain)

    def set_session_credentials(self, access_key: Text, access_secret: Text, channel: Text = "") -> None:
        """Set the account that signs the requests. Brokers of Apache RocketMQ have no channels: `channel`
        has no effect."""
        self._check_unstarted("set_session_credentials")
        text("channel", channel)
        self._credentials = Credentials(text("access_key", access_key), text("access_secret", access_secret))

    def _check_unstarted(self, call: str) -> None:
        if self._client is not None:
            raise RocketMQException(f"{call}: the {self._kind} has started; call it before start()")

    # --- start and end ---

    def start(self) -> None:
        """Open the client. No effect on a started object. Raises the exception of a failed start."""
        with self._lock:
            if self._client is not None:
                return
            with failing(self._start_failed):
                self._check_start()
                client = blocking.connect(self._addresses(), **self._options()).open()
                try:
                    self._begin(client)
                except BaseException:
                    client.close()
                    raise
            self._client, self._was_forked = client, False
            _started.add(self)

    def shutdown(self) -> None:
        """Close the client: running sends and callbacks end first. No effect on an object that is not
        started. `start` begins again."""
        with self._lock:
            client, self._client, self._was_forked = self._client, None, False
            _started.discard(self)
            if client is None:
                return
            try:
                self._end()
            finally:
                client.close()

    def _check_start(self) -> None:
        """Raises the exception of a failed start when something is missing."""

    def _begin(self, client: blocking.Client) -> None:
        """Open the object's part that works on the client. Raises RmqError."""
        raise NotImplementedError

    def _end(self) -> None:
        """Close the object's part that works on the client."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """Settings of the client."""
        return {}

    def _options(self) -> ConnectOptions:
        options: dict[str, Any] = self._settings()
        if self._instance_name:
            options["client_id"] = f"{local_address(self._addresses())}@{self._instance_name}"
        made: ConnectOptions = {"credentials": self._credentials, **options}  # type: ignore[typeddict-item]
        return made

    def _addresses(self) -> str:
        if self._name_servers:
            return self._name_servers
        if self._domain:
            return _asked(self._domain)
        if found := os.environ.get("NAMESRV_ADDR"):
            return found
        raise self._start_failed(
            f"the {self._kind} of {self._group} has no name server:"
            " call set_name_server_address before start()"
        )

    def _check_started(self, kind: type[RocketMQException]) -> None:
        """Raises `kind` unless the object has started. After a fork it starts again."""
        if self._client is None:
            if not self._was_forked:
                raise kind(f"the {self._kind} of {self._group} has not started: call start() before")
            self.start()

    def _forked(self) -> None:
        """Drop the parent's client, in a child process."""
        self._lock = threading.RLock()  # another thread may have held it
        if self._client is not None:
            _of_parents.append(self._client)
            self._client, self._was_forked = None, True


def _asked(domain: str) -> str:
    """The name servers in the answer of `domain`. Raises ConfigError."""
    url = domain if "://" in domain else f"http://{domain}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError("name server domain", domain, "a URL of http or https")
    try:
        with urllib.request.urlopen(url, timeout=DOMAIN_SECONDS) as answer:
            found = answer.read(DOMAIN_BYTES).decode("utf-8", "replace")
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ConfigError("name server domain", domain, f"an answer, not {error}") from error
    lines = found.split()
    return ";".join(parse_name_servers(lines[0] if lines else "", f"the answer of {url}"))


def _after_fork() -> None:
    for one in list(_started):
        one._forked()
    _started.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
