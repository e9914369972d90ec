"""What a server frees is the system's again, whatever it has held before."""

from __future__ import annotations

import subprocess
import sys

import pytest

HELD = """
import sys
from rmq.process import return_large_blocks

def mib():
    text = open("/proc/self/status").read()
    return int(text.split("RssAnon:")[1].split()[0]) / 1024

if "return" in sys.argv:
    return_large_blocks()
once = b"x" * (8 << 20)
del once
before = mib()
answers, kept = [], []
for _ in range(20):
    answers.append(b"x" * (2 << 20))
    kept.append(b"x" * 5000)
del answers
print(mib() - before)
"""


def held_mib(*words: str) -> float:
    run = subprocess.run([sys.executable, "-c", HELD, *words], capture_output=True, text=True, check=True)
    return float(run.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it in /proc")
def test_memory_between_answers_of_some_mebibytes_is_given_back() -> None:
    assert held_mib("return") < 4
