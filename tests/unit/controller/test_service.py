"""Controllers as services: three that agree over a network, one inside a name server, and who may ask."""

from __future__ import annotations

import json
import pathlib
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.msgpack import encode as encoded

from rmq.controller.config import ControllerConfig, ControllerSettings, check_reach, own_address
from rmq.controller.consensus.journal import COMMAND, Entry, Journal
from rmq.controller.consensus.messages import Message
from rmq.controller.consensus.raft import NotLeader
from rmq.controller.controller import AddMember, Answer, ElectRequest, RemoveMember
from rmq.controller.heartbeat import Heartbeat
from rmq.controller.requests import answer_of, request_of
from rmq.controller.service import LOG, RECEIVERS_MAX, run
from rmq.controller.sets import AlterInSync, Remove
from rmq.errors import ConfigError, StoreLocked
from rmq.namesrv import service as namesrv_service
from rmq.namesrv.config import NamesrvConfig
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.codes import CONTROLLER_MESSAGE, CONTROLLER_STATUS, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.pool import Pool
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.profile import cluster_secret
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork
from tests.unit.controller.services import ADDRESSES, NAMED, Controllers, controllers, register


async def test_three_agree_and_keep_what_they_said_when_their_leader_is_killed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        assert [(await three.ask(register(name))).number for name in "abc"] == [1, 2, 3]
        known = (await three.ask(AlterInSync("s", 1, 1, (1, 2, 3)))).broker_set
        assert known is not None
        assert known.in_sync == (1, 2, 3)

        first = await three.leader()
        three.kill(first)
        second = await three.leader()
        assert second != first
        (found,) = (await three.status(second))["sets"]
        assert (found["epoch"], found["master"], found["inSync"]) == (1, 1, [1, 2, 3])

        await three.start(first)  # what was not synced is gone: it must have kept what it answered
        three.kill(second)
        third = await three.leader()
        assert (await three.status(third))["sets"][0]["inSync"] == [1, 2, 3]


async def test_a_master_that_is_silent_is_followed_by_the_replica_with_the_longest_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        for name in "abc":
            await three.ask(register(name))
        await three.ask(AlterInSync("s", 1, 1, (1, 2, 3)))
        assert (await three.ask(Heartbeat("s", 1, 1, 1, 70))).is_leased
        began = trio.current_time()
        while True:
            await three.ask(Heartbeat("s", 2, 1, 1, 50))
            answer = await three.ask(Heartbeat("s", 3, 1, 1, 60))
            assert answer.broker_set is not None
            assert not answer.is_leased
            if answer.broker_set.epoch == 2:
                break
            await trio.sleep(0.2)
        assert answer.broker_set.master == 3
        assert 3.0 <= trio.current_time() - began < 4.0
        status = await three.status(await three.leader())
        lives = {one["number"]: one["lives"] for one in status["sets"][0]["replicas"]}
        assert lives == {1: False, 2: True, 3: True}


async def test_an_operator_names_the_next_master_and_removes_a_replica(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        for name in "ab":
            await three.ask(register(name))
        await three.ask(AlterInSync("s", 1, 1, (1, 2)))
        await three.ask(Heartbeat("s", 1, 1, 1, 5))
        await three.ask(Heartbeat("s", 2, 1, 1, 5))
        assert (await three.ask(ElectRequest("s", 7))).refusal
        assert (await three.ask(ElectRequest("s", 2))).refusal == ""
        assert not (await three.ask(Heartbeat("s", 1, 1, 1, 5))).is_leased  # it gets no lease any more
        for _ in range(20):
            await trio.sleep(0.2)
            for number in (1, 2):
                await three.ask(Heartbeat("s", number, 1, 1, 5))
        (found,) = (await three.status(await three.leader()))["sets"]
        assert (found["epoch"], found["master"]) == (2, 2)
        assert (await three.ask(Remove("s", 2))).refusal
        await trio.sleep(3.1)  # until it does not live any more
        answer = await three.ask(Remove("s", 1))
        assert answer.broker_set is not None
        assert sorted(answer.broker_set.replicas) == [2]


async def test_a_controller_that_has_lost_its_journal_is_named(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with controllers() as three:
        for name in "ab":
            await three.ask(register(name))
        leader = await three.leader()
        await trio.sleep(1)
        assert (await three.status(leader))["forgetful"] == []
        lost = next(address for address in ADDRESSES if address != leader)
        three.kill(lost)
        await trio.sleep(0.1)
        three.disks[lost] = MemoryDisk(seed=9)
        await three.start(lost)
        await trio.sleep(1)
        assert await three.leader() == leader
        assert (await three.status(leader))["forgetful"] == [lost]
        assert caplog.text.count(f"{lost} has lost its journal: drop it") == 1
        assert (
            "has lost its journal: drop it first, then add it" in (await three.ask(AddMember(lost))).refusal
        )
        answer = await change(three, RemoveMember(lost))
        assert lost not in answer.controllers
        three.kill(lost)
        await trio.sleep(0.1)
        three.disks[lost] = MemoryDisk(seed=10)
        await three.start(lost, joins=True)
        await change(three, AddMember(lost))
        assert (await three.status(await three.leader()))["forgetful"] == []


async def change(three: Controllers, question: AddMember | RemoveMember) -> Answer:
    """An operator's change of the controllers, until it holds."""
    with trio.fail_after(20):
        while True:
            try:
                answer = await three.ask(question)
            except NotLeader:
                answer = Answer("the leader changes")
            if not answer.refusal and (question.address in answer.controllers) == isinstance(
                question, AddMember
            ):
                return answer
            await trio.sleep(0.1)


async def test_all_controllers_are_replaced_one_at_a_time_and_know_what_was_agreed_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    new = [f"10.0.9.{number}:9878" for number in (4, 5, 6)]
    async with controllers() as three:
        await three.ask(register("a"))
        for address, old in zip(new, ADDRESSES, strict=True):
            await three.start(address, joins=True)
            await trio.sleep(5)
            alone = await three.status(address)
            assert (alone["members"], alone["leading"], alone["committed"]) == ({}, False, 0)
            assert address in (await change(three, AddMember(address))).controllers
            after = await change(three, RemoveMember(old))  # one of them leads
            assert len(after.controllers) == 3
            three.kill(old)
        # The disks are what a power cut leaves: who they are is in the journal, whatever the settings say.
        for address in new:
            three.kill(address)
        await trio.sleep(0.1)
        for address in new:
            await three.start(address, joins=True)
        leader = await three.leader()
        status = await three.status(leader)
        assert sorted(status["members"]) == new
        assert [one["name"] for one in status["sets"]] == ["s"]
        refusal = (await three.ask(register("b"))).refusal
        assert "was not heard yet" in refusal  # it may know of a replica of that number
        answer = await three.ask(Heartbeat("s", 1, 1, 1, 5, identity="a", knows=(1, 1)))
        assert answer.controllers == tuple(new)
        assert (await three.ask(register("b"))).number == 2


async def test_wishes_that_would_end_the_controllers_are_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        leader = await three.leader()
        follower, other = (address for address in ADDRESSES if address != leader)
        assert (await three.ask(AddMember(other))).refusal == ""  # it is one already
        for address in ("", "x", "x:0", "x:1;y:1", " x:1"):
            assert (await three.ask(AddMember(address))).refusal
        assert "none of the controllers" in (await three.ask(RemoveMember("10.0.9.9:9878"))).refusal

        assert (await three.ask(AddMember("10.0.9.9:9878"))).refusal == ""  # nobody is there
        await trio.sleep(20)
        status = await three.status(await three.leader())
        assert (len(status["members"]), status["joining"]) == (3, ["10.0.9.9:9878"])
        assert "is being added" in (await three.ask(AddMember("10.0.9.8:9878"))).refusal
        assert (await three.ask(RemoveMember("10.0.9.9:9878"))).refusal == ""
        assert (await three.status(await three.leader()))["joining"] == []

        three.kill(other)
        await trio.sleep(3)
        assert f"{other} was not heard" in (await three.ask(RemoveMember(follower))).refusal
        assert f"{other} was not heard" in (await three.ask(RemoveMember(leader))).refusal
        assert (await three.ask(RemoveMember(other))).refusal == ""
        assert await three.leader() == leader  # it led all the time
        assert (await three.ask(RemoveMember(follower))).controllers == (leader,)
        assert "the only controller" in (await three.ask(RemoveMember(leader))).refusal
        assert (await three.ask(register("a"))).number == 1


async def test_without_a_majority_nobody_answers_and_others_say_who_leads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        await three.ask(register("a"))
        leader = await three.leader()
        follower, other = (address for address in ADDRESSES if address != leader)
        with pytest.raises(NotLeader) as refused:
            answer_of(await three.pool.call(follower, request_of(register("b")), 5.0))
        assert refused.value.leader == leader
        three.kill(follower)
        three.kill(other)
        await trio.sleep(5)
        with pytest.raises(NotLeader):
            answer_of(await three.pool.call(leader, request_of(register("b")), 5.0))


async def test_a_link_that_brings_nothing_is_made_anew(autojump_clock: trio.testing.MockClock) -> None:
    async with controllers() as three:
        await three.ask(register("a"))
        leader = await three.leader()
        three.network.partition(leader.partition(":")[0], *(a.partition(":")[0] for a in ADDRESSES))
        await trio.sleep(30)
        three.network.heal()
        await trio.sleep(5)
        states = [await three.status(address) for address in ADDRESSES]
        assert len({state["leader"] for state in states}) == 1
        assert [len(state["sets"]) for state in states] == [1, 1, 1]


async def test_a_controller_that_cannot_read_its_log_is_not_ready_and_says_why(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        later = await three.leader()
        early = next(address for address in ADDRESSES if address != later)
        for address in ADDRESSES:
            three.kill(address)
        await trio.sleep(1)
        journal = Journal(three.disks[early], "/controller", {})
        journal.append(journal.last + 1, [Entry(journal.term, COMMAND, encoded(["Split", {}]))])
        journal.append(journal.last + 1, [Entry(journal.term, COMMAND, encoded(["Split", {}]))])
        journal.close()
        await three.start(later)
        await three.start(early)  # it has the longest log, so it is elected, and gives the lead up
        with trio.fail_after(20):
            while three.healths[early].is_ready:
                await trio.sleep(0.1)
        state = await three.status(early)
        assert "knows no command Split" in state["stopped"]
        assert not state["leading"]
        assert state["stopped"] in three.healths[early].text()
        assert three.healths[early].lacking.keys() == {LOG}


async def test_a_disk_that_fails_makes_a_controller_start_again_from_its_journal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        await three.ask(register("a"))
        leader = await three.leader()
        three.disks[leader].fail("sync")
        response = await three.pool.call(leader, request_of(register("b")), 5.0)
        assert response.code == ResponseCode.SYSTEM_ERROR
        with pytest.raises(NotLeader):
            answer_of(await three.pool.call(leader, request_of(register("b")), 5.0))
        await trio.sleep(10)
        await three.ask(Heartbeat("s", 1, 1, 1, 5, identity="a", knows=(1, 1)))
        assert (await three.ask(register("b"))).number == 2
        await trio.sleep(1)
        states = [await three.status(address) for address in ADDRESSES]
        assert [state["committed"] for state in states] == [states[0]["committed"]] * 3


def private(path: pathlib.Path, text: str) -> str:
    """A file that only its owner may read."""
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


async def test_with_a_cluster_secret_strangers_change_nothing(
    autojump_clock: trio.testing.MockClock, tmp_path: pathlib.Path
) -> None:
    file = private(tmp_path / "secret", "a secret of the cluster\n")
    async with controllers(cluster_secret_file=file) as three:
        leader = await three.leader()  # they sign what they tell each other
        for request in (request_of(register("a")), Command.request(CONTROLLER_MESSAGE, body=b"x")):
            response = await three.pool.call(leader, request, 5.0)
            assert response.code == ResponseCode.NO_PERMISSION
            assert "signed with the cluster secret" in (response.remark or "")
        secret = cluster_secret(file)
        assert secret is not None
        request = secret.sign(request_of(register("a")), _wall_ms(), b"nonce of 16 byte")
        assert answer_of(await three.pool.call(leader, request, 5.0)).number == 1
        again = await three.pool.call(leader, request, 5.0)
        assert again.code == ResponseCode.NO_PERMISSION


async def test_with_a_cluster_secret_operators_sign_with_it(
    autojump_clock: trio.testing.MockClock, tmp_path: pathlib.Path
) -> None:
    """A stranger could drop controllers, until none was left to agree on anything."""
    file = private(tmp_path / "secret", "a secret of the cluster\n")
    async with controllers(cluster_secret_file=file) as three:
        leader = await three.leader()
        other = next(address for address in ADDRESSES if address != leader)
        for question in (
            RemoveMember(other),
            AddMember("10.0.0.99:9878"),
            ElectRequest("s", 1),
            Remove("s", 1),
        ):
            response = await three.pool.call(leader, request_of(question), 5.0)
            assert response.code == ResponseCode.NO_PERMISSION
        secret = cluster_secret(file)
        assert secret is not None
        request = secret.sign(request_of(RemoveMember(other)), _wall_ms(), b"nonce of 16 byte")
        answer = answer_of(await three.pool.call(leader, request, 5.0))
        assert answer.controllers == tuple(one for one in ADDRESSES if one != other)


async def test_senders_with_ever_new_addresses_make_no_more_tasks_than_a_bound(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        leader = await three.leader()
        before = trio.lowlevel.current_statistics().tasks_living
        for number in range(500):
            message = Message("append_entries", "10.0.0.77:1", f"10.0.0.77:{number + 1}", 0)
            body = encoded(message)
            await three.pool.call(leader, Command.request(CONTROLLER_MESSAGE, body=body), 5.0)
        await trio.sleep(20)
        assert trio.lowlevel.current_statistics().tasks_living - before <= 4 * RECEIVERS_MAX
        assert await three.leader() == leader
        assert (await three.ask(register("a"))).number == 1


@pytest.mark.parametrize(
    ("settings", "tls", "is_taken"),
    [
        ({"bind_address": "127.0.0.1"}, TlsConfig(), True),
        ({"bind_address": "0.0.0.0"}, TlsConfig(), False),
        ({"bind_address": "10.0.0.1"}, TlsConfig(tls_mode="enforcing"), False),
        ({"bind_address": "10.0.0.1"}, TlsConfig(tls_mode="enforcing", tls_client_auth="require"), True),
        ({"bind_address": "10.0.0.1", "cluster_secret_file": "secret"}, TlsConfig(), True),
        ({"bind_address": "10.0.0.1", "controller_open": True}, TlsConfig(), True),
    ],
)
def test_controllers_without_a_secret_are_for_one_machine(
    settings: dict[str, Any], tls: TlsConfig, is_taken: bool
) -> None:
    if is_taken:
        check_reach(ControllerConfig(**settings), tls)
    else:
        with pytest.raises(ConfigError, match="clusterSecretFile"):
            check_reach(ControllerConfig(**settings), tls)


async def test_with_accounts_only_administrators_operate(
    autojump_clock: trio.testing.MockClock, tmp_path: pathlib.Path
) -> None:
    secret = private(tmp_path / "secret", "a secret of the cluster\n")
    accounts = private(
        tmp_path / "plain_acl.yml",
        "accounts:\n"
        "- {accessKey: the-keeper, secretKey: keepers-secret, admin: true}\n"
        "- {accessKey: the-reader, secretKey: readers-secret, defaultTopicPerm: SUB}\n",
    )
    keeper, reader = Credentials("the-keeper", "keepers-secret"), Credentials("the-reader", "readers-secret")
    async with controllers(cluster_secret_file=secret, acl_enable=True, acl_file=accounts) as three:
        three.sign = partial(signed, credentials=keeper)
        leader = await three.leader()
        other = next(address for address in ADDRESSES if address != leader)
        for request in (Command.request(CONTROLLER_STATUS), request_of(RemoveMember(other))):
            for refused in (request, signed(request, reader)):
                response = await three.pool.call(leader, refused, 5.0)
                assert response.code == ResponseCode.NO_PERMISSION, response.remark
        assert sorted((await three.status(leader))["members"]) == ADDRESSES
        dropped = await three.ask(RemoveMember(other))
        assert dropped.controllers == tuple(one for one in ADDRESSES if one != other)
        # The plugin answers here what it answers at a broker.
        asked = Command.request(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        assert (await three.pool.call(leader, asked, 5.0)).code == ResponseCode.NO_PERMISSION
        assert (await three.pool.call(leader, signed(asked, keeper), 5.0)).code == ResponseCode.SUCCESS


def _wall_ms() -> int:
    from rmq.clock import wall_clock_ms

    return wall_clock_ms()


async def test_what_is_no_question_is_refused_and_ends_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controllers() as three:
        leader = await three.leader()
        good = request_of(register("a"))
        operate = request_of(ElectRequest("s", 1))
        bodies = [b"", b"{}", b"[1]", b'{"kind":"Elect","question":{}}', operate.body, good.body[:-5]]
        bodies.append(good.body.replace(b'"incarnation":1', b'"incarnation":"x"'))
        for body in bodies:
            response = await three.pool.call(leader, Command.request(good.code, body=body), 5.0)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert "no question" in (response.remark or "")
        for body in (b"", b"x", b"\x93\x01\x02\x03", b"\x81\xa4kind\xa4vote"):
            response = await three.pool.call(leader, Command.request(CONTROLLER_MESSAGE, body=body), 5.0)
            assert response.code == ResponseCode.SYSTEM_ERROR
        response = await three.pool.call(leader, Command.request(RequestCode.GET_NAMESRV_CONFIG), 5.0)
        assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert await three.leader() == leader
        assert (await three.ask(register("a"))).number == 1


async def test_a_folder_is_one_controllers_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    disk, network = MemoryDisk(seed=1), MemoryNetwork(seed=1)
    config = ControllerConfig(listen_port=0, controller_path="/controller")
    async with trio.open_nursery() as nursery:
        alone = partial(run, network=network, disk=disk, clock=trio.current_time)
        await nursery.start(alone, config)
        with pytest.raises(StoreLocked):
            await run(config, network=network, disk=disk, clock=trio.current_time)
        nursery.cancel_scope.cancel()


async def test_name_servers_are_controllers_too_by_one_setting(
    autojump_clock: trio.testing.MockClock, tmp_path: pathlib.Path
) -> None:
    network = MemoryNetwork(seed=1)
    addresses = [f"10.0.9.{number}:9876" for number in (1, 2, 3)]

    async with Pool(network, ClientOnlyEndpoint()) as pool, trio.open_nursery() as nursery:
        for number, address in enumerate(addresses):
            host = address.partition(":")[0]
            config = NamesrvConfig(
                bind_address=host,
                controllers=";".join(addresses),
                kv_config_path=str(tmp_path / f"{number}.json"),
                controller_path="/controller",
            )
            served = partial(
                namesrv_service.run,
                network=network.host(host),
                disk=MemoryDisk(seed=number),
                lease_clock=trio.current_time,
            )
            await nursery.start(served, config)
        await trio.sleep(5)
        leaders = set()
        for address in addresses:
            response = await pool.call(address, Command.request(CONTROLLER_STATUS), 5.0)
            leaders.add(json.loads(response.body)["leader"])
        (leader,) = leaders
        assert answer_of(await pool.call(leader, request_of(register("a")), 5.0)).number == 1
        routes = await pool.call(leader, Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), 5.0)
        assert routes.code == ResponseCode.SUCCESS
        nursery.cancel_scope.cancel()


async def test_a_name_server_without_the_setting_knows_no_controllers(
    autojump_clock: trio.testing.MockClock, tmp_path: pathlib.Path
) -> None:
    network = MemoryNetwork(seed=1)
    config = NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"), controller_path=str(tmp_path / "c"))
    async with Pool(network, ClientOnlyEndpoint()) as pool, trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(namesrv_service.run, network=network), config)
        response = await pool.call(address, Command.request(CONTROLLER_STATUS), 5.0)
        assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("settings", "bind", "port", "own"),
    [
        ({}, "127.0.0.1", 9878, "127.0.0.1:9878"),
        ({}, "0.0.0.0", 1, "127.0.0.1:1"),
        ({}, "::1", 1, "[::1]:1"),
        ({"controllers": NAMED}, "10.0.9.2", 9878, ADDRESSES[1]),
        ({"controllers": f"127.0.0.1:1;{ADDRESSES[0]};x:1"}, "0.0.0.0", 1, "127.0.0.1:1"),
        ({"controllers": "127.0.0.1:1;127.0.0.1:2;127.0.0.1:3"}, "127.0.0.1", 3, "127.0.0.1:3"),
        ({"controllers": "x:1;y:1;z:1", "controller_self": "y:1"}, "0.0.0.0", 1, "y:1"),
        ({"controllers": "127.0.0.1:1;y:1", "controller_joins": True}, "0.0.0.0", 1, "127.0.0.1:1"),
    ],
)
def test_a_controller_knows_which_of_all_it_is(
    settings: dict[str, Any], bind: str, port: int, own: str
) -> None:
    assert own_address(ControllerSettings(**settings), bind, port)[0] == own


@pytest.mark.parametrize(
    "settings",
    [
        {"controllers": "a:1;b:2"},
        {"controllers": NAMED},
        {"controllers": "localhost:1;127.0.0.1:1;x:1"},
        {"controllers": NAMED, "controller_self": "a:1"},
    ],
)
def test_what_does_not_tell_which_of_all_it_is_ends_the_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="controller"):
        own_address(ControllerSettings(**settings), "0.0.0.0", 1)
