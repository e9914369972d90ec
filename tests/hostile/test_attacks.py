"""Attacks that worked once, on real brokers, open and with accounts, beside an honest client.

`nox -s hostile` runs them all (RMQ_HOSTILE_WINDOWS windows of RMQ_HOSTILE_SECONDS each: 5 of 1.0) and prints
the table of docs/design/security.md; RMQ_HOSTILE_ONLY names some (a;b). A few run always, for a moment.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import threading

import pytest

from . import places
from .attacks import ATTACKS, Attacker, carry_out
from .campaign import GROWTH_MIB, HEAD, HONEST, Honest, Row, compat, secure, under
from .newcomers import Newcomer

WINDOWS = int(os.environ.get("RMQ_HOSTILE_WINDOWS", "5"))
SECONDS = float(os.environ.get("RMQ_HOSTILE_SECONDS", "1"))
ONLY = os.environ.get("RMQ_HOSTILE_ONLY", "")
TARGETS = {"compat": compat, "secure": secure}
assert places.SOURCES, "its attacks are known by being loaded"
FORGED_LINE = "2026-01-01T00:00:00.000Z"


@pytest.mark.campaign
@pytest.mark.parametrize("profile", TARGETS)
def test_no_attack_costs_others_much(tmp_path: pathlib.Path, profile: str) -> None:
    rows: list[Row] = []
    with TARGETS[profile](tmp_path) as target:
        for name in ATTACKS:
            if name != HONEST and (not ONLY or name in ONLY.split(";")):
                rows.append(under(target, name, windows=WINDOWS, seconds=SECONDS))
                print(rows[-1].text, flush=True)
        said = target.log.read_text("utf-8", "replace")
    for folder in tmp_path.iterdir():  # 30 GB, which the disk of the next run may not have
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\nprofile={profile}, {WINDOWS} windows of {SECONDS:g} s\n{HEAD}")
    print("\n".join(row.text for row in rows))
    wrong = [text for row in rows for text in row.wrong]
    wrong += [f"forged: {line}" for line in said.splitlines() if line.startswith(FORGED_LINE)]
    assert not wrong, "\n".join(wrong)


SOME = (
    "1 flags of records",
    "2 NUL in properties",
    "4 groups that appear once",
    "5 records inside bodies",
    "10 filters of 72 kB, and of 8 kB",
    "13 what is remembered of peers",
    "16 names with line breaks",
    "20 silence at the port for slaves",
    "20 silence at the port for pages",
    "23 headers that cannot be read",
)


def test_a_broker_outlives_some_attacks_and_serves_others(tmp_path: pathlib.Path) -> None:
    """Together, for a moment; what others pay for it is measured by the campaign, which takes its time. A
    machine that is busy elsewhere is no reason to refuse sends here, or to give a newcomer up."""
    with compat(tmp_path) as target:
        honest, before = Honest(target), target.resident_mib()
        honest.connect()
        where = target.address, target.ha_address, 0.8, target.pages_address
        attackers = [Attacker(*where, patience=60.0) for _ in SOME]
        threads = [
            threading.Thread(target=carry_out, args=pair) for pair in zip(SOME, attackers, strict=True)
        ]
        for thread in threads:
            thread.start()
        honest.window(0.5)
        problems = Newcomer(target, 60.0, tries=5).problems()
        for thread in threads:
            thread.join()
        assert honest.refused == []
        assert problems == []
        assert honest.stored > 0
        assert target.resident_mib() - before < GROWTH_MIB
        assert all(attacker.sent and not attacker.obtained for attacker in attackers)
        target.end(signal.SIGKILL)
        target.start()
        honest.connect()
        assert honest.lost() == 0
        assert not [line for line in target.log.read_text().splitlines() if line.startswith(FORGED_LINE)]
