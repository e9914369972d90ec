from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from rmq.cli.admin import admin
from tests.masters import Masters, running

Run = Callable[..., Result]


@pytest.fixture(scope="package")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Masters]:
    """One cluster of two masters for all tests of this folder: each works on topics and groups of its own."""
    with running(tmp_path_factory.mktemp("masters")) as made:
        yield made


@pytest.fixture
def mqadmin(masters: Masters) -> Run:
    """Run `rmq admin` with these words and the cluster's -n."""

    def run(name: str, *words: str, **options: str) -> Result:
        return CliRunner().invoke(admin, [name, "-n", masters.namesrv, *words], **options)

    return run
