"""TLS with the stock Java client and broker: their self-signed test mode, and our certificates in Java."""

from __future__ import annotations

import pathlib
import sys

import pytest
import trio
from click.testing import CliRunner

import rmq
from rmq.cli.local.certs import certs
from rmq.remoting import TlsConfig

from ..rocketmq import Processes, free_port

pytestmark = pytest.mark.interop

COUNT = 30


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """An authority, a server's certificate and a client's, as `rmq certs` makes them."""
    made = str(tmp_path / "certs")
    for arguments in (
        ["ca", made],
        ["issue", made, "server", "--host", "127.0.0.1"],
        ["issue", made, "client", "--client"],
    ):
        assert CliRunner().invoke(certs, arguments).exit_code == 0
    return tmp_path / "certs"


def settings(folder: pathlib.Path, mode: str, **more: str) -> dict[str, str]:
    """The settings of our services for TLS."""
    files = {
        "tlsCertPath": str(folder / "server.pem"),
        "tlsKeyPath": str(folder / "server.key"),
        "tlsTrustPath": str(folder / "ca.pem"),
    }
    return {"tlsMode": mode, "tlsEnable": "true", **files, **more}


def start_ours(processes: Processes, tmp_path: pathlib.Path, tls: dict[str, str]) -> str:
    """Our name server and broker with these settings; returns the name server's address."""
    port = free_port()
    kept = {"listenPort": str(port), "kvConfigPath": str(tmp_path / "kv.json"), **tls}
    path = processes.write_settings(f"namesrv-{port}", kept)
    processes.serve([sys.executable, "-m", "rmq.namesrv", "-c", str(path)], "rmq-namesrv", port)
    namesrv = f"127.0.0.1:{port}"
    path, broker_port = processes.broker_settings(tmp_path / "store", tls)
    command = [sys.executable, "-m", "rmq.broker", "-n", namesrv, "-c", str(path)]
    processes.serve(command, "rmq-broker", broker_port)
    return namesrv


def java_client(folder: pathlib.Path, tmp_path: pathlib.Path, *, verify: bool) -> tuple[str, ...]:
    """JVM options of a Java client with TLS: in test mode, or verifying and with a certificate of its own."""
    if not verify:
        return ("-Dtls.enable=true",)
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.test.mode.enable=false\ntls.client.authServer=true\n"
        f"tls.client.trustCertPath={folder}/ca.pem\n"
        f"tls.client.certPath={folder}/client.pem\ntls.client.keyPath={folder}/client.key\n"
    )
    return ("-Dtls.enable=true", f"-Dtls.config.file={file}")


@pytest.mark.parametrize(
    ("mode", "verify", "client_auth"),
    [("permissive", False, "none"), ("enforcing", False, "none"), ("enforcing", True, "require")],
)
def test_java_clients_speak_tls_with_us(
    processes: Processes,
    tmp_path: pathlib.Path,
    folder: pathlib.Path,
    mode: str,
    verify: bool,
    client_auth: str,
) -> None:
    namesrv = start_ours(processes, tmp_path, settings(folder, mode, tlsClientAuth=client_auth))
    options = java_client(folder, tmp_path, verify=verify)
    sent = processes.program("Produce", namesrv, "Secured", "sync", str(COUNT), "m", options=options).finish()
    assert [row["status"] for row in sent if "status" in row] == ["SEND_OK"] * COUNT
    read = processes.program("ReadAll", namesrv, "Secured", options=options).finish()
    assert sum("body" in row for row in read) == COUNT


def test_a_plain_java_client_is_taken_by_permissive_and_not_by_enforcing(
    processes: Processes, tmp_path: pathlib.Path, folder: pathlib.Path
) -> None:
    namesrv = start_ours(processes, tmp_path, settings(folder, "permissive"))
    sent = processes.program("Produce", namesrv, "Plain", "sync", "3", "m").finish()
    assert sum(row.get("status") == "SEND_OK" for row in sent) == 3
    namesrv = start_ours(processes, tmp_path / "closed", settings(folder, "enforcing"))
    refused = processes.program("Produce", namesrv, "Plain", "sync", "3", "m")
    assert refused.child.wait(60) != 0


def exchange(namesrv: str, tls: TlsConfig) -> list[bytes]:
    """Send and read back through a Java broker with our client."""

    async def main() -> list[bytes]:
        async with rmq.connect(namesrv, tls=tls) as client:
            async with client.producer("tls-producers") as producer:
                for number in range(5):
                    await producer.send(rmq.Message("FromUs", b"%d" % number))
            got: list[bytes] = []
            async with client.consumer("tls-readers", {"FromUs": "*"}, consume_from="first") as consumer:
                with trio.fail_after(60):
                    async for delivery in consumer:
                        async with delivery as message:
                            got.append(message.body)
                        if len(got) == 5:
                            return got
        raise AssertionError

    return trio.run(main)


def test_our_client_speaks_tls_with_java_servers(processes: Processes, tmp_path: pathlib.Path) -> None:
    """Java's default: permissive, with a certificate that it makes up, so that nobody can verify it."""
    namesrv = processes.java_namesrv()
    processes.java_broker(namesrv, tmp_path / "store")
    got = exchange(f"tls://{namesrv}", TlsConfig(tls_insecure_skip_verify=True))
    assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(rmq.NoRoute, match=r"untrusted|self-signed"):
        exchange(f"tls://{namesrv}", TlsConfig())
