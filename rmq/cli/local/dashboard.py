"""`rmq dashboard`: pages and an HTTP API to see a cluster and to work on it; needs the extra `dashboard`."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rmq.cli.output import echo, fail, refuse
from rmq.cli.target import Target, run_service, target_options
from rmq.errors import ConfigError, PortInUse

if TYPE_CHECKING:
    import trio

    from rmq.dashboard.access.oidc_settings import OidcSettings
    from rmq.dashboard.config import DashboardConfig

MISSING = "the dashboard needs more packages: pip install 'rmq[dashboard]'"
FILE = click.Path(dir_okay=False, path_type=pathlib.Path)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8088, show_default=True)
@click.option(
    "--allowed-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="A host name of the dashboard in browsers.",
)
@click.option(
    "--cluster", "clusters", multiple=True, metavar="CONTEXT", help="A further cluster, by context."
)
@click.option("--roles", "roles_file", type=FILE, help="YAML file of users and tokens with their roles.")
@click.option("--oidc", "oidc_file", type=FILE, help="YAML file of a provider of logins, by OpenID Connect.")
@click.option("--no-account-login", is_flag=True, help="Do not let accounts of the cluster log in.")
@click.option("--require-login", is_flag=True, help="Show nothing without a login.")
@click.option("--login-link", is_flag=True, help="Print a link that logs in as admin; on loopback only.")
@click.option("--tls-certificate", "certificate", type=FILE, help="Serve HTTPS: the certificate's file.")
@click.option("--tls-certificate-key", "certificate_key", type=FILE, help="The certificate's key.")
@click.option("--behind-tls", is_flag=True, help="A proxy serves HTTPS: mark cookies as secure.")
@click.option("--audit-log", "audit_file", type=FILE, help="File for a line about each change.")
@click.option("--history", type=FILE, help="SQLite file for the figures of charts. [default: in memory]")
@click.option("--history-days", type=click.IntRange(1, 3650), default=14, show_default=True)
@click.option("--sample-seconds", type=click.FloatRange(1), default=30.0, show_default=True)
@click.option("--new-password", is_flag=True, help="Ask for a password, print its line for --roles, and end.")
@click.option("--new-token", is_flag=True, help="Print a token and its line for --roles, and end.")
@target_options
def dashboard(
    target: Target,
    host: str,
    port: int,
    allowed: tuple[str, ...],
    clusters: tuple[str, ...],
    roles_file: pathlib.Path | None,
    oidc_file: pathlib.Path | None,
    no_account_login: bool,
    require_login: bool,
    login_link: bool,
    certificate: pathlib.Path | None,
    certificate_key: pathlib.Path | None,
    behind_tls: bool,
    audit_file: pathlib.Path | None,
    history: pathlib.Path | None,
    history_days: int,
    sample_seconds: float,
    new_password: bool,
    new_token: bool,
) -> None:
    """Serve pages and an HTTP API to see a cluster and to work on it. Ctrl-C ends it.

    Without a login it is read-only, and only on loopback. Users log in with an account of the cluster, or
    with a name of --roles; see docs/dashboard.md.
    """
    check_installed()
    if new_password or new_token:
        _print_line(new_token)
        return
    from rmq.dashboard.config import DashboardConfig

    try:
        config = DashboardConfig(
            clusters=_clusters(target, clusters),
            host=host,
            port=port,
            allowed_hosts=allowed,
            roles_file=roles_file,
            oidc=_oidc(oidc_file),
            account_login=not no_account_login,
            anonymous_read=not require_login,
            link_token=secrets.token_urlsafe(24) if login_link else "",
            tls_cert=certificate,
            tls_key=certificate_key,
            secure_cookies=behind_tls,
            audit_file=audit_file,
            history=history,
            history_days=history_days,
            sample_seconds=sample_seconds,
        )
    except ConfigError as error:
        fail(error)
    run_service(_serve, config)


def check_installed() -> None:
    """End the command with an installation hint, unless the extra is installed."""
    if not is_installed():
        refuse(MISSING)


def is_installed() -> bool:
    """True if the extra `dashboard` is installed."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("starlette", "hypercorn", "jinja2"))


def _oidc(path: pathlib.Path | None) -> OidcSettings | None:
    if path is None:
        return None
    from importlib.util import find_spec

    from rmq.dashboard.access.oidc_settings import read_oidc

    if any(find_spec(name) is None for name in ("joserfc", "httpx2")):
        refuse("--oidc needs more packages: pip install 'rmq[dashboard-oidc]'")
    return read_oidc(path)


def _clusters(target: Target, contexts: Sequence[str]) -> dict[str, Target]:
    """The clusters by name: the one of -n or --context first. Raises ConfigError."""
    import os

    from rmq.cli.target import resolve
    from rmq.client.settings.contexts import Context

    name = target.origin.removeprefix("context ") if target.origin.startswith("context ") else "default"
    found = {name: target}
    for one in contexts:
        try:
            found[one] = resolve(Context(), one, os.environ)
        except ConfigError as error:
            fail(error)
    return found


async def _serve(config: DashboardConfig) -> None:
    import trio

    from rmq.dashboard.serve import serve

    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve, config)
        echo(banner(config, address))


async def serve_beside(nursery: trio.Nursery, namesrv: str, port: int, folder: pathlib.Path) -> str:
    """Serve the dashboard of `rmq dev` in its nursery; returns the link that logs in. When another process
    has the port, name server and broker run without the dashboard."""
    from rmq.dashboard.config import DashboardConfig
    from rmq.dashboard.serve import serve

    config = DashboardConfig(
        clusters={"dev": Target(namesrv)},
        port=port,
        account_login=False,
        link_token=secrets.token_urlsafe(24),
        history=folder / "dashboard.sqlite",
    )
    try:
        address = await nursery.start(serve, config)
    except PortInUse:
        return f"not served: port {port} is in use; see --dashboard-port"
    return f"{address}/login?key={config.link_token}"


def banner(config: DashboardConfig, address: str) -> str:
    """The text to print once the dashboard listens."""
    lines = [f"dashboard  {address}  (Ctrl-C ends it)"]
    if config.link_token:
        lines.append(f"to change  {address}/login?key={config.link_token}")
    return "\n".join(lines)


def _print_line(is_token: bool) -> None:
    from rmq.dashboard.access.roles import password_hash, token_hash

    if is_token:
        token = secrets.token_urlsafe(32)
        line = f"- {{name: NAME, role: reader, sha256: {token_hash(token)}}}"
        echo(f"token:  {token}\nin the roles file:  {line}")
        return
    password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    echo(f"in the roles file:  - {{name: NAME, role: reader, password: {password_hash(password)}}}")
