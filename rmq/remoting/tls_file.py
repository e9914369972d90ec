"""RocketMQ's own TLS settings: the file tls.properties, read into a TlsConfig."""

from __future__ import annotations

import logging
from typing import Any, Final

import attrs

from rmq.config import read_file
from rmq.errors import ConfigError
from rmq.remoting.tls import TlsConfig

log = logging.getLogger(__name__)

KEYS: Final = {
    "tls.server.mode": "tls_mode",
    "tls.enable": "tls_enable",
    "tls.server.certPath": "tls_cert_path",
    "tls.server.keyPath": "tls_key_path",
    "tls.server.keyPassword": "tls_key_password",
    "tls.server.need.client.auth": "tls_client_auth",
    "tls.server.trustCertPath": "tls_trust_path",
    "tls.client.certPath": "tls_client_cert_path",
    "tls.client.keyPath": "tls_client_key_path",
    "tls.client.keyPassword": "tls_client_key_password",
    "tls.client.trustCertPath": "tls_client_trust_path",
    "tls.test.mode.enable": "tls_test_mode",
}
"""RocketMQ's key -> field of TlsConfig."""

WEAKER: Final = {
    "tls.client.authServer": "servers are always verified; tlsInsecureSkipVerify=true switches that off",
    "tls.server.authClient": "a client certificate that is asked for is always verified",
}
"""Keys whose `false` would let anybody in: it is not followed, and what is done instead."""


def with_file(config: TlsConfig) -> TlsConfig:
    """The settings with those of `tls_config_file` where they have their defaults. Raises ConfigError."""
    if not config.tls_config_file:
        return config
    changes: dict[str, Any] = {}
    fields = attrs.fields_dict(TlsConfig)
    for entry in read_file(config.tls_config_file):
        value = str(entry.value).strip()
        if entry.key in WEAKER and value.lower() != "true":
            log.warning("%s=%s in %s: %s", entry.key, value, entry.source, WEAKER[entry.key])
        name = KEYS.get(entry.key)
        if name is not None and value and getattr(config, name) == fields[name].default:
            changes[name] = _value(entry.key, name, value, entry.source)
    return attrs.evolve(config, **changes)


def _value(key: str, name: str, text: str, source: str) -> Any:
    if isinstance(attrs.fields_dict(TlsConfig)[name].default, bool):
        return text.lower() == "true"  # as Java reads it
    if name not in ("tls_mode", "tls_client_auth"):
        return text
    try:
        attrs.evolve(TlsConfig(), **{name: text.lower()})  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(key, text, error.expected, source) from None
    return text.lower()
