"""`rmq demo` as a person runs it: another process, its output and its exit status."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests.system.running import ROOT, running_dev

STEPS = ("created", "paid", "packed", "shipped")


def rmq(
    *arguments: str | pathlib.Path, folder: pathlib.Path, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`, on the code of this checkout, on a wide terminal; the demo without Spark,
    which tests/spark has."""
    more = ["--no-spark"] if arguments[0] == "demo" else []
    command = [sys.executable, "-m", "rmq", *map(str, arguments), *more]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "160", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)


def cells(output: str, name: str) -> list[str]:
    """The cells of the table row that begins with `name`."""
    (line,) = [line for line in output.splitlines() if re.match(rf"\W*{re.escape(name)} ", line)]
    return [cell.strip() for cell in line.split("│")[2:-1]]


@pytest.fixture
def orders(tmp_path: pathlib.Path) -> pathlib.Path:
    """240 rows: four steps of 60 orders; those of one order follow each other closely."""
    path = tmp_path / "orders.csv"
    rows = [f"{step},o-{number},{number * 3}" for number in range(60) for step in STEPS]
    path.write_text("step,order,amount\n" + "\n".join(rows) + "\n")
    return path


def test_a_file_goes_through_and_the_figures_add_up(orders: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = rmq("demo", orders, "--key", "order", "--data-dir", tmp_path / "data", folder=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"rmq demo: 240 rows of {orders} to topic Orders, 8 queues" in done.stdout
    for flow in ("published", "consumed"):
        count, seconds, rate, *percentiles = cells(done.stdout, flow)
        assert count == "240"
        assert float(seconds) > 0
        assert float(rate.replace(",", "")) == pytest.approx(240 / float(seconds), rel=0.25)
        numbers = [float(text) for text in percentiles]
        assert numbers == sorted(numbers)
        assert numbers[0] > 0
    shares = [cells(done.stdout, f"consumer-{number}") for number in (1, 2)]
    assert sum(int(share[0]) for share in shares) == 240
    assert sum(int(share[2]) for share in shares) == 60  # no order is split between the two
    queues = [set(share[3].split()) for share in shares]
    assert all(queues)
    assert not queues[0] & queues[1]
    assert "Ordering: kept: 60 of 60 values of order came in the order they were published." in done.stdout
    assert f"Files: {tmp_path / 'data' / 'store'}" in done.stdout
    assert list((tmp_path / "data" / "store" / "commitlog").iterdir())


def test_a_second_run_in_the_same_folder_counts_only_its_own(
    orders: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    arguments = ("demo", orders, "--key", "order", "--data-dir", tmp_path / "data")
    rmq(*arguments, folder=tmp_path)

    done = rmq(*arguments, folder=tmp_path)

    assert done.returncode == 0, done.stderr
    assert cells(done.stdout, "consumed")[0] == "240"
    assert "Ordering: kept: 60 of 60" in done.stdout


def test_json_lines_with_another_topic_and_number_of_queues(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "visits.jsonl"
    path.write_text("".join(json.dumps({"user": n % 7, "page": f"/p/{n} ü"}) + "\n" for n in range(70)))

    done = rmq(
        "demo", path, "--key", "user", "--topic", "Visits", "--queues", "4", "--no-keep", folder=tmp_path
    )

    assert done.returncode == 0, done.stderr
    assert "to topic Visits, 4 queues" in done.stdout
    assert "Ordering: kept: 7 of 7 values of user came" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Files: ")]
    assert not pathlib.Path(line.removeprefix("Files: ").split()[0]).exists()


@pytest.mark.parametrize(
    ("name", "content", "arguments", "said"),
    [
        ("absent.csv", None, (), "absent.csv: cannot be read: No such file or directory"),
        ("empty.csv", "", (), "empty.csv: the file is empty"),
        ("header.csv", "a,b\n", (), "header.csv: no rows"),
        ("a.csv", "a,b\n1,2\n", ("--key", "c"), "a.csv: line 2: no column 'c'; columns there: a, b"),
        ("a.jsonl", '{"a": 1}\n{oops\n', ("--key", "a"), "a.jsonl: line 2: not JSON"),
        ("a.csv", "a,b\n1,2\n", ("--topic", "../x"), "'../x'"),
        ("a.csv", "a,b\n1,2\n", ("--queues", "0"), "--queues"),
    ],
)
def test_bad_input_ends_with_one_line_and_status_2(
    tmp_path: pathlib.Path, name: str, content: str | None, arguments: tuple[str, ...], said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)

    done = rmq("demo", name, *arguments, "--data-dir", "data", folder=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]
    assert not (tmp_path / "data").exists()


def test_a_folder_in_use_is_said_so_with_status_3(orders: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with running_dev(tmp_path) as (system, _):
        done = rmq("demo", orders, "--data-dir", tmp_path / "rmq-data", folder=tmp_path)
        taken = rmq("dev", "--namesrv-port", port(system[0]), "--data-dir", "other", folder=tmp_path)

    assert done.returncode == 3
    assert "is locked by another broker" in done.stderr.splitlines()[-1]
    assert taken.returncode == 3
    assert f"cannot listen on {system[0]}: the port is in use" in taken.stderr.splitlines()[-1]


def port(address: str) -> str:
    return address.rpartition(":")[2]


def test_dev_runs_until_ctrl_c_and_ends_cleanly(tmp_path: pathlib.Path) -> None:
    with running_dev(tmp_path) as (addresses, process):
        assert len(addresses) == 2
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)

    assert process.returncode == 0
    assert output.splitlines()[-1] == f"stopped; the messages stay in {tmp_path / 'rmq-data' / 'store'}"
    assert not (tmp_path / "rmq-data" / "store" / "abort").exists()


def test_dev_refuses_a_wrong_setting_before_anything_starts(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        wrong = "--set", "flushDiskType=SOMETIMES"
        done = rmq("dev", "--namesrv-port", port, *wrong, "--data-dir", "data", folder=tmp_path)

    assert done.returncode == 2
    assert "flushDiskType" in done.stderr
    assert not (tmp_path / "data").exists()
