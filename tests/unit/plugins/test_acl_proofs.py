"""Proofs and guesses at the gate: no recorded request is taken again, or as another; guessing is slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rmq_acl.accounts import Account, Accounts
from rmq_acl.login_throttle import ENTRIES_MAX, FREE, PER_SECOND, LoginThrottle
from rmq_acl.request_signing import SESSIONS_MAX, START_SLACK_MS, SignedRequests, _Sessions
from rmq_acl.verify import identify

from rmq.errors import AccessDenied
from rmq.protocol.auth.signature import NONCE, PROOF, SIGNATURE, TIME, WINDOW_MS, Credentials, Prover, signed
from rmq.protocol.codes import RequestCode as Code
from rmq.protocol.command import ROCKETMQ, Command
from rmq.protocol.frames import encode
from tests.unit.broker.rig import START, Wire, batch, send
from tests.unit.plugins.guarded import MANAGER, OTHER, OWNER, TEXT, Guarded

NOW = START
PEER = "10.0.0.1:4"


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


@pytest.fixture
def sign(guarded: Guarded) -> Prover:
    return Prover(MANAGER, lambda: guarded.rig.now_ms)


def told(guarded: Guarded, command: Command, wire: Wire | None = None) -> str:
    """The outcome: `taken`, or the refusal."""
    answers = guarded.rig.ask(command, wire=wire or Wire())
    return answers[0].remark or "" if answers and answers[0].code == 16 else "taken"


def changed(command: Command, code: int, ext: Mapping[str, str], body: bytes | None = None) -> Command:
    return Command(code, 7, command.flag, ext, command.body if body is None else body)


# ---- what is signed ----


def test_a_recorded_request_is_taken_neither_again_nor_as_another(guarded: Guarded, sign: Prover) -> None:
    """RocketMQ's signature alone: the request for a topic's statistics deletes the topic."""
    request = sign(Command.request(Code.GET_TOPIC_STATS_INFO, {"topic": "Orders"}))
    forged = changed(request, Code.DELETE_TOPIC_IN_BROKER, request.ext)
    assert told(guarded, forged) == "Check signature failed for accessKey=manager"
    assert told(guarded, request) == "taken"
    assert told(guarded, request).startswith("the request was sent before")
    assert guarded.rig.broker.topics.get("Orders") is not None

    recorded = signed(Command.request(Code.GET_TOPIC_STATS_INFO, {"topic": "Orders"}), MANAGER)
    assert told(guarded, changed(recorded, Code.DELETE_TOPIC_IN_BROKER, recorded.ext)) == "taken"
    assert guarded.rig.broker.topics.get("Orders") is None  # what `proof: required` is for


@pytest.mark.parametrize("name", [PROOF, NONCE, TIME])
def test_a_proved_request_does_not_pass_as_one_without_proof(
    guarded: Guarded, sign: Prover, name: str
) -> None:
    """Java's signature joins the values alone: with other names, or merged, they give the same bytes."""
    ext = dict(sign(Command.request(Code.GET_TOPIC_STATS_INFO, {"topic": "Orders"})).ext)
    renamed = {field + "x" if field.startswith("Rmq") else field: text for field, text in ext.items()}
    merged = {field: text for field, text in ext.items() if not field.startswith("Rmq")}
    merged["AccessKey2"] = ext[NONCE] + ext[PROOF] + ext[TIME]
    left_out = {field: text for field, text in ext.items() if field != name}
    for header in (renamed, merged, left_out):
        command = Command(Code.DELETE_TOPIC_IN_BROKER, 7, 0, header)
        assert told(guarded, command).startswith("Check signature failed")
    body = (ext[NONCE] + ext[PROOF] + ext[TIME] + "Orders").encode()
    plain = {"AccessKey": "manager", SIGNATURE: ext[SIGNATURE]}
    assert told(guarded, Command(Code.UPDATE_BROKER_CONFIG, 7, 0, plain, body)).startswith("Check signature")


@pytest.mark.parametrize("change", ["flag", "body", "border", "name", "time", "nonce", "code"])
def test_nothing_of_a_proved_request_can_be_changed(guarded: Guarded, sign: Prover, change: str) -> None:
    command = sign(send(body=b"hello"))
    ext, code, body, flag = dict(command.ext), int(command.code), command.body, command.flag
    if change == "flag":
        flag ^= 2
    elif change == "body":
        body += b"!"
    elif change == "border":
        ext["b"], ext["c"] = ext["b"] + ext["c"][0], ext["c"][1:]
    elif change == "name":
        ext["z"] = ext.pop("m")
    elif change == "time":
        ext[TIME] = str(int(ext[TIME]) + 1)
    elif change == "nonce":
        ext[NONCE] += "0"
    else:
        code = Code.SEND_BATCH_MESSAGE
    assert identify(command, guarded.plugin.files.accounts, PEER, SignedRequests(lambda: NOW)).is_signed
    with pytest.raises(AccessDenied, match="Check signature failed"):
        identify(
            Command(code, 7, flag, ext, body),
            guarded.plugin.files.accounts,
            PEER,
            SignedRequests(lambda: NOW),
        )


@pytest.mark.parametrize("serialization", [0, ROCKETMQ])
def test_all_kinds_of_requests_are_proved(guarded: Guarded, serialization: int) -> None:
    sign = Prover(OWNER, lambda: guarded.rig.now_ms)
    for command in (send(), batch(), send(oneway=True), send(body=b"x" * 10_000)):
        command.serialization = serialization
        assert told(guarded, sign(command)) == "taken"
    assert len(guarded.rig.bodies("Orders")) == 6


def test_what_is_signed_by_a_clock_that_is_far_off_is_refused(guarded: Guarded) -> None:
    for ahead, fits in (
        (WINDOW_MS, True),
        (-WINDOW_MS, True),
        (WINDOW_MS + 1, False),
        (-WINDOW_MS - 1, False),
    ):
        guarded.rig.now_ms = START + 10 * WINDOW_MS
        sign = Prover(OWNER, lambda ahead=ahead: guarded.rig.now_ms + ahead)  # type: ignore[misc]
        answer = told(guarded, sign(send()))
        assert answer == "taken" if fits else "compare the clocks" in answer


def test_what_a_process_before_may_have_taken_is_refused(guarded: Guarded) -> None:
    sign = Prover(OWNER, lambda: START - START_SLACK_MS)
    assert "before this server was started" in told(guarded, sign(send()))
    assert told(guarded, Prover(OWNER, lambda: START - START_SLACK_MS + 1)(send())) == "taken"


@pytest.mark.parametrize(
    "nonce", ["", "x", "{mark}", "{mark}AQEBAQEBAQE.x", "{mark}AQEBAQEBAQE.-1", "x" * 99]
)
def test_a_nonce_of_another_form_is_refused(guarded: Guarded, nonce: str) -> None:
    from rmq.protocol.auth.signature import order_of, proof

    account = guarded.plugin.files.accounts.table["owner01"]
    plain = send()
    ext = {**plain.ext, "AccessKey": "owner01", TIME: str(NOW), NONCE: nonce.format(mark=account.key.mark)}
    ext[PROOF] = proof(order_of(ext), ext, plain, account.key)
    assert "another form" in told(guarded, plain.with_ext(ext))


# ---- who must prove ----


def with_proof(tmp_path: Path, mode: str, **settings: str) -> Guarded:
    text = TEXT.replace("admin: true}", f"admin: true, proof: {mode}}}" if mode else "admin: true}")
    return Guarded(tmp_path, text, **settings)


def test_required_takes_no_other_request(tmp_path: Path) -> None:
    guarded = with_proof(tmp_path, "required")
    command = Command.request(Code.GET_BROKER_CONFIG)
    assert "must prove its requests (proof: required)" in told(guarded, signed(command, MANAGER))
    wrong = Credentials("manager", "not the secret")
    assert told(guarded, signed(command, wrong)) == "Check signature failed for accessKey=manager"
    assert told(guarded, Prover(MANAGER, lambda: NOW)(command)) == "taken"
    assert told(guarded, signed(send(), OWNER)) == "taken"


def test_shown_takes_no_other_request_once_one_was_proved(tmp_path: Path) -> None:
    guarded = with_proof(tmp_path, "shown")
    command = Command.request(Code.GET_BROKER_CONFIG)
    assert told(guarded, signed(command, MANAGER)) == "taken"
    assert told(guarded, Prover(MANAGER, lambda: NOW)(command)) == "taken"
    assert "(proof: shown)" in told(guarded, signed(command, MANAGER))


@pytest.mark.parametrize(("mode", "taken"), [("", False), ("optional", True)])
def test_administrators_of_the_secure_profile_must(tmp_path: Path, mode: str, taken: bool) -> None:
    guarded = with_proof(tmp_path, mode, profile="secure")
    answer = told(guarded, signed(Command.request(Code.GET_BROKER_CONFIG), MANAGER))
    assert (answer == "taken") == taken
    assert told(guarded, signed(send(), OWNER)) == "taken"


def test_an_account_serves_clients_of_both_kinds(guarded: Guarded) -> None:
    sign = Prover(OWNER, lambda: guarded.rig.now_ms)
    assert [told(guarded, command) for command in (sign(send()), signed(send(), OWNER))] == ["taken"] * 2


# ---- sessions ----


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.integers(1, 9)), max_size=40))
def test_no_number_of_a_session_is_taken_twice(steps: list[tuple[str, int, int]]) -> None:
    sessions, taken = _Sessions(), set[tuple[str, int]]()
    last: dict[str, int] = {}
    for session, count, time_ms in steps:
        takes = sessions.takes(session, count, time_ms)
        assert takes == (count > last.get(session, 0))
        if takes:
            assert (session, count) not in taken
            taken.add((session, count))
            last[session] = count


def test_sessions_that_are_forgotten_are_not_taken_again() -> None:
    sessions = _Sessions()
    for number in range(SESSIONS_MAX + 10):
        assert sessions.takes(f"s{number}", 1, 1000 + number)
    assert len(sessions.table) == SESSIONS_MAX
    assert not any(sessions.takes(f"s{number}", 9, 1000 + number) for number in range(10))
    assert sessions.takes("new", 1, 5000)


def test_sessions_of_accounts_that_are_gone_are_forgotten() -> None:
    proofs, account = SignedRequests(lambda: NOW), Account("owner01", OWNER.secret_key)
    identify(Prover(OWNER, lambda: NOW)(send()), Accounts({"owner01": account}), PEER, proofs)
    proofs.forget_others({"owner01": account})
    assert list(proofs._sessions) == ["owner01"]
    proofs.forget_others({})
    assert not proofs._sessions


# ---- guesses ----


class Seconds:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds(guarded: Guarded) -> Iterator[Seconds]:
    clock = Seconds()
    guarded.plugin._senders._guesses = LoginThrottle(clock)
    return clock  # type: ignore[return-value]


def test_an_unknown_account_and_a_wrong_secret_are_answered_alike(guarded: Guarded) -> None:
    unknown = told(guarded, signed(send(), Credentials("nobody1", "whatever-it-is")))
    wrong = told(guarded, signed(send(), Credentials("owner01", "whatever-it-is")))
    assert unknown.replace("nobody1", "owner01") == wrong
    lines = guarded.lines()
    assert "No acl config for nobody1" in lines[-2]  # the operator is told
    assert "Check signature failed for accessKey=owner01" in lines[-1]


@pytest.mark.parametrize("name", ["owner01", "nobody1"])
def test_guesses_are_slowed(guarded: Guarded, seconds: Seconds, name: str) -> None:
    guesses = [signed(send(), Credentials(name, f"guess number {number}")) for number in range(3 * FREE)]
    answers = [told(guarded, guess) for guess in guesses]
    assert [answer.startswith("Check signature") for answer in answers] == [True] * FREE + [False] * 2 * FREE
    assert "too many wrong signatures" in answers[-1]
    assert "too many wrong" in told(guarded, signed(send(), Credentials(name, OWNER.secret_key)))
    seconds.now += 10 / PER_SECOND
    answers = [told(guarded, guess) for guess in guesses]
    assert sum(answer.startswith("Check signature") for answer in answers) == 10


def test_guesses_shut_nobody_else_out(guarded: Guarded, seconds: Seconds) -> None:
    proven = Wire("10.0.0.66:9")
    assert told(guarded, signed(send(), OWNER), proven) == "taken"
    for number in range(2 * FREE):
        guess = signed(send(), Credentials("owner01", f"guess number {number}"))
        assert told(guarded, guess, Wire(f"10.0.0.66:{number}")) != "taken"
    assert told(guarded, signed(send(), OWNER), Wire("10.0.0.7:1")) == "taken"
    assert told(guarded, signed(send("Others"), OTHER), Wire("10.0.0.66:1")) == "taken"
    assert told(guarded, signed(send(), OWNER), proven) == "taken"
    assert "too many" in told(guarded, signed(send(), OWNER), Wire("10.0.0.66:2"))
    seconds.now += 1 / PER_SECOND
    assert told(guarded, signed(send(), OWNER), Wire("10.0.0.66:2")) == "taken"


def test_a_connection_that_was_known_guesses_no_faster(guarded: Guarded, seconds: Seconds) -> None:
    wire = Wire()
    assert told(guarded, signed(send(), OWNER), wire) == "taken"
    answers = [
        told(guarded, signed(send(), Credentials("owner01", f"guess {number}")), wire)
        for number in range(FREE + 1)
    ]
    assert "too many" in answers[-1]


def test_from_a_white_address_secrets_are_guessed_no_faster(guarded: Guarded, seconds: Seconds) -> None:
    config = Command.request(Code.GET_BROKER_CONFIG)
    for number in range(2 * FREE):
        guess = signed(config, Credentials("manager", f"guess number {number}"))
        assert "Need admin permission" in told(guarded, guess, Wire("10.5.5.5:1"))
    assert "Need admin permission" in told(guarded, signed(config, MANAGER), Wire("10.5.5.5:1"))
    assert (
        told(guarded, signed(send(), Credentials("manager", "wrong-secret")), Wire("10.5.5.5:1")) == "taken"
    )
    seconds.now += 60
    assert told(guarded, signed(config, MANAGER), Wire("10.5.5.5:1")) == "taken"


def test_the_table_of_guesses_has_a_bound() -> None:
    guesses = LoginThrottle(lambda: 0.0)
    for number in range(ENTRIES_MAX + 50):
        guesses.failed("10.0.0.1", f"name {number}" + "x" * 1000)
    assert len(guesses._until) == ENTRIES_MAX
    assert max(len(name) for _, name in guesses._until) == 128


def test_the_newest_guesses_are_remembered_when_the_table_is_full() -> None:
    guesses = LoginThrottle(lambda: 0.0)
    for number in range(ENTRIES_MAX):
        guesses.failed("10.0.0.1", f"name {number}")
    for _ in range(2 * FREE):
        guesses.failed("10.0.0.1", "owner")
    guesses.failed("10.0.0.1", "another")
    with pytest.raises(AccessDenied, match="accessKey=owner"):
        guesses.check("10.0.0.1", "owner")


def test_headers_of_strangers_leave_nothing_behind(guarded: Guarded) -> None:
    """256 headers, each with 2 MB of names, were 501 MB."""
    from rmq.protocol.auth.signature import _ORDERS

    before = dict(_ORDERS)
    for number in range(20):
        ext = {"AccessKey": "owner01", SIGNATURE: "x", f"made up {number}": "y"}
        told(guarded, Command.request(Code.SEND_MESSAGE_V2, ext), Wire(f"10.0.1.{number}:1"))
        told(guarded, Command.request(Code.SEND_MESSAGE_V2, {**ext, PROOF: "x"}), Wire(f"10.0.2.{number}:1"))
    assert before == _ORDERS


def test_a_proved_request_is_not_longer_than_it_need_be() -> None:
    plain = len(encode(signed(send(), OWNER)))
    assert len(encode(Prover(OWNER, lambda: NOW)(send()))) - plain < 160
