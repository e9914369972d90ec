"""`rmq errors`: meanings of response codes, and remedies."""

from __future__ import annotations

import sys
from typing import Final

import click
from attrs import frozen

from rmq import errors as tree
from rmq.cli.output import EXIT_FAILED, Format, echo, output_option, show
from rmq.errors import ResponseError, RmqError
from rmq.protocol.codes import ResponseCode

# Codes without an exception of their own: most are not errors of a request, or only of RocketMQ's tools.
MEANINGS: Final = {
    0: "Done.",
    4: "The transaction could not be carried out.",
    15: "The broker does not serve a client of this version.",
    18: "There is a topic of that name already.",
    27: "The broker has no filter data for this consumer yet.",
    28: "The broker has newer filter data than the request names.",
    200: "The local transaction is to be committed.",
    201: "The local transaction is to be rolled back.",
    202: "The result of the local transaction is not known yet.",
    203: "The transaction has another producer group.",
    207: "The client did not consume the message in time.",
    208: "No such message.",
    209: "The account could not be made or changed.",
    210: "The account could not be deleted.",
    211: "The global white addresses could not be changed.",
    215: "The broker limits how fast this client may ask.",
}

ADVICE: Final = {
    1: "Read the remark and the server's log; try again.",
    2: "Slow down or add brokers; the remark has the wait, the queue and the last flush. `rmq doctor` looks.",
    3: "Check the kind and the version of the server that answered: `rmq cluster list` shows versions.",
    4: "Read the remark; send again.",
    10: "The message is stored. If this repeats, the disk is slow: see syncFlushTimeout.",
    11: "The message is stored. Start a slave, or let the master be ASYNC_MASTER.",
    12: "The message is stored. If this repeats, the slave is slow: see slaveTimeout.",
    13: "Correct the message: body up to maxMessageSize, properties up to 32 KiB, a topic one may send to.",
    14: "Check the disk or the role of the broker, as the remark says. `rmq doctor` checks both.",
    15: "Take a newer client.",
    16: "Check the topic's permission (`rmq topic show`) and the account (`rmq acl explain`).",
    17: "Create it: `rmq topic create TOPIC`; or set autoCreateTopicEnable=true on the broker.",
    18: "Take another name.",
    19: "Nothing: wait, the pull continues.",
    20: "Nothing: the pull continues at the offset in the answer.",
    21: "Continue at the offset in the answer; `rmq group reset` moves a group on purpose.",
    22: "Check the key, the id and the time; messages older than fileReservedTime are deleted.",
    23: "Correct the expression; SQL needs enablePropertyFilter=true on the broker.",
    24: "Give all members of the group the same subscriptions; `rmq group members` shows the differences.",
    25: "Restart the members that have the older subscription.",
    26: "Create it: `rmq group create GROUP`; or set autoCreateSubscriptionGroup=true on the broker.",
    27: "Wait for the next heartbeat.",
    28: "Wait for the next heartbeat.",
    204: "Give messages their buyer id, or send to a broker that asks for none.",
    205: "Send to another broker of the topic.",
    206: "Start a member of the group; `rmq group members` shows them.",
    207: "See how the client handles it: `rmq group members --stack`.",
    208: "Check the id; the message may have been deleted.",
    209: "Read the remark; only admins may do this.",
    210: "Read the remark; only admins may do this.",
    211: "Read the remark; only admins may do this.",
    215: "Slow down.",
}

LOCAL_ADVICE: Final = {
    "ConfigError": "Correct the setting: the text has its name, its value and the expected form.",
    "InvalidName": "Use 1 to 127 letters, digits and % | _ -.",
    "LocalProtocolError": "Correct the call: the error names the fault.",
    "RemoteProtocolError": "Check that the address belongs to a RocketMQ server, and that both sides use "
    "TLS or neither.",
    "ConnectFailed": "Does the server run, and can the address be reached from here? `rmq doctor` looks.",
    "ConnectionLost": "Try again; the request may have been carried out.",
    "RequestTimeout": "Try again or wait longer; the request may have been carried out.",
    "ReplyTimeout": "Do consumers of that topic run, and do they reply?",
    "PortInUse": "Stop the other process or choose another port.",
    "NoRoute": "Create the topic, or check with `rmq cluster list` that brokers are registered.",
    "Unreachable": "Do the name servers run, and can their addresses be reached? `rmq doctor` looks.",
    "InvalidType": "Correct the call: the text has the argument and the expected form.",
    "InvalidMessage": "Correct the message: the text has the field and the allowed values.",
    "InvalidMessageType": "Correct the message: the text has the field and the expected type.",
    "AccessDenied": "Check the account and its secret; with a right one, its permissions.",
    "AskerGone": "Nothing: drop the request.",
    "SendFailed": "The text lists each attempt; the last one's advice counts.",
    "StoreError": "Look at the broker's log and disk; `rmq store check DIR` looks into its folder.",
    "CorruptRecord": "`rmq store check DIR`, then `rmq store repair`.",
    "DiskFull": "Free some room, or let the broker keep messages for less time (fileReservedTime).",
    "OffsetOutOfRange": "Read from the minimum offset of the queue on.",
    "StoreLocked": "Stop the other broker, or choose another folder (storePathRootDir).",
}


@frozen
class Explanation:
    """The facts about a code, or about an error without a code (`code` None)."""

    code: int | None
    name: str
    error: str
    retriable: bool
    meaning: str
    what_to_do: str


@click.command()
@click.argument("what", metavar="[CODE|NAME]", required=False)
@output_option
def errors(what: str | None, output: Format) -> None:
    """Explain a response code or an error: its meaning, whether to try again, and the remedy.

    CODE is the number in a response (17), NAME that of the code (TOPIC_NOT_EXIST) or of rmq's exception
    (TopicNotExist). Without either, all are listed.
    """
    known = explanations()
    if what is None:
        show(known, output, columns=("code", "name", "error", "retriable", "meaning"))
        return
    found = [one for one in known if _fits(one, what)]
    if not found:
        near = [one.name for one in known if _bare(what) in _bare(one.name)]
        like = f"; names like it: {', '.join(near)}" if near else ""
        echo(f"rmq errors: no code or error {what!r}{like}; `rmq errors` lists all", err=True)
        sys.exit(EXIT_FAILED)
    for one in found:
        show(one, output)


def explanations() -> list[Explanation]:
    """All response codes, then the errors that are not responses, each with its meaning."""
    kinds = {kind.code: kind for kind in reversed(ResponseError.__subclasses__())}
    codes = [_of_code(code, kinds.get(code)) for code in ResponseCode]
    local = [_of_error(getattr(tree, name), advice) for name, advice in LOCAL_ADVICE.items()]
    return codes + local


def _of_code(code: ResponseCode, kind: type[ResponseError] | None) -> Explanation:
    meaning = _first_sentence(kind) if kind else MEANINGS.get(code, "")
    return Explanation(
        int(code),
        code.name,
        kind.__name__ if kind else "-" if code == 0 else "ResponseError",
        bool(kind and kind.retriable),
        meaning,
        ADVICE.get(code, ""),
    )


def _of_error(kind: type[RmqError], advice: str) -> Explanation:
    return Explanation(None, kind.__name__, kind.__name__, kind.retriable, _first_sentence(kind), advice)


def _first_sentence(kind: type[RmqError]) -> str:
    text = (kind.__doc__ or "").partition("\n\n")[0]
    return " ".join(text.replace("`", "").split())


def _fits(one: Explanation, what: str) -> bool:
    if what.lstrip("-").isdigit():
        return one.code == int(what)
    return _bare(what) in (_bare(one.name), _bare(one.error)) and one.error != "ResponseError"


def _bare(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
