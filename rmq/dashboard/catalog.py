"""The catalog: imports every module with operations, so that all are in `OPERATIONS`."""

from __future__ import annotations

from rmq.dashboard.operations import accounts as accounts
from rmq.dashboard.operations import brokers as brokers
from rmq.dashboard.operations import controllers as controllers
from rmq.dashboard.operations import dead_letters as dead_letters
from rmq.dashboard.operations import groups as groups
from rmq.dashboard.operations import jobs as jobs
from rmq.dashboard.operations import later as later
from rmq.dashboard.operations import messages as messages
from rmq.dashboard.operations import name_servers as name_servers
from rmq.dashboard.operations import offsets as offsets
from rmq.dashboard.operations import overview as overview
from rmq.dashboard.operations import tail as tail
from rmq.dashboard.operations import topics as topics
from rmq.dashboard.operations.operation import OPERATIONS as OPERATIONS
