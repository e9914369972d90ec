"""Campaigns of the simulations: sums add up, and what becomes of a seed is told, and how to see it again."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.sim.__main__ import PARTS, STOPPED, main
from tests.sim.campaign import Campaign, Kind, rows, seeds_in_turn
from tests.sim.controllers import Simulation
from tests.sim.planted import Planted, Quick


def test_sums_add_up_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    parts: dict[Kind, int] = {Quick: 2, Planted: 1}
    assert main(["--seeds", "0:3", "--jobs", "2"], parts) == 0
    text = capsys.readouterr().out
    assert rows(text) == {
        "quick": ["3", "1.5", "6", "3", "0"],
        "planted": ["3", "1.5", "6", "3", "0"],
        "all": ["6", "3.0", "12", "6", "0"],
    }
    assert "12 fault" in text


def test_what_fails_is_told_with_how_to_run_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A violation, a process that dies, one without end: each is told, and the other seeds are run."""
    given = ["--kind", "planted", "--jobs", "2", "--limit", "2"]
    assert main([*given, "--seeds", "0:8"], {Planted: 1, Quick: 1}) == 1
    text = capsys.readouterr().out
    assert rows(text) == {"planted": ["8", "3.0", "12", "19", "3"]}  # of two there are no sums
    for seed, what in ((3, "AssertionError: two masters"), (4, "exit code -9"), (5, "no end after 2 s")):
        assert f"planted, seed {seed}: " in text
        again = f"python -m tests.sim --kind planted --seeds {seed}:{seed + 1}"
        assert f"again: {again}" in text
        assert main([*again.split()[3:], "--limit", "2"], {Planted: 1}) == 1
        assert what in capsys.readouterr().out


def test_a_real_seed_gives_what_it_gives_in_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "controllers", "--seeds", "3:4", "--jobs", "1"]) == 0
    here = Simulation.of(3)
    here.run()
    faults, seconds = sum(here.counts.values()), here.now
    expected = ["1", f"{seconds / 3600:.1f}", str(faults), str(here.accepted), "0"]
    assert rows(capsys.readouterr().out) == {"controllers": expected}


def test_kinds_take_turns_and_who_is_done_leaves_them_to_the_others() -> None:
    turns = [(kind.kind, seed) for kind, seed in seeds_in_turn({Quick: 2, Planted: 1}, 0, 3)]
    assert turns == [
        *(("quick", 0), ("quick", 1), ("planted", 0)),
        *(("quick", 2), ("planted", 1)),
        ("planted", 2),
    ]
    kinds = {"controllers", "sets", "old", "wiped", "brokers", "folders", "topics"}
    assert {kind.kind for kind in PARTS} == kinds


def test_no_seed_begins_when_the_time_is_over() -> None:
    campaign = Campaign({Quick: 1}, 0, 1000, hours=0.0, jobs=2)
    assert campaign.run()
    assert campaign.total.seeds < 1000


class Terminal(io.StringIO):
    """A terminal, as far as a bar goes."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("out", "shown"), [(io.StringIO, ""), (Terminal, "[####")])
def test_a_terminal_gets_a_bar(out: Callable[[], io.StringIO], shown: str) -> None:
    progress = out()
    assert Campaign({Quick: 1}, 0, 9, hours=1.0, jobs=1, progress=progress).run()
    assert shown in progress.getvalue()
    assert ("9 seeds, 4.5 cluster-hours, 0 failed" in progress.getvalue()) == bool(shown)


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.campaign.LINE_SECONDS", 0.0)
    progress = io.StringIO()
    assert Campaign({Quick: 1}, 0, 4, hours=1.0, jobs=1, progress=progress).run()
    assert progress.getvalue().splitlines()[-1] == "0 min: 4 seeds, 2.0 cluster-hours, 0 failed"


def test_ctrl_c_ends_it_with_the_sums_so_far() -> None:
    """The signal goes to all processes, as from a terminal."""
    code = (
        # Who runs the tests may ignore it.
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from tests.sim.__main__ import main; from tests.sim.planted import Planted;"
        "sys.exit(main(['--seeds', '3:6', '--jobs', '2'], {Planted: 1}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        told = ""
        while "seed 3" not in told or "seed 4" not in told:
            told += process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        text, errors = process.communicate(timeout=60)
    assert rows(text) == {"planted": ["2", "0.5", "2", "3", "2"]}
    assert "Traceback" not in errors
    assert process.returncode == 1  # STOPPED where none failed
    assert STOPPED not in (0, 1)
