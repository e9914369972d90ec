"""`rmq context`: named clusters, so that `-n` need not be typed, and the file that keeps them.

It lies in the user's configuration folder, and nobody else may read it:

    current: prod
    contexts:
      prod: {namesrv: "10.0.0.1:9876;10.0.0.2:9876", access_key: ops, secret_key: ..., tls: true}
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from attrs import asdict, evolve, field, fields_dict, frozen

from rmq.cli.output import Format, echo, fail, output_option, show
from rmq.cli.values import read_secret
from rmq.errors import ConfigError, RmqError
from rmq.files import OWNER_ONLY, replace_file

if TYPE_CHECKING:
    from rmq.remoting.tls import TlsConfig

T = TypeVar("T")

ENTRIES: Final = ("current", "contexts")


@frozen(kw_only=True)
class Context:
    """How to reach a cluster; what is empty is not set. The secret stands in no repr."""

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
        from rmq.remoting.tls import TlsConfig

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
    """Where the file lies: ~/.config/rmq/contexts.yaml, or the platform's counterpart of it."""
    return pathlib.Path(click.get_app_dir("rmq")) / "contexts.yaml"


def read_contexts(path: pathlib.Path | None = None) -> Contexts:
    """What the file holds; nothing when there is none. Raises ConfigError with the file's name."""
    path = path or contexts_path()
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("contexts", str(path), f"a readable file ({error})") from None
    return _parsed(text, path)


def _parsed(text: str, path: pathlib.Path) -> Contexts:
    import yaml

    try:
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        # The error's own text quotes the line, which may hold a secret.
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
    """Replaces the file in one step; only its owner may read it. Raises OSError, and then it is as before."""
    import yaml

    path = path or contexts_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = {
        name: {key: value for key, value in context.options().items() if value}
        for name, context in contexts.contexts.items()
    }
    text = yaml.safe_dump({"current": contexts.current, "contexts": entries}, sort_keys=False)
    replace_file(path, text.encode(), mode=OWNER_ONLY, suffix=f".{os.getpid()}.new")


def chosen(name: str | None) -> tuple[str, Context | None]:
    """The context called `name`, or the current one: its name and itself; ("", None) when there is none.
    Raises ConfigError for a name that the file does not have."""
    contexts = read_contexts()
    wanted = name or contexts.current
    if not wanted:
        return "", None
    if wanted not in contexts.contexts:
        there = ", ".join(contexts.contexts) or "none"
        raise ConfigError("context", wanted, f"one of those that `rmq context list` shows: {there}")
    return wanted, contexts.contexts[wanted]


def complete_context(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of contexts, for the shell."""
    try:
        names = read_contexts().contexts
    except RmqError:
        return []
    return [name for name in names if name.startswith(incomplete)]


# --- the commands ---


def tls_options(command: Callable[..., T]) -> Callable[..., T]:
    """Adds what says how to speak TLS, under the names of the fields of `Context`."""
    for option in (
        click.option("--tls-insecure", is_flag=True, help="Accept any certificate. For tests only."),
        click.option("--tls-key", metavar="FILE", help="PEM file of its key."),
        click.option("--tls-cert", metavar="FILE", help="PEM file of an own certificate, for mutual TLS."),
        click.option(
            "--tls-ca", metavar="FILE", help="PEM file of authorities to trust, instead of the system's."
        ),
        click.option("--tls", is_flag=True, help="Speak TLS."),
    ):
        command = option(command)
    return command


@click.group()
def context() -> None:
    """Named clusters: their name servers, account and TLS settings.

    They lie in contexts.yaml in your configuration folder, readable only by you. Secrets are never shown.
    """


@context.command()
@click.argument("name")
@click.option("-n", "--namesrvAddr", "namesrv", required=True, metavar="HOST:PORT;...", help="Name servers.")
@click.option("--access-key", default="", metavar="NAME", help="Account; the secret is asked for.")
@click.option(
    "--secret-key-file",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="File to take the account's secret from, instead of asking.",
)
@tls_options
@click.option("--replace", is_flag=True, help="Replace the context of that name.")
def add(
    name: str,
    namesrv: str,
    access_key: str,
    secret_key_file: pathlib.Path | None,
    replace: bool,
    **tls: str | bool | None,
) -> None:
    """Add a cluster under NAME. The first one becomes the current one."""
    contexts = _read()
    if name in contexts.contexts and not replace:
        fail(ConfigError("context", name, "a new name, or --replace"))
    secret = ""
    if access_key:
        secret = (
            read_secret(secret_key_file)
            if secret_key_file
            else click.prompt("Secret key", hide_input=True, err=True)
        )
    files = {
        key: str(pathlib.Path(value).absolute())
        for key, value in tls.items()
        if isinstance(value, str) and value
    }
    flags = {key: value for key, value in tls.items() if isinstance(value, bool)}
    made = Context(namesrv=namesrv, access_key=access_key, secret_key=secret, **files, **flags)  # type: ignore[arg-type]
    _write(Contexts(contexts.current or name, {**contexts.contexts, name: made}))
    echo(f"context {name} {'replaced' if name in contexts.contexts else 'added'} in {contexts_path()}")


@context.command()
@click.argument("name", shell_complete=complete_context)
def use(name: str) -> None:
    """Make NAME the cluster that commands without -n and --context talk to."""
    contexts = _read()
    _known(contexts, name)
    _write(evolve(contexts, current=name))
    echo(f"context {name} is current")


@context.command("list")
@output_option
def list_contexts(output: Format) -> None:
    """List the clusters; the current one is marked."""
    contexts = _read()
    rows = [
        {
            "current": "*" if name == contexts.current else "",
            "name": name,
            "namesrv": one.namesrv,
            "access_key": one.access_key,
            "tls": one.tls_config() is not None,
        }
        for name, one in contexts.contexts.items()
    ]
    show(rows, output)


@context.command("show")
@click.argument("name", required=False, shell_complete=complete_context)
@output_option
def show_context(name: str | None, output: Format) -> None:
    """Show a cluster, the current one without NAME."""
    contexts = _read()
    wanted = name or contexts.current
    if not wanted:
        fail(
            ConfigError(
                "context", "", "a NAME, since no context is current; `rmq context use NAME` makes it so"
            )
        )
    _known(contexts, wanted)
    show({"name": wanted, **contexts.contexts[wanted].shown()}, output)


@context.command()
@click.argument("name", shell_complete=complete_context)
def remove(name: str) -> None:
    """Forget the cluster NAME."""
    contexts = _read()
    _known(contexts, name)
    rest = {key: value for key, value in contexts.contexts.items() if key != name}
    _write(Contexts("" if name == contexts.current else contexts.current, rest))
    echo(f"context {name} removed")


def _read() -> Contexts:
    try:
        return read_contexts()
    except RmqError as error:
        fail(error)


def _write(contexts: Contexts) -> None:
    try:
        write_contexts(contexts)
    except OSError as error:
        fail(error)


def _known(contexts: Contexts, name: str) -> None:
    if name not in contexts.contexts:
        there = ", ".join(contexts.contexts) or "none"
        fail(ConfigError("context", name, f"one that there is ({there}); `rmq context add` makes one"))
