"""`rmq certs`: an authority and its certificates for development and small clusters, and a cluster's secret.

Keys are ECDSA P-256 in PKCS#8 PEM, which Java reads too. For more than a few machines use the certificates
of your own authority: the services only want PEM files.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
import pathlib
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rmq.cli.output import EXIT_FAILED, EXIT_USAGE, echo
from rmq.files import replace_file
from rmq.printable import counted

CA: Final = "ca"
CA_DAYS: Final = 3650
DAYS: Final = 397
SKEW: Final = datetime.timedelta(hours=1)
"""Time in seconds before now from which certificates are valid: the clocks of machines differ."""
USES: Final = {
    ExtendedKeyUsageOID.SERVER_AUTH: "server",
    ExtendedKeyUsageOID.CLIENT_AUTH: "client",
}
KEY_MODE: Final = 0o600
FOLDER: Final = click.argument(
    "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=pathlib.Path)
)
FORCE: Final = click.option("--force", is_flag=True, help="Replace existing files.")

C = TypeVar("C", bound=Callable[..., Any])


def days_option(days: int) -> Callable[[C], C]:
    """Add the option `--days`."""
    return click.option(
        "--days", default=days, show_default=True, type=click.IntRange(1, 36500), help="Validity."
    )


@click.group()
def certs() -> None:
    """Create an authority, certificates and the cluster's secret.

    Exit status: 0 done, 1 a certificate that is shown is not valid now, 2 wrong usage, files or names.
    """


@certs.command("ca")
@FOLDER
@days_option(CA_DAYS)
@FORCE
def ca_command(folder: pathlib.Path, days: int, force: bool) -> None:
    """Create an authority: DIR/ca.pem for all machines, and DIR/ca.key, which you keep."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named("rmq development authority")
    made = _begun(subject, subject, key, days).add_extension(x509.BasicConstraints(True, 0), critical=True)
    made = made.add_extension(_key_usage(sign_certificates=True), critical=True)
    _save(folder, CA, made.sign(key, hashes.SHA256()), key, force)


@certs.command()
@FOLDER
@click.argument("name")
@click.option(
    "--host", "hosts", multiple=True, help="A name or address that clients connect to; may be repeated."
)
@click.option("--client", is_flag=True, help="For a client, without --host.")
@days_option(DAYS)
@FORCE
def issue(
    folder: pathlib.Path, name: str, hosts: tuple[str, ...], client: bool, days: int, force: bool
) -> None:
    """Create DIR/NAME.pem and DIR/NAME.key, signed by the authority in DIR.

    With --host the certificate is for a server, which may also use it to connect to others; with --client for
    a client.
    """
    if client == bool(hosts):
        raise click.UsageError("choose its use: --host HOST for a server, or --client")
    if name == CA or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise click.UsageError(f"{name!r} cannot be a name: letters, digits and . _ -, and not {CA!r}")
    authority = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([] if client else [ExtendedKeyUsageOID.SERVER_AUTH])]
    made = _begun(_named(name), authority.certificate.subject, key, days)
    made = made.add_extension(x509.BasicConstraints(False, None), critical=True)
    made = made.add_extension(_key_usage(sign_certificates=False), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    made = made.add_extension(issuer, critical=False)
    _save(folder, name, made.sign(authority.key, hashes.SHA256()), key, force)


@certs.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path))
def show(file: pathlib.Path) -> None:
    """Show the subjects and the expiry dates of the certificates of a PEM file."""
    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except ValueError:
        raise Refused(f"{file} holds no certificate in PEM form") from None
    now = datetime.datetime.now(datetime.UTC)
    for certificate in found:
        echo(_described(certificate, now))
    if not all(one.not_valid_before_utc <= now <= one.not_valid_after_utc for one in found):
        sys.exit(EXIT_FAILED)


@certs.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=pathlib.Path))
@FORCE
def secret(file: pathlib.Path, force: bool) -> None:
    """Create the secret that all servers of a cluster share (`clusterSecretFile`): 32 random bytes as
    text."""
    _check_free([file], force)
    _write(file, base64.b64encode(secrets.token_bytes(32)) + b"\n", KEY_MODE)
    echo(f"{file}: copy it to every name server and broker, over an encrypted connection")


class Refused(click.ClickException):
    """The error for files that exist already, are missing, or have the wrong content."""

    exit_code = EXIT_USAGE


@frozen
class Authority:
    """The certificate and the key that sign other certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def _authority(folder: pathlib.Path) -> Authority:
    try:
        certificate = x509.load_pem_x509_certificate((folder / f"{CA}.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / f"{CA}.key").read_bytes(), None)
    except OSError as error:
        raise Refused(
            f"{error.filename}: {error.strerror}; `rmq certs ca {folder}` makes an authority"
        ) from None
    except (ValueError, TypeError) as error:
        raise Refused(f"the authority in {folder} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise Refused(f"{folder}/{CA}.key is not the key of {folder}/{CA}.pem")
    return Authority(certificate, key)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - SKEW).not_valid_after(now + datetime.timedelta(days=days))
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise click.UsageError(f"{host!r} is no host name; write it in its ASCII form") from None


def _save(
    folder: pathlib.Path,
    name: str,
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    force: bool,
) -> None:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    paths = folder / f"{name}.key", folder / f"{name}.pem"
    _check_free(paths, force)
    _write(paths[0], private, KEY_MODE)
    _write(paths[1], certificate.public_bytes(pem), 0o644)
    echo(_described(certificate, datetime.datetime.now(datetime.UTC)))
    echo(f"written to {paths[1]} and {paths[0]}")


def _check_free(paths: Sequence[pathlib.Path], force: bool) -> None:
    for path in paths:
        if path.exists() and not force:
            raise Refused(f"{path} exists already; --force replaces it")


def _write(path: pathlib.Path, data: bytes, mode: int) -> None:
    """Replace a file as a whole: a concurrent reader sees either the old file or the new."""
    try:
        replace_file(path, data, mode=mode, suffix=f".{os.getpid()}.new")
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from None


def _described(certificate: x509.Certificate, now: datetime.datetime) -> str:
    until = certificate.not_valid_after_utc
    left = (until - now).days
    state = f"{counted(left, 'day')} left" if now <= until else "EXPIRED"
    if now < certificate.not_valid_before_utc:
        state = "NOT VALID YET"
    rows = {
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "hosts": ", ".join(_hosts(certificate)) or "none",
        "for": ", ".join(_uses(certificate)),
        "valid until": f"{until:%Y-%m-%d %H:%M} UTC ({state})",
        "SHA-256": certificate.fingerprint(hashes.SHA256()).hex(":"),
    }
    return "\n".join(f"{name:<12} {text}" for name, text in rows.items())


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _uses(certificate: x509.Certificate) -> list[str]:
    extensions = certificate.extensions
    try:
        if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return ["signing certificates"]
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ["anything"]
    return [USES.get(use, use.dotted_string) for use in uses]
