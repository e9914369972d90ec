"""The certificate of RocketMQ's TLS test mode: signed by itself, for no name, gone with the process."""

from __future__ import annotations

import datetime
import logging
import ssl
import tempfile

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

log = logging.getLogger(__name__)

DAYS = 30


def load_unverifiable(context: ssl.SSLContext) -> None:
    """Give a server's context a fresh certificate that only clients without verification accept."""
    log.warning("tlsTestMode: this server's certificate is made up; clients cannot know whom they talk to")
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # mode 0600; OpenSSL reads files only
        file.write(_self_signed())
        file.flush()
        context.load_cert_chain(file.name)


def _self_signed() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rmq tlsTestMode")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(hours=1))
    made = made.not_valid_after(now + datetime.timedelta(days=DAYS))
    text = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(text, serialization.PrivateFormat.PKCS8, plain)
    return private + made.sign(key, hashes.SHA256()).public_bytes(text)
