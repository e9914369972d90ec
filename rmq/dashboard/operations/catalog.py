"""The catalog: imports every module with operations, so that all are in `OPERATIONS`."""

from __future__ import annotations

from rmq.dashboard.operations import groups as groups
from rmq.dashboard.operations import overview as overview
from rmq.dashboard.operations import topics as topics
from rmq.dashboard.operations.operation import OPERATIONS as OPERATIONS
