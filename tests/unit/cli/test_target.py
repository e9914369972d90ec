"""The cluster and the account of a command: options, contexts and environment; and the end of a command."""

from __future__ import annotations

import os
import pathlib
import signal
import stat
import subprocess
import sys
from collections.abc import Callable

import pytest
import trio.testing
import yaml
from attrs import evolve

from rmq.cli.output import cell, explained, plain, printable
from rmq.cli.target import report_done, resolve, run, run_service
from rmq.client.settings.contexts import Context, Contexts, read_contexts, write_contexts
from rmq.errors import ConfigError, NoRoute
from tests.system.shell import ROOT, Shell

PROD = Context(namesrv="10.0.0.1:9876", access_key="ops", secret_key="hush-hush", tls=True)


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_contexts(Contexts("prod", {"prod": PROD, "dev": Context(namesrv="127.0.0.1:1")}))
    return tmp_path / "rmq" / "contexts.yaml"


@pytest.mark.parametrize(
    ("option", "context", "environment", "expected"),
    [
        ("a:1;b:2", "dev", {"RMQ_NAMESRV_ADDR": "e:5"}, ("a:1;b:2", "-n")),
        ("", "dev", {"RMQ_NAMESRV_ADDR": "e:5"}, ("127.0.0.1:1", "context dev")),
        ("", None, {"RMQ_NAMESRV_ADDR": "e:5", "RMQ_CONTEXT": "dev"}, ("e:5", "RMQ_NAMESRV_ADDR")),
        ("", None, {"RMQ_CONTEXT": "dev", "NAMESRV_ADDR": "f:6"}, ("127.0.0.1:1", "context dev")),
        ("", "prod", {"RMQ_CONTEXT": "dev"}, ("tls://10.0.0.1:9876", "context prod")),
        ("", None, {"NAMESRV_ADDR": "f:6"}, ("f:6", "NAMESRV_ADDR")),
        ("", None, {}, ("tls://10.0.0.1:9876", "context prod")),
        ("a:1", None, {}, ("a:1", "-n")),
    ],
)
@pytest.mark.usefixtures("file")
def test_options_go_before_the_environment_and_that_before_the_current_context(
    option: str, context: str | None, environment: dict[str, str], expected: tuple[str, str]
) -> None:
    target = resolve(Context(namesrv=option), context, environment)
    assert (target.namesrv, target.origin) == expected


def test_without_contexts_the_environment_counts_and_then_the_default(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    both = {"RMQ_NAMESRV_ADDR": "e:5", "NAMESRV_ADDR": "f:6"}

    assert resolve(Context(), None, both).namesrv == "e:5"
    assert resolve(Context(), None, {"NAMESRV_ADDR": "f:6"}).namesrv == "f:6"
    assert resolve(Context(), None, {}).namesrv == "127.0.0.1:9876"


@pytest.mark.usefixtures("file")
def test_an_address_on_the_command_line_does_not_get_the_current_contexts_account() -> None:
    assert resolve(Context(namesrv="other:1"), None, {}).credentials is None
    assert resolve(Context(), None, {"RMQ_NAMESRV_ADDR": "other:1"}).credentials is None
    account = resolve(Context(), None, {}).credentials
    assert account is not None
    assert (account.access_key, account.secret_key) == ("ops", "hush-hush")
    with pytest.raises(ConfigError, match="a secret for the access key"):  # not the secret of ops
        resolve(Context(access_key="me"), None, {})


@pytest.mark.usefixtures("file")
def test_an_account_of_the_environment_needs_its_secret() -> None:
    given = Context(namesrv="other:1")
    account = resolve(given, None, {"RMQ_ACCESS_KEY": "me", "RMQ_SECRET_KEY": "mine"}).credentials
    assert account is not None
    assert (account.access_key, account.secret_key) == ("me", "mine")
    with pytest.raises(ConfigError, match="a secret for the access key"):
        resolve(given, None, {"RMQ_ACCESS_KEY": "me"})


def test_the_file_is_its_owners_alone_and_is_read_back(file: pathlib.Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_contexts().contexts["prod"] == PROD
    assert [path.name for path in file.parent.iterdir()] == ["contexts.yaml"]


def test_a_damaged_file_is_named_and_no_secret_of_it_is_shown(file: pathlib.Path) -> None:
    for text in ("contexts: {prod: {secret_key: hush-hush, x: 1}}", "contexts: [hush-hush", "a: hush-hush"):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_contexts()
        assert "hush" not in str(caught.value)
        assert "contexts" in str(caught.value)


def test_secrets_stand_in_no_repr() -> None:
    assert "hush" not in repr(PROD)
    assert "hush" not in repr(resolve(evolve(PROD, namesrv="a:1"), None, {}))


def test_contexts_are_added_used_shown_and_removed(shell: Shell, tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush-hush\n")
    shell.ok(
        "context",
        "add",
        "prod",
        "-n",
        "10.0.0.1:9876",
        "--access-key",
        "ops",
        "--secret-key-file",
        str(secret),
    )
    shell.ok("context", "add", "typed", "-n", "b:1", "--access-key", "me", given="hush-typed\n")
    shell.ok("context", "add", "dev", "-n", "127.0.0.1:9876")

    assert shell.run("context", "add", "dev", "-n", "c:1").exit_code == 2
    assert [row["current"] for row in shell.rows("context", "list")] == ["*", "", ""]
    shell.ok("context", "use", "dev")
    told = shell.run("context", "use", "dev", RMQ_NAMESRV_ADDR="e:5").stderr
    assert "RMQ_NAMESRV_ADDR goes before it" in told
    assert shell.rows("context", "show") == {"name": "dev", "namesrv": "127.0.0.1:9876"}
    shown = shell.ok("context", "show", "prod") + shell.ok("context", "list", "-o", "yaml")
    assert "hush" not in shown
    kept = yaml.safe_load((tmp_path / ".config" / "rmq" / "contexts.yaml").read_text())
    assert kept["contexts"]["prod"]["secret_key"] == "hush-hush"
    assert kept["contexts"]["typed"]["secret_key"] == "hush-typed"
    shell.ok("context", "remove", "dev")
    assert shell.run("context", "show").exit_code == 2
    unknown = shell.run("context", "use", "nobody")
    assert (unknown.exit_code, "prod, typed" in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topic", "create"), "rmq topic create: Missing argument 'TOPIC'"),
        (("topic", "nix"), "rmq topic: No such command 'nix'"),
        (("pub", "T", "x", "--delay", "soon"), "'soon' is no duration"),
        (("pub", "T", "x", "--delay", "19"), "a level is 1 to 18"),
        (("pub", "T", "x", "--property", "novalue"), "'novalue' is not NAME=VALUE"),
        (("pub", "bad topic", "x"), "topic 'bad topic' is not a valid name"),
        (("sub", "T"), "Missing option '-g' / '--group'"),
        (("sub", "T", "-g", "g", "--filter", "a", "--sql", "b"), "--filter or --sql, not both"),
        (("tail", "T", "--from", "yesterday"), "'yesterday' is no place in time"),
        (("tail", "T", "--grep", "("), "is no regular expression"),
        (("broker", "clean"), "choose what to clean"),
        (("topic", "list", "--context", "nobody"), "context = 'nobody'"),
        (("topic", "list", "-n", "h:1", "--access-key", "me"), "a secret for the access key"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(shell: Shell, arguments: tuple[str, ...], said: str) -> None:
    done = shell.run(*arguments, "-n", "127.0.0.1:1") if arguments[0] == "pub" else shell.run(*arguments)

    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert said in line
    assert line.startswith("rmq")


def test_nobody_answers_is_one_line_and_status_1(shell: Shell) -> None:
    done = shell.run("topic", "list", "-n", "127.0.0.1:1")

    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("rmq: no name server could be asked: cannot connect to 127.0.0.1:1")
    assert "check that the name servers run" in line


def test_an_error_says_what_and_what_to_do() -> None:
    assert explained(NoRoute("T", ["a:1"])) == (
        "rmq: no route for topic 'T' at a:1; create the topic 'T', or check that a broker is registered at"
        " these name servers"
    )


def test_what_others_wrote_does_not_steer_the_terminal() -> None:
    assert printable("a\x1b[31mb\rc\u200b") == "a\\x1b[31mb\\rc\\u200b"
    assert cell({"k": "\x1b"}) == "k=\\x1b"
    assert plain({"b": b"\xff", "s": frozenset({"y", "x"})}) == {"b": "\\xff", "s": ["x", "y"]}


@pytest.mark.parametrize("name", ["17", "TOPIC_NOT_EXIST", "TopicNotExist"])
def test_errors_explains_a_code_by_number_and_by_name(shell: Shell, name: str) -> None:
    row = shell.rows("errors", name)
    assert (row["code"], row["error"], row["retriable"]) == (17, "TopicNotExist", True)
    assert "rmq topic create" in row["what_to_do"]


def test_errors_lists_every_code_with_a_meaning(shell: Shell) -> None:
    rows = shell.rows("errors")
    assert {"ConnectFailed", "StoreLocked"} <= {row["name"] for row in rows}
    assert all(row["meaning"] for row in rows)
    assert all(row["what_to_do"] for row in rows if row["code"] not in (0, 200, 201, 202, 203))
    assert shell.run("errors", "NoSuchThing").exit_code == 1


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: Shell, name: str) -> None:
    assert "_RMQ_COMPLETE" in shell.ok("completion", name)


def test_the_tab_key_knows_contexts_and_stays_silent_without_a_cluster(shell: Shell) -> None:
    shell.ok("context", "add", "prod", "-n", "127.0.0.1:1")

    def complete(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from rmq.__main__ import main; main()"],
            env={
                **shell.environment,
                "PYTHONPATH": str(ROOT),
                "_RMQ_COMPLETE": "bash_complete",
                "COMP_WORDS": " ".join(["rmq", *words]),
                "COMP_CWORD": str(len(words)),
            },
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.stderr == ""
        return done.stdout

    assert complete("top") == "plain,topic\n"
    assert complete("context", "use", "p") == "plain,prod\n"
    assert complete("topic", "show", "O") == "\n"


def test_what_was_done_nowhere_was_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        report_done("topic Orders made", [])
    assert ended.value.code == 1
    assert "no broker is registered" in capsys.readouterr().err
    report_done("topic Orders made", ["127.0.0.1:1"])
    assert capsys.readouterr().out == "topic Orders made at 127.0.0.1:1\n"


@pytest.mark.parametrize(("runner", "status"), [(run, 130), (run_service, 0)])
def test_a_signal_ends_a_command_with_130_and_a_service_with_0(
    runner: Callable[..., None], status: int
) -> None:
    async def work() -> None:
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()

    with pytest.raises(SystemExit) as ended:
        runner(work)
    assert ended.value.code == status
