"""Signatures of 5.x clients on the gRPC door: damaged, of other dates and accounts, and replayed."""

from __future__ import annotations

import pathlib

from trio.testing import MockClock

from rmq.testing.cluster import Cluster
from tests.unit.grpc.calls import ACCOUNTS, PORT, client, message, sending, signed, word


async def test_a_signature_holds_for_its_date_and_its_account_alone(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS, "utf-8")
    file.chmod(0o600)
    settings = {"plugins": ("acl", "grpc"), "acl_file": str(file), "topics": {}}
    async with Cluster("a", plugin_settings={"grpcPort": str(PORT)}, **settings) as running:  # type: ignore[arg-type]
        running["a"].server.topics.create_for_send("Orders", "TBW102", 4, "test")  # type: ignore[union-attr]
        right = signed("writer01", "writer-secret-1")
        damaged = [
            right | {"x_mq_date_time": "20261126T120001Z"},
            right | {"x_mq_date_time": ""},
            right | {"authorization": right["authorization"].replace("writer01", "reader01")},
            right | {"authorization": right["authorization"][:-2] + "00"},
            right | {"authorization": right["authorization"] + "0"},
            right | {"authorization": right["authorization"].replace("MQv2", "MQv1")},
        ]
        for number, metadata in enumerate(damaged):
            async with client(running, f"d{number}") as one:
                answer = await one.one("SendMessage", sending(message()), **metadata)
                assert word(answer) == "UNAUTHORIZED", metadata
        async with client(running, "w") as one:  # the same client may damage its signature later
            assert word(await one.one("SendMessage", sending(message()), **right)) == "OK"
            assert word(await one.one("SendMessage", sending(message()), **damaged[0])) == "UNAUTHORIZED"
        async with client(
            running, "replays"
        ) as one:  # as with RocketMQ: who reads a signature has the account
            assert word(await one.one("SendMessage", sending(message()), **right)) == "OK"
