"""NameServer: requests in, answers out, without a socket."""

from __future__ import annotations

import base64
import json
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import SCAN_MS
from rmq.namesrv.kvconfigs import NAMESPACE_ORDER_TOPIC_CONFIG
from rmq.namesrv.routes import EXPIRY_MS, Registration, RouteTable
from rmq.protocol import headers
from rmq.protocol.bodies import (
    ClusterInfo,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from rmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.fields import encode as encode_fields
from rmq.protocol.frames import Decoder, encode
from tests.unit.namesrv.host import Host, Peer, broker, registration, route_of

# Brokers.


@pytest.mark.parametrize("compressed", [False, True])
def test_a_broker_registers_and_its_topics_are_found(compressed: bool) -> None:
    host = Host()
    body = registration("T", compressed=compressed)
    response = host.ask(RequestCode.REGISTER_BROKER, broker(body, compressed=compressed), body)
    assert (response.code, dict(response.ext), response.body) == (0, {}, b"")
    route = route_of(host.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader("T")))
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert route.order_topic_conf is None


def test_a_slave_is_told_its_master() -> None:
    host = Host()
    host.register("T")
    response = host.register(broker_id=1, broker_addr="10.0.0.2:10911")
    assert response.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


@pytest.mark.parametrize("epoch", [0, 3])
def test_gos_clients_get_the_last_master_of_a_set_that_elects_another(epoch: int) -> None:
    """By a route without a master they have no queue to send to for half a minute."""
    host, master, slave, third = Host(), Peer(), Peer(), Peer()

    def addresses(language: str) -> dict[int, str]:
        header = headers.GetRouteInfoRequestHeader("T")
        response = host.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, language=language)
        return dict(route_of(response).broker_datas[0].broker_addrs)

    def register(address: str, broker_id: int, peer: Peer, epoch: int) -> None:
        body = registration("T")
        fields = encode_fields(broker(body, broker_addr=address, broker_id=broker_id))
        fields |= {headers.SET_EPOCH: str(epoch)} if epoch else {}
        assert host.ask(RequestCode.REGISTER_BROKER, fields, body, peer=peer).code == 0

    first, second = "10.0.0.1:10911", "10.0.0.2:10911"
    register(first, 0, master, epoch)
    register(second, 2, slave, 0)
    host.server.on_close(master)  # type: ignore[arg-type]
    assert addresses("JAVA") == {2: second}
    assert addresses("GO") == ({0: first, 2: second} if epoch else {2: second})
    register(first, 1, third, 0)  # it is a slave now, and hands on
    assert addresses("JAVA") == {1: first, 2: second}
    assert addresses("GO") == ({0: first, 2: second} if epoch else {1: first, 2: second})
    register(second, 0, slave, epoch and epoch + 1)
    assert addresses("GO") == addresses("JAVA") == {0: second, 1: first}


def test_a_registration_without_a_body_is_a_broker_without_topics() -> None:
    host = Host()
    assert host.ask(RequestCode.REGISTER_BROKER, broker(b"", body_crc32=0)).code == 0
    assert host.server.routes.data_version("10.0.0.1:10911") == DataVersion(0, 0)


def test_a_damaged_registration_is_refused() -> None:
    host = Host()
    body = registration("T")
    for header, data, remark in (
        (broker(body, body_crc32=5), body, "crc32 not match"),
        (broker(b"{", body_crc32=0), b"{", "bad JSON"),
        (broker(b"[]"), b"[]", "RegisterBrokerBody: a JSON object expected"),
        (broker(body, compressed=True), body, "cannot be unpacked"),
        (broker(body, broker_name="x;y"), body, "brokerName 'x;y'"),
        (broker(body, broker_addr="nonsense"), body, "brokerAddr 'nonsense'"),
        ({"brokerName": "a"}, body, "field brokerAddr is missing"),
    ):
        response = host.ask(RequestCode.REGISTER_BROKER, header, data)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert remark in (response.remark or "")
    assert host.server.routes.broker_live_table == {}


def test_an_unchanged_registration_is_taken_without_reading_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    host.register("T")
    other = Peer()
    host.now_ms += 30_000
    with monkeypatch.context() as patch:
        patch.setattr(RegisterBrokerBody, "decode", None)
        assert host.register("T", peer=other).code == 0
    held = host.server.routes.broker_live_table["10.0.0.1:10911"]
    assert (held.source, held.last_update_ms) == (other, 31_000)
    assert host.register("T", "U", version=2).code == 0
    assert list(host.server.routes.topic_queue_table) == ["T", "U"]


def test_a_one_way_registration_counts_and_is_not_answered() -> None:
    host = Host()
    body = registration("T")
    request = Command.request(RequestCode.REGISTER_BROKER, broker(body), body, oneway=True)
    assert request.flag == FLAG_ONEWAY
    bad = Command.request(RequestCode.REGISTER_BROKER, broker(body, broker_name=""), body, oneway=True)
    host.server.handle(Decoder().feed(encode(request) + encode(bad)), host.peer)  # type: ignore[arg-type]
    assert host.peer.replies == []
    assert list(host.server.routes.broker_addr_table) == ["a"]


def test_unregistering_and_closing_remove_a_broker() -> None:
    host = Host()
    host.register("T")
    header = headers.UnRegisterBrokerRequestHeader("a", "10.0.0.1:10911", "C", 0)
    assert host.ask(RequestCode.UNREGISTER_BROKER, header).code == 0
    assert host.server.routes.broker_live_table == {}
    assert host.ask(RequestCode.UNREGISTER_BROKER, header).code == 0
    host.register("T")
    host.server.on_close(host.peer)  # type: ignore[arg-type]
    assert host.server.routes.broker_live_table == {}


def test_a_silent_broker_goes_at_a_scan_and_its_connection_is_closed() -> None:
    host = Host()
    host.register("T")
    began = host.now_ms
    scans = []
    while host.server.routes.broker_live_table:
        scans.append(host.now_ms)
        host.now_ms = host.server.step(host.now_ms)
    assert scans == [began, began + SCAN_MS, began + EXPIRY_MS + 1]
    assert host.now_ms == scans[-1] + EXPIRY_MS + 1, "nobody who comes now can be silent before"
    assert "silent" in host.peer.closed_because


def test_the_data_version_is_compared_and_keeps_a_broker_alive() -> None:
    host = Host()
    header = headers.QueryDataVersionRequestHeader("a", "10.0.0.1:10911", "C", 0)
    same, other = DataVersion(1, 1).to_json(), DataVersion(1, 2).to_json()
    response = host.ask(RequestCode.QUERY_DATA_VERSION, header, same)
    assert (dict(response.ext), response.body) == ({"changed": "true"}, b"")
    host.register("T")
    host.now_ms += 100
    response = host.ask(RequestCode.QUERY_DATA_VERSION, header, other)
    assert (dict(response.ext), DataVersion.from_json(response.body)) == (
        {"changed": "true"},
        DataVersion(1, 1),
    )
    assert host.server.routes.broker_live_table["10.0.0.1:10911"].last_update_ms == 1_000
    response = host.ask(RequestCode.QUERY_DATA_VERSION, header, same)
    assert dict(response.ext) == {"changed": "false"}
    assert host.server.routes.broker_live_table["10.0.0.1:10911"].last_update_ms == 1_100
    assert host.ask(RequestCode.QUERY_DATA_VERSION, header, b"").code == ResponseCode.SYSTEM_ERROR


# Routes and topics.


def test_a_topic_without_a_broker_gets_javas_words() -> None:
    response = Host().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader("T"))
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert response.remark == (
        "No topic route info in name server for the topic: T\n"
        "See http://rocketmq.apache.org/docs/faq/ for further details."
    )


@pytest.mark.parametrize(
    ("version", "standard", "strict"),
    [
        (407, None, True),
        (401, None, True),
        (400, None, False),
        (317, False, False),
        (317, True, True),
        (0, None, False),
    ],
)
def test_old_clients_get_bare_broker_ids(version: int, standard: bool | None, strict: bool) -> None:
    host = Host()
    host.register("T")
    header = headers.GetRouteInfoRequestHeader("T", standard)
    body = host.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, version=version).body
    assert (b'{"0":"10.0.0.1:10911"}' in body) is strict
    assert (b'{0:"10.0.0.1:10911"}' in body) is not strict


def test_the_order_of_a_topic_comes_with_its_route_when_enabled() -> None:
    put = headers.PutKVConfigRequestHeader(NAMESPACE_ORDER_TOPIC_CONFIG, "T", "a:4")
    for settings, expected in (
        ({}, None),
        ({"order_message_enable": True}, "a:4"),
        ({"cluster_test": True}, "a:4"),
    ):
        host = Host(**settings)
        assert host.ask(RequestCode.PUT_KV_CONFIG, put).code == 0
        registered = host.register("T", "U")
        assert KVTable.from_json(registered.body).table == {"T": "a:4"}
        for topic, order in (("T", expected), ("U", None)):
            header = headers.GetRouteInfoRequestHeader(topic)
            assert route_of(host.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)).order_topic_conf == order


def test_the_cluster_and_the_lists() -> None:
    host = Host()
    host.register("T", "U")
    info = ClusterInfo.from_json(host.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert info.cluster_addr_table == {"C": ["a"]}
    for code, header, expected in (
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, ["T", "U"]),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, ["C", "a"]),
        (RequestCode.GET_UNIT_TOPIC_LIST, None, []),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, None, []),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None, []),
        (RequestCode.GET_TOPICS_BY_CLUSTER, headers.GetTopicsByClusterRequestHeader("C"), ["T", "U"]),
        (RequestCode.GET_TOPICS_BY_CLUSTER, headers.GetTopicsByClusterRequestHeader("X"), []),
    ):
        assert TopicList.from_json(host.ask(code, header).body).topic_list == expected


def test_write_permission_and_topic_deletion() -> None:
    host = Host()
    host.register("T", "U")
    wiped = host.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, headers.WipeWritePermOfBrokerRequestHeader("a"))
    assert dict(wiped.ext) == {"wipeTopicCount": "2"}
    assert host.server.routes.topic_queue_table["T"]["a"].perm == 4
    added = host.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, headers.AddWritePermOfBrokerRequestHeader("a"))
    assert dict(added.ext) == {"addTopicCount": "2"}
    assert host.server.routes.topic_queue_table["T"]["a"].perm == 6
    host.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopicFromNamesrvRequestHeader("T", "X"))
    assert "T" in host.server.routes.topic_queue_table
    host.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopicFromNamesrvRequestHeader("T", "C"))
    host.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopicFromNamesrvRequestHeader("U"))
    assert host.server.routes.topic_queue_table == {}


# Key-value configs and settings.


def test_texts_are_kept_and_saved() -> None:
    host = Host()
    get = headers.GetKVConfigRequestHeader("ns", "k")
    response = host.ask(RequestCode.GET_KV_CONFIG, get)
    assert (response.code, response.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "No config item, Namespace: ns Key: k",
    )
    assert host.ask(
        RequestCode.GET_KVLIST_BY_NAMESPACE, headers.GetKVListByNamespaceRequestHeader("ns")
    ).remark == ("No config item, Namespace: ns")
    assert host.ask(RequestCode.PUT_KV_CONFIG, headers.PutKVConfigRequestHeader("ns", "k", "v")).code == 0
    assert json.loads(host.saved[-1]) == {"configTable": {"ns": {"k": "v"}}}
    assert dict(host.ask(RequestCode.GET_KV_CONFIG, get).ext) == {"value": "v"}
    listed = host.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, headers.GetKVListByNamespaceRequestHeader("ns"))
    assert KVTable.from_json(listed.body).table == {"k": "v"}
    delete = headers.DeleteKVConfigRequestHeader("ns", "k")
    for _ in range(2):
        assert host.ask(RequestCode.DELETE_KV_CONFIG, delete).code == 0
    assert json.loads(host.saved[-1]) == {"configTable": {"ns": {}}}
    assert len(host.saved) == 2


def test_what_cannot_be_saved_is_refused_and_undone() -> None:
    host = Host()
    put = headers.PutKVConfigRequestHeader("ns", "k", "v")
    host.ask(RequestCode.PUT_KV_CONFIG, put)
    host.fails = True
    for code, header in (
        (RequestCode.PUT_KV_CONFIG, headers.PutKVConfigRequestHeader("ns", "k", "w")),
        (RequestCode.DELETE_KV_CONFIG, headers.DeleteKVConfigRequestHeader("ns", "k")),
    ):
        response = host.ask(code, header)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "No space left" in (response.remark or "")
    assert host.server.kv_configs.get("ns", "k") == "v"
    response = host.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true")
    assert "nothing was changed" in (response.remark or "")
    assert host.server.config.order_message_enable is False


def test_settings_are_shown_and_the_ones_that_allow_it_changed() -> None:
    host = Host()
    response = host.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true\n")
    assert (response.code, host.changes) == (0, [{"orderMessageEnable": "true"}])
    assert b"orderMessageEnable=true" in host.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert host.ask(RequestCode.UPDATE_NAMESRV_CONFIG).code == 0


@pytest.mark.parametrize("field", NamesrvConfig.__attrs_attrs__, ids=lambda field: field.name)
def test_no_other_setting_can_be_changed_from_afar(field: Any) -> None:
    host = Host()
    if field.name == "order_message_enable":
        return
    for key in (field.name, _camel(field.name)):
        response = host.ask(
            RequestCode.UPDATE_NAMESRV_CONFIG, None, f"orderMessageEnable=true\n{key}=1\n".encode()
        )
        assert response.code == ResponseCode.NO_PERMISSION
        assert "nothing was changed" in (response.remark or "")
    assert host.server.config == NamesrvConfig()
    assert host.changes == []


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def test_unknown_settings_and_wrong_values_are_refused() -> None:
    host = Host()
    for text in ("noSuchKey=1", "orderMessageEnable=maybe"):
        assert (
            host.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, text.encode()).code
            == ResponseCode.NO_PERMISSION
        )
    assert host.server.config == NamesrvConfig()


# Everything else.


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, 901, 904, 0, -5, 10**6])
def test_an_unknown_request_is_refused_at_once(code: int) -> None:
    response = Host().ask(code)
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert str(int(code)) in (response.remark or "")


def test_a_bug_in_a_handler_is_answered_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host()
    monkeypatch.setattr(host.server.routes, "cluster_info", lambda: 1 // 0)
    host.server._handlers = host.server.handlers()
    with caplog.at_level(logging.ERROR):
        response = host.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert (response.code, response.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "ZeroDivisionError: integer division or modulo by zero",
    )
    assert "Traceback" in caplog.text


def test_in_cluster_test_mode_unknown_topics_are_asked_for() -> None:
    host = Host(cluster_test=True)
    host.register("T")
    for topic in ("T", "U", "V", "W"):
        request = Command.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader(topic)
        )
        host.server.handle([request], host.peer)  # type: ignore[arg-type]
    assert [lookup.topic for lookup in host.lookups] == ["U", "V", "W"]
    # The third one found no room: it is answered as if there were no production environment.
    assert [reply.code for reply in host.peer.replies] == [0, ResponseCode.TOPIC_NOT_EXIST]


CODES = st.sampled_from([*Host().server.handlers(), 1, 10])
NAMES = ["topic", "brokerName", "brokerAddr", "clusterName", "brokerId", "namespace", "key", "value"]
EXTS = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from(["", "a", "0", "1", "x:1", "10.0.0.1:10911", "\ud800", "é", "T"]),
)


@given(st.lists(st.tuples(CODES, EXTS, st.sampled_from([b"", b"{}", b"[", registration("T")])), max_size=8))
def test_any_requests_are_answered_in_order(requests: list[tuple[int, dict[str, str], bytes]]) -> None:
    host = Host()
    commands = [Command.request(code, ext, body) for code, ext, body in requests]
    host.server.handle(commands, host.peer)  # type: ignore[arg-type]
    assert [reply.opaque for reply in host.peer.replies] == [command.opaque for command in commands]


# What was captured between real clients, brokers and a real name server.


def exchanges(path: pathlib.Path) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Requests to the name server, each with its answer."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    frames = [line for line in lines if line["target"] == "namesrv" and "kind" in line]
    for number, frame in enumerate(frames):
        if frame["dir"] == "c2s":
            answers = (
                later
                for later in frames[number:]
                if later["dir"] == "s2c"
                and (later["conn"], later["opaque"]) == (frame["conn"], frame["opaque"])
            )
            yield frame, None if frame["kind"] == "oneway" else next(answers)


def replayed(frame: dict[str, Any]) -> Command:
    body = base64.b64decode(frame.get("body_b64", ""))
    assert len(body) == frame["body_len"]
    return Command(
        frame["code"], frame["opaque"], frame["flag"], frame.get("ext", {}), body, version=frame["version"]
    )


def test_the_master_and_slave_session(golden: pathlib.Path) -> None:
    host = Host()
    # The recorder put its own ports into the answers.
    real = {"127.0.0.1:21061": "127.0.0.1:21031", "127.0.0.1:21066": "127.0.0.1:21030"}
    peers: dict[int, Peer] = {}
    seen = 0
    for frame, expected in exchanges(golden / "wire_sessions" / "7_master_slave_remoting.jsonl"):
        peer = peers.setdefault(frame["conn"], Peer())
        host.server.handle(Decoder().feed(encode(replayed(frame))), peer)  # type: ignore[arg-type]
        if expected is None:
            assert peer.replies == []
            continue
        (answer,) = peer.replies
        peer.replies.clear()
        ext = {key: real.get(value, value) for key, value in expected.get("ext", {}).items()}
        assert (answer.code, answer.remark, dict(answer.ext), answer.body) == (
            expected["code"],
            None,
            ext,
            b"",
        )
        seen += 1
    assert seen == 10
    assert host.server.routes.broker_live_table == {}


@pytest.mark.parametrize(
    "session",
    [
        "1_producer_send",
        "2_ordered_consumer",
        "3_push_consumer",
        "4_transaction",
        "5_lite_pull_sql",
        "6_mqadmin",
    ],
)
def test_the_client_sessions(golden: pathlib.Path, session: str) -> None:
    seen = 0
    for frame, expected in exchanges(golden / "wire_sessions" / f"{session}.jsonl"):
        assert expected is not None
        host = Host()
        body = base64.b64decode(expected.get("body_b64", ""))
        restore(host, frame, body)
        host.server.handle(Decoder().feed(encode(replayed(frame))), host.peer)  # type: ignore[arg-type]
        (answer,) = host.peer.replies
        assert (answer.code, answer.remark) == (expected["code"], expected.get("remark"))
        assert answer.body.decode() == body.decode()
        seen += 1
    assert seen >= 3


def restore(host: Host, frame: dict[str, Any], body: bytes) -> None:
    """Bring our name server to where the real one was: the broker that the answer names has registered."""
    if frame["code"] == RequestCode.GET_ROUTEINFO_BY_TOPIC and body:
        route, topic = TopicRouteData.from_json(body), frame["ext"]["topic"]
        for queue, data in zip(route.queue_datas, route.broker_datas, strict=True):
            config = TopicConfig(topic, queue.read_queue_nums, queue.write_queue_nums, queue.perm)
            wrapper = TopicConfigSerializeWrapper({topic: config})
            who = Registration(data.cluster, data.broker_name, 0, data.broker_addrs[0])
            host.server.routes.register(who, RegisterBrokerBody(wrapper), host.peer, 0)
    elif frame["code"] == RequestCode.GET_BROKER_CLUSTER_INFO:
        for data in ClusterInfo.from_json(body).broker_addr_table.values():
            who = Registration(data.cluster, data.broker_name, 0, data.broker_addrs[0])
            host.server.routes.register(who, RegisterBrokerBody(), host.peer, 0)


def test_answers_about_all_topics_and_brokers_are_made_once_for_each_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    host.register("T")
    made: list[str] = []
    names = RouteTable.topics
    monkeypatch.setattr(RouteTable, "topics", lambda table: made.append("topics") or names(table))  # type: ignore[func-returns-value]
    host.server._handlers = host.server.handlers()

    def topics() -> list[str]:
        body = host.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body
        return TopicList.from_json(body).topic_list

    assert [topics() for _ in range(5)] == [["T"]] * 5
    assert made == ["topics"]
    host.register("T", "U", version=2)
    assert topics() == ["T", "U"]
    header = headers.DeleteTopicFromNamesrvRequestHeader("T")
    host.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
    assert topics() == ["U"]
    assert ClusterInfo.from_json(host.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body).broker_addr_table
    host.server.on_close(host.peer)  # type: ignore[arg-type]
    assert topics() == []
    assert not ClusterInfo.from_json(host.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body).broker_addr_table


def test_files_are_written_beside_the_loop_and_answers_wait_for_them() -> None:
    rung: list[int] = []
    host = Host(on_pending=lambda: rung.append(1))
    host.server.kv_configs.put("ns", "gone", "v")
    body = registration("Orders")
    of_broker = headers.UnRegisterBrokerRequestHeader("a", "10.0.0.1:10911", "C", 0)
    requests = [
        Command.request(RequestCode.PUT_KV_CONFIG, headers.PutKVConfigRequestHeader("ns", "k", "v")),
        Command.request(RequestCode.DELETE_KV_CONFIG, headers.DeleteKVConfigRequestHeader("ns", "gone")),
        Command.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true"),
        Command.request(RequestCode.REGISTER_BROKER, broker(body), body),
        Command.request(RequestCode.UNREGISTER_BROKER, of_broker),
    ]
    for fails in (False, True):
        for seen in (host.saved, host.changes, rung):
            seen.clear()
        host.fails = False
        host.server.handle(requests, host.peer)  # type: ignore[arg-type]
        assert (host.peer.replies, host.saved, host.changes, len(rung)) == ([], [], [], len(requests))
        host.fails = fails
        answers = host.server.deferred_saves
        while (one := answers.next()) is not None:
            try:
                result = one.write()
            except Exception as error:
                answers.failed(one, error)
            else:
                answers.written(one, result)
        codes = [response.code for response in host.peer.replies]
        assert [response.opaque for response in host.peer.replies] == [request.opaque for request in requests]
        host.peer.replies.clear()
        if not fails:
            assert codes == [0] * 5
            assert host.server.kv_configs.namespace("ns") == KVTable({"k": "v"})
            assert host.server.config.order_message_enable
            assert (len(host.saved), host.changes) == (4, [{"orderMessageEnable": "true"}])
            host.server.kv_configs.put("ns", "gone", "v")
        else:  # brokers serve all the same
            assert codes == [1, 1, 1, 0, 0]
            assert host.server.kv_configs.namespace("ns") == KVTable({"k": "v", "gone": "v"})
