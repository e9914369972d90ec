"""One test for each published flaw of RocketMQ, by its number: ours does not have it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from rmq_acl import AclPlugin

from rmq.broker.config import BrokerConfig
from rmq.broker.plugin_host import plugin_host
from rmq.config import java_key, properties_text
from rmq.errors import CorruptRecord, RmqError
from rmq.message import parse_offset_message_id
from rmq.namesrv.config import NamesrvConfig
from rmq.plugin import hooks_of
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.bodies import (
    ConsumerData,
    DataVersion,
    HeartbeatData,
    SubscriptionData,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
)
from rmq.protocol.record import Record, encode_record
from rmq.remoting.transports.tls import TlsConfig
from rmq.store.config import BrokerRole, StoreConfig
from tests.unit.broker.rig import Rig, Wire, batch, pull, send
from tests.unit.namesrv.host import Host

ACCOUNTS = """
globalWhiteRemoteAddresses: [10.5.5.5]
accounts:
  - {accessKey: manager, secretKey: admin-secret-1, admin: true}
  - {accessKey: lowuser, secretKey: lowuser-secret-1, whiteRemoteAddress: 10.6.6.6}
"""


@pytest.mark.parametrize(
    ("account", "peer"),
    [
        (Credentials("lowuser", "lowuser-secret-1"), "10.0.0.1:1"),
        (None, "10.5.5.5:1"),  # the global white list
        (Credentials("lowuser", "wrong"), "10.6.6.6:1"),  # the account's own
        (Credentials("manager", "wrong"), "10.0.0.1:1"),
    ],
)
def test_cve_2024_23321_secrets_are_told_to_nobody(
    tmp_path: Path, account: Credentials | None, peer: str
) -> None:
    """Any account, and any white address, could read the secrets of all accounts (request 54)."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    rig = Rig(acl_file=str(file))
    rig.broker.use_plugins(hooks_of([("acl", AclPlugin({}, plugin_host(rig.broker)))]))
    for code in (50, 51, 52, 53, 54):
        request = Command.request(
            code, {"accessKey": "lowuser", "secretKey": "lowuser-secret-2", "admin": "true"}
        )
        refused = rig.one(signed(request, account) if account else request, wire=Wire(peer))
        assert (refused.code, refused.body) == (16, b"")
    manager = Credentials("manager", "admin-secret-1")
    told = rig.one(signed(Command.request(54), manager), wire=Wire("10.0.0.1:1"))
    assert b"lowuser" in told.body
    assert b"-secret-" not in told.body
    assert file.read_text() == ACCOUNTS


# CVE-2023-33246 and CVE-2023-37582: a setting changed from afar chose which file is written or what is run.

BROKER_FIELDS = [
    (cls, field) for cls in (BrokerConfig, StoreConfig, TlsConfig) for field in attrs.fields(cls)
]
NOT_NUMBERS = {"delete_when", "ha_diverged_log", "namesrv_addr", "read_at_slaves"}
"""Settings that may change and are neither a number nor yes or no: hours, one of two words, addresses as
``host:port``, names of languages."""


def name_of(value: Any) -> str | None:
    return getattr(value, "name", None)


@pytest.mark.parametrize(("cls", "field"), BROKER_FIELDS, ids=name_of)
def test_cve_2023_33246_only_listed_settings_of_a_broker_change_from_afar(
    tmp_path: Path, cls: type[Any], field: attrs.Attribute[Any]
) -> None:
    """Of each setting: by its Java key and by its name, with a harmless change before it in the request."""
    kept = tmp_path / "broker.conf"
    rig = Rig(config_store_path=str(kept))
    before = rig.one(Command.request(RequestCode.GET_BROKER_CONFIG)).body
    assert before
    assert (
        not field.metadata.get("runtime") or str(field.type) in ("int", "bool") or field.name in NOT_NUMBERS
    )
    for key in dict.fromkeys((java_key(field), field.name)):
        text = properties_text({"storeReplyMessageEnable": "false", key: "$(touch /tmp/x)"})
        refused = rig.one(Command.request(RequestCode.UPDATE_BROKER_CONFIG, None, text.encode()))
        assert refused.code == 1
        assert (refused.remark or "").startswith("nothing was changed: ")
        assert rig.one(Command.request(RequestCode.GET_BROKER_CONFIG)).body == before
        assert not kept.exists()


def test_cve_2023_33246_the_published_attack_changes_nothing() -> None:
    rig = Rig()
    body = b"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch /tmp/x;\n"
    refused = rig.one(Command.request(RequestCode.UPDATE_BROKER_CONFIG, None, body))
    assert refused.code == 1
    assert b"touch" not in rig.one(Command.request(RequestCode.GET_BROKER_CONFIG)).body


@pytest.mark.parametrize("field", attrs.fields(NamesrvConfig), ids=name_of)
def test_cve_2023_37582_no_path_of_a_name_server_changes_from_afar(field: attrs.Attribute[Any]) -> None:
    """The name server wrote its settings into any file, with any text, after configStorePath was changed."""
    host = Host()
    assert not field.metadata.get("runtime") or str(field.type) == "bool"
    for key in dict.fromkeys((java_key(field), field.name)):
        text = properties_text({"orderMessageEnable": "true", key: "/etc/cron.d/x"})
        assert host.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, text.encode()).code == 16
    assert not host.server.config.order_message_enable
    assert host.changes == []


def test_cve_2023_37582_the_published_attack_writes_nothing() -> None:
    host = Host()
    body = b"configStorePathName=productEnvName\nproductEnvName=/tmp/x\\n* * * * * root sh\n"
    assert host.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, body).code == 16
    assert host.changes == []


@pytest.mark.parametrize("topic", ["../../../../tmp/x", "..", "a/../../b", "/etc/x", "a\\b", "a\0b"])
def test_cve_2019_17572_topics_name_no_folder_but_their_own(topic: str) -> None:
    """A topic made by a send named a folder outside the store, which the clean-up of topics then emptied."""
    rig = Rig()
    make = CreateTopicRequestHeader(topic, "TBW102", 1, 1, 6, "SINGLE_TAG")
    place = parse_offset_message_id(rig.one(send()).ext["msgId"])[1]
    requests = [
        send(topic),
        send(topic, code=RequestCode.SEND_MESSAGE),
        batch(topic),
        send(topic, properties="DELAY\x011\x02UNIQ_KEY\x01A"),
        send(topic, properties="TIMER_DELAY_SEC\x019\x02UNIQ_KEY\x01A"),
        send(topic, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01A"),
        Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, make),
        Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic)),
        Command.request(
            RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(place, topic, 0)
        ),
        pull(topic),
        pull(consumer_group=topic),
    ]
    assert all(answer.code for answer in rig.ask(*requests))
    subscription = SubscriptionData(topic=topic, sub_string="*")
    consumers = [
        ConsumerData(group_name=group, subscription_data_set=[subscription]) for group in (topic, "g")
    ]
    rig.ask(Command.request(RequestCode.HEART_BEAT, None, HeartbeatData("c", [], consumers).to_json()))
    rig.broker.saves()
    assert rig.one(Command.request(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert topic not in rig.broker.topics.table
    assert all(path.startswith("/store/") and ".." not in path for path in rig.disk._files)
    assert {known for known, _ in rig.store.queues()} == {"Orders"}
    assert all(topic not in known for known in (*rig.broker.topics.table, *rig.broker.groups.table))


def test_cve_2019_17572_a_slave_takes_no_such_topic_from_its_master() -> None:
    """A program that answers in a master's place sends a table of topics, and records of the log."""
    rig = Rig(store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
    table = {topic: TopicConfig(topic, 1, 1) for topic in ("../../x", "/etc/x", "Orders")}
    body = TopicConfigSerializeWrapper(table, DataVersion(1, 1)).to_json()
    with suppress(RmqError):
        rig.broker.followed.copy("topics", body)
    record = Record("../../x", 0, b"body", born_host=bytes(8))
    with pytest.raises(CorruptRecord):
        rig.broker.copied_log.append(0, memoryview(encode_record(record, bytes(8))))
    rig.store.close()
    again = Rig(disk=rig.disk, store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
    again.one(Command.request(RequestCode.CLEAN_UNUSED_TOPIC))
    assert all(path.startswith("/store/") and ".." not in path for path in again.disk._files)
