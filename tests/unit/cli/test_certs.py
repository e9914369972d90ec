"""`rmq certs`: what it makes is accepted by OpenSSL, and what it must not do it refuses."""

from __future__ import annotations

import datetime
import pathlib
import ssl
import stat

import pytest
import trustme
from click.testing import CliRunner, Result
from cryptography import x509

from rmq.cli.local.certs import certs
from rmq.remoting.transports.tls import TlsConfig, TlsContexts
from rmq.server.profile import cluster_secret


def run(*arguments: object) -> Result:
    return CliRunner().invoke(certs, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with an authority and the certificates of a server and of a client."""
    made = tmp_path / "certs"
    for arguments in (
        ("ca", made),
        ("issue", made, "broker-a", "--host", "127.0.0.1", "--host", "broker-a.example", "--host", "::1"),
        ("issue", made, "alice", "--client"),
    ):
        result = run(*arguments)
        assert result.exit_code == 0, result.output
    return made


def shaken(folder: pathlib.Path, server: str, client: str, host: str) -> None:
    """A TLS handshake in memory, both sides with a certificate. Raises ssl.SSLError."""
    sides = []
    for name, is_server in ((client, False), (server, True)):
        config = TlsConfig(
            tls_mode="enforcing",
            tls_cert_path=str(folder / f"{name}.pem"),
            tls_key_path=str(folder / f"{name}.key"),
            tls_trust_path=str(folder / "ca.pem"),
            tls_client_auth="require",
        )
        contexts = TlsContexts(config)
        bios = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = contexts.server() if is_server else contexts.client()
        sides.append((context.wrap_bio(*bios, is_server, None if is_server else host), *bios))
    for _ in range(4):
        for (tls, incoming, _), other in zip(sides, reversed(sides), strict=True):
            incoming.write(other[2].read())
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("host", ["127.0.0.1", "broker-a.example", "::1"])
def test_openssl_accepts_what_was_issued(folder: pathlib.Path, host: str) -> None:
    shaken(folder, "broker-a", "alice", host)
    shaken(folder, "broker-a", "broker-a", host)  # brokers dial each other with the same certificate


def test_other_hosts_and_other_uses_are_not_covered(folder: pathlib.Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken(folder, "broker-a", "alice", "broker-b.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(folder, "alice", "broker-a", "127.0.0.1")


def test_keys_are_for_their_owner_only(folder: pathlib.Path) -> None:
    for name in ("ca.key", "broker-a.key", "alice.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_nothing_is_replaced_unless_it_is_asked_for(folder: pathlib.Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for arguments in (("ca", folder), ("issue", folder, "alice", "--client"), ("secret", folder / "ca.key")):
        result = run(*arguments)
        assert (result.exit_code, "--force replaces it" in result.output) == (2, True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert run("issue", folder, "alice", "--client", "--force").exit_code == 0
    assert (folder / "alice.pem").read_bytes() != before["alice.pem"]
    assert stat.S_IMODE((folder / "alice.key").stat().st_mode) == 0o600


def test_show_says_whom_for_and_until_when(folder: pathlib.Path) -> None:
    result = run("show", folder / "broker-a.pem")
    assert result.exit_code == 0
    for text in ("CN=broker-a", "127.0.0.1, broker-a.example, ::1", "client, server", "396 days left"):
        assert text in result.output
    assert "signing certificates" in run("show", folder / "ca.pem").output
    assert run("show", folder / "ca.key").exit_code == 2


def test_show_ends_with_1_for_what_is_not_valid(tmp_path: pathlib.Path) -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    leaf = trustme.CA().issue_cert("127.0.0.1", not_after=past)
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "old.pem")
    result = run("show", tmp_path / "old.pem")
    assert (result.exit_code, "EXPIRED" in result.output) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("alice",),
        ("alice", "--client", "--host", "h"),
        ("../alice", "--client"),
        ("ca", "--client"),
        ("alice", "--host", "bücher"),
        ("alice", "--client", "--days", "0"),
    ],
)
def test_wrong_usage(folder: pathlib.Path, arguments: tuple[str, ...]) -> None:
    files = set(folder.iterdir())
    assert run("issue", folder, *arguments).exit_code == 2
    assert set(folder.iterdir()) == files


def test_no_authority_or_the_key_of_another(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    result = run("issue", tmp_path / "none", "b", "--client")
    assert (result.exit_code, "rmq certs ca" in result.output) == (2, True)
    (folder / "ca.key").write_bytes((folder / "alice.key").read_bytes())
    assert "is not the key of" in run("issue", folder, "b", "--client").output


def test_a_secret_is_one_that_servers_take(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    result = run("secret", path)
    assert result.exit_code == 0
    assert path.read_text().strip() not in result.output
    assert cluster_secret(str(path)) is not None
    assert not caplog.records  # nobody else may read it
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_serial_numbers_differ(folder: pathlib.Path) -> None:
    numbers = {
        x509.load_pem_x509_certificate(path.read_bytes()).serial_number for path in folder.glob("*.pem")
    }
    assert len(numbers) == 3
