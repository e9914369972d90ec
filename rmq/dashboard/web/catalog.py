"""The catalog of pages: imports every module with pages, so that all are in `PAGES`."""

from __future__ import annotations

from rmq.dashboard.web import accounts as accounts
from rmq.dashboard.web import brokers as brokers
from rmq.dashboard.web import dead_letters as dead_letters
from rmq.dashboard.web import groups as groups
from rmq.dashboard.web import jobs as jobs
from rmq.dashboard.web import later as later
from rmq.dashboard.web import messages as messages
from rmq.dashboard.web import name_servers as name_servers
from rmq.dashboard.web import overview as overview
from rmq.dashboard.web import topics as topics
