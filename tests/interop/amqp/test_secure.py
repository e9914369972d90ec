"""Logins of Qpid's JMS client, and its connections over TLS and WebSocket, at our door.

One broker has accounts, TLS on both of its ports, and takes client certificates as logins.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from attrs import frozen

from tests.interop.amqp.broker import Served, served
from tests.interop.amqp.jms_program import compiled
from tests.interop.amqp.programs import said

pytest.importorskip("proton", reason="needs the extra amqp: pip install 'rmq[amqp]'")
pytestmark = pytest.mark.interop

ACCOUNTS = """accounts:
  - {accessKey: orders-app, secretKey: a-secret-word, topicPerms: [Orders=PUB|SUB], groupPerms: [Orders=SUB]}
  - {accessKey: reader-app, secretKey: b-secret-word, topicPerms: [Orders=SUB], groupPerms: [Orders=SUB]}
"""
WORD = "changeit"


@frozen
class Secure:
    """The broker, and the stores of keys for a client."""

    broker: Served
    folder: pathlib.Path

    def url(self, scheme: str, name: str = "", port: int = 0, **options: str) -> str:
        """The URL of the door, with the certificate of a name."""
        given = {"trustStoreLocation": f"{self.folder}/trust.p12", "trustStorePassword": WORD}
        if name:
            given |= {"keyStoreLocation": f"{self.folder}/{name}.p12", "keyStorePassword": WORD}
        texts = [f"transport.{key}={value}" for key, value in given.items()]
        texts += [f"amqp.{key}={value}" for key, value in options.items()]
        return f"{scheme}://127.0.0.1:{port or self.broker.amqp}?{'&'.join(texts)}"


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> list[str]:
    return compiled(request, "RoundTrip")


def certificates(folder: pathlib.Path) -> None:
    """An authority, certificates of the broker and of clients, and Java's stores of them."""
    rmq = [sys.executable, "-m", "rmq", "certs"]
    subprocess.run([*rmq, "ca", str(folder)], check=True, capture_output=True)
    subprocess.run(
        [*rmq, "issue", str(folder), "broker", "--host", "127.0.0.1"], check=True, capture_output=True
    )
    store = ["-storepass", WORD, "-storetype", "PKCS12"]
    trust = ["-importcert", "-noprompt", "-alias", "ca", "-file", str(folder / "ca.pem")]
    keystore = ["keytool", *trust, "-keystore", str(folder / "trust.p12"), *store]
    subprocess.run(keystore, check=True, capture_output=True)
    for name in ("orders-app", "reader-app", "stranger"):
        subprocess.run([*rmq, "issue", str(folder), name, "--client"], check=True, capture_output=True)
        pair = ["-in", str(folder / f"{name}.pem"), "-inkey", str(folder / f"{name}.key")]
        out = ["-out", str(folder / f"{name}.p12"), "-passout", f"pass:{WORD}"]
        subprocess.run(["openssl", "pkcs12", "-export", *pair, *out], check=True, capture_output=True)


@pytest.fixture(scope="module")
def secure(program: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("secure")
    certificates(folder)
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS, "utf-8")
    accounts.chmod(0o600)
    settings = {
        "plugins": "acl,amqp",
        "aclFile": accounts,
        "amqpExternal": "true",
        "tlsMode": "permissive",
        "tlsCertPath": folder / "broker.pem",
        "tlsKeyPath": folder / "broker.key",
        "tlsTrustPath": folder / "ca.pem",
        "tlsClientAuth": "optional",
    }
    with served(folder, **settings) as broker:
        yield Secure(broker, folder)


OK = "ok a table 5"
ORDERS = ["orders-app", "a-secret-word"]


@pytest.mark.parametrize("scheme", ["amqp", "amqps", "amqpws", "amqpwss"])
def test_a_login_over_each_transport(secure: Secure, program: list[str], scheme: str) -> None:
    assert said([*program, secure.url(scheme), *ORDERS]) == OK


@pytest.mark.parametrize("scheme", ["amqp", "amqps", "amqpws", "amqpwss"])
def test_the_port_for_clients(secure: Secure, program: list[str], scheme: str) -> None:
    assert said([*program, secure.url(scheme, port=secure.broker.clients), *ORDERS]) == OK


@pytest.mark.parametrize("scheme", ["amqps", "amqpwss"])
def test_a_certificate_is_a_login(secure: Secure, program: list[str], scheme: str) -> None:
    assert said([*program, secure.url(scheme, "orders-app", saslMechanisms="EXTERNAL")]) == OK


def test_a_certificate_is_a_login_at_the_port_for_clients(secure: Secure, program: list[str]) -> None:
    assert said([*program, secure.url("amqps", "orders-app", secure.broker.clients)]) == OK


def test_a_certificate_has_the_rights_of_its_account(secure: Secure, program: list[str]) -> None:
    line = said([*program, secure.url("amqps", "reader-app", saslMechanisms="EXTERNAL")])
    assert line.startswith("refused jakarta.jms.JMSSecurityException")
    assert "no permission to publish: Orders" in line


@pytest.mark.parametrize(
    ("scheme", "name", "login", "options"),
    [
        ("amqp", "", ["orders-app", "a-wrong-word"], {}),
        ("amqp", "", ["somebody-else", "a-secret-word"], {}),
        ("amqp", "", [], {}),
        ("amqps", "", [], {"saslMechanisms": "EXTERNAL"}),
        ("amqps", "stranger", [], {"saslMechanisms": "EXTERNAL"}),
        ("amqp", "orders-app", [], {"saslMechanisms": "EXTERNAL"}),
    ],
)
def test_who_is_not_let_in(
    secure: Secure, program: list[str], scheme: str, name: str, login: list[str], options: dict[str, str]
) -> None:
    line = said([*program, secure.url(scheme, name, **options), *login])
    assert line.startswith("refused org.apache.qpid.jms.exceptions.JMSSecuritySaslException")
    assert said([*program, secure.url("amqp"), *ORDERS]) == OK
