"""Some modules import the door itself, which needs the extra; the others say so and are skipped."""

from __future__ import annotations

import importlib.util

collect_ignore = (
    []
    if importlib.util.find_spec("proton") is not None
    else ["test_flow.py", "test_hostile.py", "test_no_room.py", "test_temporary.py", "test_transactions.py"]
)
