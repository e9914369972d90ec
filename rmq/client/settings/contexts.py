"""Named clusters, and their file: `rmq context` writes it, commands and `rmq.connect` read it.

The file is in the user's configuration folder, readable by its owner only:

    current: prod
    contexts:
      prod: {namesrv: "10.0.0.1:9876;10.0.0.2:9876", access_key: ops, secret_key: ..., tls: true}
"""

from __future__ import annotations

import os
import pathlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, field, fields_dict

from rmq.errors import ConfigError
from rmq.files import OWNER_ONLY, replace_file

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.remoting.transports.tls import TlsConfig
else:
    from rmq.lazy_attrs import frozen

ENTRIES: Final = ("current", "contexts")


@frozen(kw_only=True)
class Context:
    """Address, account and TLS of a cluster; an empty field is not set. The secret is not part of the
    repr."""

    namesrv: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure: bool = False

    def options(self) -> dict[str, Any]:
        """All fields by name, the secret too."""
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """The fields that are set, without the secret."""
        row = {key: value for key, value in asdict(self).items() if value and key != "secret_key"}
        return row | ({"secret_key": "(kept)"} if self.secret_key else {})

    def tls_config(self) -> TlsConfig | None:
        """TLS settings of a client, None for plain connections. Raises ConfigError."""
        if not (self.tls or self.tls_ca or self.tls_cert or self.tls_insecure):
            return None
        from rmq.remoting.transports.tls import TlsConfig

        return TlsConfig(
            tls_mode="enforcing",
            tls_cert_path=self.tls_cert,
            tls_key_path=self.tls_key,
            tls_trust_path=self.tls_ca,
            tls_insecure_skip_verify=self.tls_insecure,
        )


@frozen
class Contexts:
    """The whole file."""

    current: str = ""
    contexts: dict[str, Context] = field(factory=dict)


def contexts_path() -> pathlib.Path:
    """The path of the file: ~/.config/rmq/contexts.yaml, or the platform's counterpart."""
    if sys.platform == "win32":
        folder = os.environ.get("APPDATA") or "~"
    elif sys.platform == "darwin":
        folder = "~/Library/Application Support"
    else:
        folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return pathlib.Path(folder).expanduser() / "rmq" / "contexts.yaml"


def read_contexts(path: pathlib.Path | None = None) -> Contexts:
    """The content of the file; nothing without a file. Raises ConfigError with the file's name."""
    path = path or contexts_path()
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("contexts", str(path), f"a readable file ({error})") from None
    return _parsed(text, path)


def _yaml(path: pathlib.Path) -> ModuleType:
    """The module that reads and writes YAML. Raises ConfigError if it is not installed."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            "contexts",
            str(path),
            "the package PyYAML: pip install 'rmq-client[contexts]'",
        ) from None
    return yaml


def _parsed(text: str, path: pathlib.Path) -> Contexts:
    yaml = _yaml(path)
    try:
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        # The error's own text quotes the line, which may have a secret.
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            "contexts", str(path), f"YAML, wrong at line {mark.line + 1 if mark else '?'}"
        ) from None
    if not isinstance(tree, dict) or not isinstance(tree.get("contexts", {}), dict) or set(tree) - {*ENTRIES}:
        raise ConfigError("contexts", str(path), f"a mapping of {' and '.join(ENTRIES)}")
    found = {str(name): _context(str(name), entry, path) for name, entry in tree.get("contexts", {}).items()}
    return Contexts(str(tree.get("current") or ""), found)


def _context(name: str, entry: object, path: pathlib.Path) -> Context:
    known = fields_dict(Context)
    if not isinstance(entry, dict) or set(entry) - set(known):
        raise ConfigError(f"contexts.{name}", "(not shown)", f"only {', '.join(known)}", str(path))
    for key, value in entry.items():
        if type(value) is not type(known[key].default):
            raise ConfigError(
                f"contexts.{name}.{key}", "(not shown)", type(known[key].default).__name__, str(path)
            )
    return Context(**entry)


def write_contexts(contexts: Contexts, path: pathlib.Path | None = None) -> None:
    """Replace the file in a single step; only its owner may read it. Raises OSError, with the file
    unchanged."""
    path = path or contexts_path()
    yaml = _yaml(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = {
        name: {key: value for key, value in context.options().items() if value}
        for name, context in contexts.contexts.items()
    }
    text = yaml.safe_dump({"current": contexts.current, "contexts": entries}, sort_keys=False)
    replace_file(path, text.encode(), mode=OWNER_ONLY, suffix=f".{os.getpid()}.new")


def context_called(name: str, source: str = "") -> Context:
    """The context of that name. Raises ConfigError, which names `source`, when the file has none."""
    there = read_contexts().contexts
    if name not in there:
        listed = ", ".join(there) or "none"
        raise ConfigError("context", name, f"a context that `rmq context list` shows: {listed}", source)
    return there[name]
