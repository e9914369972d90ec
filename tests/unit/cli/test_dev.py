"""RocketMQ's 5.x clients at the address that `rmq dev` prints."""

from __future__ import annotations

import pathlib
import ssl

import pytest
import trio
from click.testing import CliRunner

pytest.importorskip("h2")

from rmq.cli.local import grpc, services
from rmq.errors import PortInUse
from rmq.remoting.network import TcpNetwork
from tests.ports import free_ports
from tests.unit.grpc import channel
from tests.unit.grpc import test_grpc as calls

PAIR = {"host": "127.0.0.1", "namesrv_port": 0, "broker_port": 0}


async def test_clients_of_5x_send_and_receive(tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    with trio.fail_after(60):
        async with grpc.opened(tmp_path, settings={}, port=port, **PAIR) as (system, where):
            assert where == f"127.0.0.1:{port}"
            assert f"\n  5.x clients  {where}\n" in services.banner(system, grpc=where)
            for address in (where, system.broker_address):
                async with channel.channel(TcpNetwork(), address) as one:
                    sent = await one.one("SendMessage", calls.sending(calls.message(address.encode())))
                    assert calls.word(sent) == "OK"
                    status, (got,) = await calls.received(one, calls.receiving(seconds=10))
                    assert (status, got.body) == ("OK", address.encode())
                    acked = await one.one("AckMessage", calls.acking(got.system_properties.receipt_handle))
                    assert calls.word(acked) == "OK"


async def test_clients_that_ask_for_tls_are_served(tmp_path: pathlib.Path) -> None:
    """The client does not verify the certificate, as Java's and Go's by default."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with trio.fail_after(60):
        async with grpc.opened(tmp_path, settings={}, port=0, **PAIR) as (system, where):
            assert where == system.broker_address
            host, _, port = where.rpartition(":")
            stream = await trio.open_ssl_over_tcp_stream(host, int(port), ssl_context=context)
            await stream.do_handshake()
            assert stream.selected_alpn_protocol() == "h2"
            await stream.aclose()


async def test_without_a_free_port_the_brokers_port_serves_them(tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    listener = await TcpNetwork().listen(f"127.0.0.1:{port}")
    with trio.fail_after(60):
        async with grpc.opened(tmp_path / "a", settings={}, port=port, **PAIR) as (system, where):
            assert where == f"{system.broker_address} (port {port} is in use; see --grpc-port)"
        with pytest.raises(PortInUse, match=str(port)):
            async with grpc.opened(tmp_path / "b", settings={"grpcPort": str(port)}, port=8081, **PAIR):
                pass
    await listener.aclose()


def test_the_plug_ins_that_were_asked_for_stay() -> None:
    assert grpc.with_door({"plugins": "metrics, grpc", "brokerName": "b"}) == {
        "plugins": "metrics,grpc",
        "brokerName": "b",
    }
    assert grpc.with_door({}) == {"plugins": "grpc"}
    assert grpc.with_door({"plugins": "metrics"}) == {"plugins": "metrics,grpc"}


def test_the_port_is_an_option() -> None:
    shown = CliRunner().invoke(services.dev, ["--help"]).output
    assert "--grpc-port" in shown
    assert "[default: 8081" in shown
