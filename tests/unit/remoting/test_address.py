from __future__ import annotations

import pytest

from rmq.errors import ConfigError
from rmq.remoting import Address, join_address, split_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9876", Address("127.0.0.1", 9876)),
        ("broker-a.example:10911", Address("broker-a.example", 10911)),
        ("[::1]:9876", Address("::1", 9876)),
        ("tls://[fe80::1]:1", Address("fe80::1", 1, "tls")),
        ("WS://localhost:0", Address("localhost", 0, "ws")),
        (" wss://h:65535 ", Address("h", 65535, "wss")),
    ],
)
def test_split(text: str, address: Address) -> None:
    assert split_address(text) == address
    assert split_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":9876",
        "host:-1",
        "host:65536",
        "host:1x",
        "host:\u0661",
        "::1:9876",
        "[::1]",
        "[host]:1",
        "[127.0.0.1]:1",
        "http://host:1",
        "://host:1",
        "host/path:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        split_address(text)


def test_what_an_address_says() -> None:
    assert [split_address(f"{scheme}://h:1").is_tls for scheme in ("tcp", "tls", "ws", "wss")] == [0, 1, 0, 1]
    assert [split_address(f"{scheme}://h:1").is_websocket for scheme in ("tcp", "tls", "ws", "wss")] == [
        0,
        0,
        1,
        1,
    ]
    assert split_address("wss://h:1").plain == "h:1"
    assert split_address("127.0.0.1:1").is_literal
    assert not split_address("localhost:1").is_literal
    assert join_address("::1", 5) == "[::1]:5"
