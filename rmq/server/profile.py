"""`profile = secure`: one line that turns every protection on, and refuses a start that lacks a
requirement."""

from __future__ import annotations

import logging
import os
from typing import Final, TypeVar

import attrs

from rmq.errors import ConfigError
from rmq.protocol.auth.server_auth import SECRET_BYTES_MIN, ClusterSecret
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.settings import ServerSettings

COMPAT: Final = "compat"
SECURE: Final = "secure"

_READ_BY_OTHERS: Final = 0o077

log = logging.getLogger("rmq.config")

C = TypeVar("C", bound=ServerSettings)


def applied(config: C, tls: TlsConfig) -> tuple[C, TlsConfig]:
    """The settings of a server according to their profile. Raises ConfigError with every missing requirement
    of `secure`, and the way to meet it."""
    if config.profile != SECURE:
        return config, tls
    if tls.tls_mode == "permissive" or tls.tls_insecure_skip_verify or tls.tls_test_mode:
        expected = (
            "without tlsMode=permissive, tlsInsecureSkipVerify and tlsTestMode, which weaken the profile"
        )
        raise ConfigError("profile", SECURE, expected)
    missing = _missing(config, tls)
    if missing:
        raise ConfigError("profile", SECURE, "these too: " + "; ".join(missing))
    config = attrs.evolve(config, acl_enable=True)
    return config, attrs.evolve(tls, tls_mode="enforcing", tls_enable=True)


NEW_PER_SECOND: Final = 50
"""Failed handshakes of one address in a second, with the profile `secure`."""


def connection_rate(config: ServerSettings) -> int:
    """The number of handshakes of one address that may fail in a second; 0: any number, as in RocketMQ."""
    asked = config.max_new_connections_per_address
    if asked >= 0:
        return asked
    return NEW_PER_SECOND if config.profile == SECURE else 0


def protect_files(config: ServerSettings, folder: str = "") -> None:
    """Make files that are written from now on (messages, tables, logs) readable by the process's user alone,
    for a program with the profile `secure`. `folder` is the folder of its store; a folder open to other users
    gets a warning."""
    if config.profile != SECURE:
        return
    os.umask(_READ_BY_OTHERS)
    path = os.path.expanduser(folder)
    if folder and os.path.exists(path) and os.stat(path).st_mode & _READ_BY_OTHERS:
        log.warning("other users of this machine can read the store in %s; run chmod -R go= on it", path)


def _missing(settings: ServerSettings, tls: TlsConfig) -> list[str]:
    needs = [
        (
            tls.tls_cert_path,
            "tlsCertPath and tlsKeyPath, a certificate (`rmq certs issue DIR NAME --host HOST` makes one)",
        ),
        (
            tls.tls_trust_path,
            "tlsTrustPath, the authority of the cluster's certificates (`rmq certs ca DIR` makes one)",
        ),
        (
            settings.cluster_secret_file,
            "clusterSecretFile, the secret of the cluster's servers (`rmq certs secret FILE` makes one)",
        ),
        (
            _accounts_file(settings),
            "aclFile, the accounts (`rmq acl add NAME --admin --file FILE` makes one)",
        ),
    ]
    return [text for path, text in needs if not path or not os.path.exists(os.path.expanduser(path))]


def _accounts_file(settings: ServerSettings) -> str:
    """The file of accounts that the settings name, or else the first default file that exists; empty without
    one."""
    if settings.acl_file:
        return settings.acl_file
    beside = os.path.dirname(os.path.abspath(os.path.expanduser(settings.config_store_path)))
    homes = [beside] if settings.config_store_path else []
    homes += [os.path.join(home, "conf") for home in (os.environ.get("ROCKETMQ_HOME"),) if home]
    places = [os.path.join(home, name) for home in homes for name in ("plain_acl.yml", "acl")]
    return next(filter(os.path.exists, places), "")


def exposure(config: ServerSettings, tls: TlsConfig, *, secret: str, unguarded: str) -> list[str]:
    """Lines for the start banner of a service that other machines can reach: the rights of these machines.
    `secret` is true if servers must know a secret; otherwise `unguarded` names the rights of any machine."""
    found = []
    if not config.acl_enable:
        found.append("without ACL anybody there can do everything")
    if tls.tls_mode != "enforcing":
        found.append("without tlsMode=enforcing others can read and change the traffic")
    mutual = tls.tls_mode == "enforcing" and tls.tls_client_auth == "require"
    if unguarded and not secret and not mutual:
        found.append(f"without clusterSecretFile anybody there can {unguarded}")
    if not found:
        return []
    lines = [f"WARNING: other machines can reach it, and {text}." for text in found]
    return [*lines, "Set profile=secure or bindAddress=127.0.0.1, or protect the network (docs/tls.md)."]


def cluster_secret(path: str, key: str = "clusterSecretFile") -> ClusterSecret | None:
    """The secret in the first line of a file; None for an empty path. Further lines are secrets that are
    accepted from other servers too, so that a secret can be replaced server by server.

    Raises ConfigError when the file cannot be read or its text is too short to be a secret.
    """
    if not path:
        return None
    try:
        with open(os.path.expanduser(path), "rb") as file:
            value, *others = [line.strip() for line in file.read().split(b"\n") if line.strip()] or [b""]
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        expected = f"a file that can be read ({error.strerror}); `rmq certs secret FILE` makes one"
        raise ConfigError(key, path, expected) from None
    if min(map(len, (value, *others))) < SECRET_BYTES_MIN:
        expected = f"a file with {SECRET_BYTES_MIN} bytes or more; `rmq certs secret FILE` makes one"
        raise ConfigError(key, path, expected)
    if mode & _READ_BY_OTHERS:
        log.warning("%s: other users of this machine can read %s; run chmod 600 on it", key, path)
    return ClusterSecret(value, tuple(others))
