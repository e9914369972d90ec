"""Permissions: Java's decisions where ours are equal, and each difference."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import attrs
import pytest
from attrs import evolve
from rmq_acl import addresses, permissions, plainfile
from rmq_acl.accounts import Account, Accounts
from rmq_acl.explain import explain
from rmq_acl.request_signing import SignedRequests
from rmq_acl.rules import CLIENT_CODES, HEADERS, RULES, TOPIC, Level, check, may
from rmq_acl.verify import identify

from rmq.errors import AccessDenied
from rmq.message import MessageQueue
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.protocol import codes
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.bodies import ConsumerData, HeartbeatData, LockBatchRequestBody, SubscriptionData
from rmq.protocol.codes import CONTROLLER_CODES, IDEMPOTENT_SEND, RECALL_MESSAGE, RequestCode
from rmq.protocol.command import SEND_V2_CODES, Command
from rmq.protocol.fields import java_name
from rmq.protocol.headers import SendMessageRequestHeader, encode_send_v2
from tests.unit.broker.rig import Rig

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "acl_rules.json").read_text())
ACCOUNTS = plainfile.merge([plainfile.read("plain_acl.yml", GOLDEN["plain_acl_yml"].encode())])

STRICTER = {
    (320, "topicA"): "No default permission for topic:topicA",
    (14, "topicA"): "No default permission for topic:topicA",
    (29, "topicA"): "No default permission for topic:topicA",
    (41, None): "request code=41 cannot be read",
}
"""Java lets these pass: it checks them for a valid signature only."""


def decide(command: Command, peer: str = "1.2.3.4:5", accounts: Accounts = ACCOUNTS, **topic: str) -> str:
    """`allowed`, or the words of the refusal."""
    try:
        check(
            command,
            identify(command, accounts, peer, SignedRequests(lambda: 0)),
            lambda offset: topic.get("topic"),
        )
    except AccessDenied as error:
        return error.remark if error.code == 16 else f"code {error.code}"
    return "allowed"


def fill(code: int, given: dict[str, str]) -> dict[str, str]:
    """A header as a client would send it: what it must have and is not given is 0."""
    kind = HEADERS.get(code)
    if kind is None:
        return dict(given)
    if code in SEND_V2_CODES:
        return encode_send_v2(SendMessageRequestHeader(*["0"] * 2, "0", *[0] * 5)) | given  # type: ignore[arg-type]
    needed = [java_name(field) for field in attrs.fields(kind) if _is_needed(field)]
    return dict.fromkeys(needed, "0") | given


def _is_needed(field: attrs.Attribute[Any]) -> bool:
    return field.default is attrs.NOTHING or bool(field.metadata.get("required"))


def heartbeat(text: str | None) -> bytes:
    if text is None:
        return b""
    group, topic = text.split("/")
    data = ConsumerData(group, subscription_data_set=[SubscriptionData(topic, "*")])
    return HeartbeatData("c", [], [data]).to_json()


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['code']}")
def test_decisions_are_those_of_java(case: dict[str, Any]) -> None:
    given, code = dict(case["ext_fields"] or {}), case["code"]
    body = heartbeat(given.pop("hb", None)) if code == 34 else b""
    command = Command.request(code, fill(code, given), body)
    if case["accessKey"] is not None:
        command = signed(command, Credentials(case["accessKey"], case["secretKey"]))

    expected = case["result"].removeprefix("denied: ")
    expected = STRICTER.get((code, given.get("topic", given.get("b"))), expected)
    if expected.startswith("No acl config for "):  # Java tells which accounts there are
        expected = f"Check signature failed for accessKey={case['accessKey']}"
    if "_UNIQUE_KEY_QUERY" in given:
        expected = "allowed"  # Java refuses its own clients of 4.9 here
    assert decide(command, case["remote"]).startswith(expected)


def test_old_clients_do_not_sign_the_mark_of_a_unique_key() -> None:
    account = Credentials("RocketMQ", "12345678")
    command = signed(Command.request(12, fill(12, {"topic": "topicB"})), account)
    marked = Command.request(12, {**command.ext, "_UNIQUE_KEY_QUERY": "true"})
    assert decide(marked) == "allowed"
    other = Command.request(29, {**signed(Command.request(29, fill(29, {"topic": "topicB"})), account).ext})
    assert decide(other) == "allowed"
    assert decide(Command.request(29, {**other.ext, "_UNIQUE_KEY_QUERY": "true"})).startswith(
        "Check signature"
    )


def test_permissions_are_those_of_java() -> None:
    texts = {"pub", "ANY", "PUB | SUB"}  # Java takes them for DENY without a word; we refuse the file
    for row in GOLDEN["permission_text"]:
        if row["text"] in texts:
            with pytest.raises(ValueError, match="one of DENY, PUB"):
                permissions.parse(row["text"])
        else:
            assert permissions.parse(row["text"]) == row["value"]
    for needed, owned, result in GOLDEN["check_permission_needed_owned_result"]:
        if needed != 1:
            assert permissions.allows(needed, owned) is result


@pytest.mark.parametrize("row", GOLDEN["white_address"], ids=lambda row: f"{row['pattern']} {row['address']}")
def test_white_addresses_are_those_of_java(row: dict[str, Any]) -> None:
    if "error" in row:
        with pytest.raises(ValueError, match=r"address|number"):
            addresses.parse(row["pattern"])
    else:
        assert (row["address"] in addresses.parse(row["pattern"])) is row["match"]


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("1.*.1.1", "1.9.1.1", "1.9.1.2"),
        ("10.0.0.{1,3-5}, 10.1.*.9", "10.1.7.9", "10.0.0.2"),
        ("2001:db8::1-ff", "2001:db8::fe", "2001:db8::100"),
        ("192.168.0.*", "::ffff:192.168.0.7", "::ffff:192.168.1.7"),
        ("fe80::1", "fe80::1%eth0", "not an address"),
    ],
)
def test_every_part_of_a_white_address_counts(pattern: str, inside: str, outside: str) -> None:
    assert inside in addresses.parse(pattern)
    assert outside not in addresses.parse(pattern)


@pytest.mark.parametrize(
    "pattern", ["1.1.1", "1.1.1.x", "1.1.1.1-", "::1::", "1:2", "{1,2}", "1.1.1.-5", "1..1.1"]
)
def test_addresses_that_nobody_could_read(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"address|number"):
        addresses.parse(pattern)


# ---- what Java lets through ----

LOW = Credentials("lowuser", "low-secret-1")
TABLE = Accounts(
    {
        "lowuser": Account(
            "lowuser", "low-secret-1", topics={"mine": permissions.PUB, "read": permissions.SUB}
        ),
        "reader1": Account("reader1", "reader-secret", default_topic=8, default_group=8),
        "manager": Account("manager", "admin-secret", admin=True, white=addresses.parse("10.9.9.9")),
    },
    (addresses.parse("10.5.5.*"),),
)


def ask(
    code: int, given: dict[str, str], who: Credentials | None = LOW, body: bytes = b"", **more: str
) -> str:
    command = Command.request(code, fill(code, given), body)
    if who is not None:
        command = signed(command, who)
    return decide(command, more.pop("peer", "1.2.3.4:5"), TABLE, **more)


def test_a_message_is_read_by_its_place_only_with_its_topic() -> None:
    assert ask(33, {"offset": "7"}, topic="theirs") == "No default permission for topic:theirs"
    assert ask(33, {"offset": "7"}, topic="read") == "allowed"
    assert ask(33, {"offset": "7"}) == "allowed"  # nothing is there: the answer says so
    assert ask(33, {"offset": "x"}).startswith("request code=33 cannot be read")


def test_giving_back_needs_the_group_and_the_topic_of_what_is_copied() -> None:
    reader = Credentials("reader1", "reader-secret")
    assert ask(36, {"group": "g", "offset": "7"}, reader, topic="any") == "allowed"
    assert ask(36, {"group": "g", "offset": "7"}, topic="read") == "No default permission for group:g"
    secret = ask(36, {"group": "g", "offset": "7"}, reader, topic="SCHEDULE_TOPIC_XXXX")
    assert secret == "No default permission for topic:SCHEDULE_TOPIC_XXXX"


def test_who_may_read_a_topic_may_look_at_it_with_tools() -> None:
    """Their group keeps nothing; a group of one's own is still needed to commit offsets."""
    assert ask(11, {"topic": "read", "consumerGroup": "TOOLS_CONSUMER"}) == "allowed"
    assert ask(11, {"topic": "read", "consumerGroup": "g"}) == "No default permission for group:g"
    assert ask(11, {"topic": "mine", "consumerGroup": "TOOLS_CONSUMER"}).startswith("No default permission")
    for code in (14, 15):
        given = {"topic": "read", "consumerGroup": "TOOLS_CONSUMER"}
        assert ask(code, given) == "No default permission for group:TOOLS_CONSUMER"


def test_a_transaction_is_ended_by_who_may_write_its_topic() -> None:
    end = {"commitLogOffset": "7", "tranStateTableOffset": "0", "commitOrRollback": "8"}
    assert ask(37, end, topic="mine") == "allowed"
    assert ask(37, end, topic="read") == "No default permission for topic:read"


def test_a_retry_topic_belongs_to_its_own_group() -> None:
    """Java looks at the group that the header claims."""
    assert ask(310, {"b": "%RETRY%theirs", "a": "mine"}) == "No default permission for group:theirs"


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"])
def test_a_default_permission_does_not_reach_what_holds_all_topics(topic: str) -> None:
    reader = Credentials("reader1", "reader-secret")
    assert (
        ask(11, {"topic": topic, "consumerGroup": "g"}, reader) == f"No default permission for topic:{topic}"
    )
    assert ask(11, {"topic": "other", "consumerGroup": "g"}, reader) == "allowed"


@pytest.mark.parametrize("topic", ["%DLQ%pay", "DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRACE_TOPIC"])
def test_a_default_does_not_reach_copies_of_what_entries_deny(topic: str) -> None:
    """`defaultTopicPerm: SUB` read the dead letters of denied groups, and what others were answered."""
    account = Account("reader1", "reader-secret", default_topic=12, default_group=8, topics={"Pay": 1})
    assert not may(account, TOPIC, topic, permissions.SUB)
    assert may(account, TOPIC, topic, permissions.PUB) is not topic.startswith("%DLQ%")
    assert may(evolve(account, topics={topic: permissions.SUB}), TOPIC, topic, permissions.SUB)
    assert may(Account("manager", "m", admin=True), TOPIC, topic, permissions.SUB)
    assert may(account, TOPIC, "other", permissions.SUB)
    said = explain(account, TOPIC, topic, permissions.SUB)
    assert not said.is_allowed
    assert "only an entry of its own allows it" in said.reason


def test_an_address_makes_nobody_an_administrator() -> None:
    unsigned = {"AccessKey": "manager", "topic": "any"}
    assert ask(10, unsigned, None, peer="10.9.9.9:1") == "allowed"
    assert ask(25, unsigned, None, peer="10.9.9.9:1").startswith("Check signature failed")
    assert ask(25, {}, None, peer="10.5.5.5:1").startswith("Need admin permission")
    assert ask(25, {}, Credentials("manager", "admin-secret"), peer="10.5.5.5:1") == "allowed"
    assert ask(103, {}, None, peer="10.5.5.5:1") == "allowed"
    assert ask(103, {}) == "Need admin permission for request code=103, but accessKey=lowuser is not"


def test_a_lock_needs_its_group_and_topics() -> None:
    body = LockBatchRequestBody("g", "c", frozenset({MessageQueue("mine", "b", 0)})).to_json()
    assert ask(41, {}, body=body) == "No default permission for group:g"
    assert ask(41, {}, Credentials("reader1", "reader-secret"), body=body) == "allowed"


def test_messages_one_by_one_need_their_group_and_topic() -> None:
    header = {"consumerGroup": "g", "topic": "mine", "queueId": "0", "extraInfo": "x", "offset": "0"}
    pop = header | dict.fromkeys(("maxMsgNums", "invisibleTime", "pollTime", "bornTime", "initMode"), "1")
    body = b'{"acks":[{"c":"g","t":"mine"}],"brokerName":"b"}'
    for code, fields, data in (
        (codes.POP_MESSAGE, pop, b""),
        (codes.ACK_MESSAGE, header, b""),
        (codes.CHANGE_MESSAGE_INVISIBLETIME, header | {"invisibleTime": "1"}, b""),
        (codes.BATCH_ACK_MESSAGE, {}, body),
    ):
        assert ask(code, fields, body=data).startswith("No default permission for ")
        assert ask(code, fields, Credentials("reader1", "reader-secret"), body=data) == "allowed"


def test_a_changed_body_or_header_is_noticed() -> None:
    command = signed(Command.request(310, fill(310, {"b": "mine"}), b"body"), LOW)
    proofs = SignedRequests(lambda: 0)
    assert identify(command, TABLE, "1.2.3.4:5", proofs).name == "lowuser"
    for changed in (
        Command.request(310, command.ext, b"bodY"),
        Command.request(310, {**command.ext, "b": "Mine"}, b"body"),
        Command.request(310, {**command.ext, "Signature": "é"}, b"body"),
        Command.request(310, {**command.ext, "Signature": ""}, b"body"),
    ):
        with pytest.raises(AccessDenied, match="Check signature failed for accessKey=lowuser"):
            identify(changed, TABLE, "1.2.3.4:5", proofs)


# ---- all codes ----

OF_5X = {
    codes.LITE_PULL_MESSAGE,
    codes.POP_MESSAGE,
    codes.ACK_MESSAGE,
    codes.BATCH_ACK_MESSAGE,
    codes.CHANGE_MESSAGE_INVISIBLETIME,
    codes.NOTIFICATION,
    codes.POLLING_INFO,
    codes.GET_TOPIC_CONFIG,
    codes.GET_SUBSCRIPTIONGROUP_CONFIG,
    codes.QUERY_ASSIGNMENT,
    codes.SET_MESSAGE_REQUEST_MODE,
    codes.GET_ALL_MESSAGE_REQUEST_MODE,
}
SERVED = {
    *map(int, Rig().broker.handlers),
    *map(
        int, NameServer(NamesrvConfig(), now_ms=lambda: 0, kv_configs=KvConfigs(lambda data: None)).handlers()
    ),
}


def test_every_code_has_a_rule_or_is_no_request_to_a_server() -> None:
    assert not SERVED - RULES.keys()
    assert {int(code) for code in RequestCode} - RULES.keys() == {int(code) for code in CLIENT_CODES}
    more = {RECALL_MESSAGE, IDEMPOTENT_SEND, *CONTROLLER_CODES, *OF_5X}
    assert RULES.keys() - set(map(int, RequestCode)) == more


@pytest.mark.parametrize("code", [*CLIENT_CODES, 0, 9999, -1, 200_056])
def test_unknown_codes_are_refused_to_everybody(code: int) -> None:
    manager = Credentials("manager", "admin-secret")
    expected = f"request code={int(code)} is not known to the access rules"
    assert ask(code, {}, manager) == expected
    assert ask(code, {}, None, peer="10.5.5.5:1") == expected


OWNED = {
    "owner01": Account(
        "owner01",
        "owner-secret",
        topics={"T": permissions.PUB | permissions.SUB},
        groups={"G": permissions.SUB},
    ),
    "other01": Account("other01", "other-secret", topics={"X": 12}, groups={"X": 12}),
    "manager": Account("manager", "admin-secret", admin=True),
}
NAMES_OF_T = ("topic", "b")
NAMES_OF_G = ("consumerGroup", "group", "a", "producerGroup")
OPEN = {RequestCode.GET_BROKER_CLUSTER_INFO}
"""What any account may ask."""


def request_of(code: int) -> Command:
    """A request about topic T and group G."""
    given = fill(code, {})
    given |= {name: "T" for name in NAMES_OF_T if name in given}
    given |= {name: "G" for name in NAMES_OF_G if name in given}
    if code == RequestCode.UNREGISTER_CLIENT:
        given["consumerGroup"] = "G"
    if code == RequestCode.QUERY_CONSUME_QUEUE:
        given["topic"] = "T"
    bodies = {
        RequestCode.HEART_BEAT: heartbeat("G/T"),
        RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody(
            "G", "c", frozenset({MessageQueue("T", "b", 0)})
        ).to_json(),
        RequestCode.CHECK_CLIENT_CONFIG: b'{"clientId":"c","group":"G","subscriptionData":{"topic":"T"}}',
    }
    bodies[RequestCode.UNLOCK_BATCH_MQ] = bodies[RequestCode.LOCK_BATCH_MQ]
    of_5x = {
        codes.BATCH_ACK_MESSAGE: b'{"acks":[{"c":"G","t":"T"}],"brokerName":"b"}',
        codes.QUERY_ASSIGNMENT: b'{"consumerGroup":"G","topic":"T"}',
    }
    body = bodies.get(RequestCode(code), b"") if code in set(RequestCode) else of_5x.get(code, b"")
    return Command.request(code, given, body)


@pytest.mark.parametrize("code", sorted(RULES))
def test_all_codes_by_all_kinds_of_senders(code: int) -> None:
    level, plain, table = RULES[code].level, request_of(code), Accounts(OWNED)

    def answer(who: str) -> str:
        command = signed(plain, Credentials(who, OWNED[who].secret_key)) if who else plain
        return decide(command, accounts=table, topic="T")

    assert answer("") == "No accessKey is configured"
    assert answer("manager") == "allowed"
    if level is Level.ACCOUNT:
        assert answer("owner01") == "allowed"
        assert answer("other01") == "allowed" if code in OPEN else answer("other01").startswith("No default")
    else:
        need = f"Need admin permission for request code={code}, but accessKey="
        assert answer("owner01") == f"{need}owner01 is not"
        assert answer("other01") == f"{need}other01 is not"
