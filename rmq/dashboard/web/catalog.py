"""The catalog of pages: imports every module with pages, so that all are in `PAGES`."""

from __future__ import annotations

from rmq.dashboard.web import groups as groups
from rmq.dashboard.web import overview as overview
from rmq.dashboard.web import topics as topics
