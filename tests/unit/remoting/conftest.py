from __future__ import annotations

import pytest

from rmq.remoting import TlsConfig
from rmq.remoting.transports.tls import TlsContexts

from .transports import TRANSPORTS, Maker, certificates


@pytest.fixture(scope="session")
def tls_config(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls(tls_config: TlsConfig) -> TlsContexts:
    return TlsContexts(tls_config)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Maker:
    return TRANSPORTS[request.param]
