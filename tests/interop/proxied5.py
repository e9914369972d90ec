"""Two brokers behind `rmq proxy`, as processes, for the official 5.x clients."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import trio

import rmq
from tests.interop.clients5 import SECONDS, Broker, _certificate
from tests.interop.rocketmq import PYTHON_PATH, wait_for_port
from tests.ports import free_ports


class Proxied(Broker):
    """A name server, two brokers without a door of their own, and a proxy; `kill` and `stop` are about the
    proxy. `topic` makes a topic on one of the brokers, `wide_topic` on both: a simple consumer asks brokers
    in turn, and waits at each."""

    def __init__(self, folder: pathlib.Path, **settings: object) -> None:
        self._folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        names, first, first_ha, second, second_ha, self.grpc_port, self.metrics_port = free_ports(7)
        self.names, self.ports = f"127.0.0.1:{names}", (first, second)
        self.port = first
        self.address = f"127.0.0.1:{self.grpc_port}"
        self.env = _certificate(folder)
        tls = {
            "tlsMode": "permissive",
            "tlsCertPath": folder / "certs" / "server.pem",
            "tlsKeyPath": folder / "certs" / "server.key",
        }
        self._write("names", {"listenPort": names, "kvConfigPath": folder / "kv.json"})
        self._start("rmq.namesrv", "names.conf", names)
        for name, port, ha in (("a", first, first_ha), ("b", second, second_ha)):
            merged = {
                "brokerName": name,
                "listenPort": port,
                "haListenPort": ha,
                "brokerIP1": "127.0.0.1",
                "vipChannelEnabled": "false",
                "storePathRootDir": folder / f"store-{name}",
                "namesrvAddr": self.names,
                "enablePropertyFilter": "true",
                "transactionTimeOut": 3_000,
                "transactionCheckInterval": 2_000,
                **settings,
            }
            self._write(name, merged)
            self._start("rmq.broker", f"{name}.conf", port)
        pages = {"plugins": "grpc,metrics", "metricsPort": self.metrics_port}
        self._write("proxy", {"namesrvAddr": self.names, "listenPort": self.grpc_port, **tls, **pages})
        self.start()

    def _write(self, name: str, settings: dict[str, object]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._folder / f"{name}.conf").write_text(text)

    def _start(self, module: str, file: str, port: int) -> None:
        env = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        with (self._folder / f"{file}.log").open("ab") as log:
            command = [sys.executable, "-m", module, "-c", str(self._folder / file)]
            self._children[file] = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        wait_for_port(port)

    def start(self) -> None:
        """Start the proxy, again after it has ended."""
        self._start("rmq.proxy", "proxy.conf", self.grpc_port)

    @property
    def pid(self) -> int:
        """Process id of the proxy."""
        return self._children["proxy.conf"].pid

    def kill(self) -> None:
        """End the proxy by SIGKILL."""
        self._end("proxy.conf", is_hard=True)

    def stop(self) -> None:
        """End the proxy in order."""
        self._end("proxy.conf")

    def kill_broker(self, name: str) -> None:
        """End a broker by SIGKILL."""
        self._end(f"{name}.conf", is_hard=True)

    def start_broker(self, name: str) -> None:
        """Start a broker that has ended."""
        self._start("rmq.broker", f"{name}.conf", self.ports["ab".index(name)])

    def close(self) -> None:
        """End all, the proxy first."""
        for file in ("proxy.conf", "b.conf", "a.conf", "names.conf"):
            self._end(file)

    def topic(self, name: str, queues: int = 4, account: rmq.Credentials | None = None) -> str:
        """Make a topic on one broker."""
        return self._make(name, queues, "ab"[len(name) % 2], account)

    def wide_topic(self, name: str, queues: int = 2) -> str:
        """Make a topic on both brokers."""
        return self._make(name, queues, "")

    def _make(self, name: str, queues: int, broker: str, account: rmq.Credentials | None = None) -> str:
        async def create() -> None:
            async with rmq.connect(self.names, credentials=account) as ours:
                with trio.fail_after(SECONDS):
                    await ours.admin.create_topic(name, queues=queues, broker=broker)

        trio.run(create)
        return name

    def group(self, name: str, *, attempts: int = 17, delay_ms: int = 0, in_order: bool = False) -> str:
        """Make a group on both brokers."""
        for port in self.ports:
            self.port = port
            super().group(name, attempts=attempts, delay_ms=delay_ms, in_order=in_order)
        return name
