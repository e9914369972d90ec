"""Findings about the settings of a RocketMQ broker: settings that rmq lacks or interprets differently."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from rmq.operate.migration.facts import BrokerTables, Finding, Level
from rmq.operate.migration.java_defaults import DEFAULTS

CONSUME_AND_SEND: Final = "consume the messages there and send them to a new broker of rmq"

_SPECIAL: Final[Mapping[str, tuple[Level, str, str, str]]] = {
    "enableDLegerCommitLog": (
        "stop",
        "true",
        "DLedger's log cannot be read",
        f"{CONSUME_AND_SEND}; controllers with durability=replicated replace DLedger (docs/failover.md)",
    ),
    "enableControllerMode": (
        "act",
        "true",
        "a controller of RocketMQ elects the master",
        "move the set as a whole: stop it, open the master's folder, run `rmq controller`, set controllerAddr"
        " (docs/failover.md)",
    ),
    "isBrokerContainer": (
        "act",
        "true",
        "several brokers run in one container process",
        "run each broker as a separate process, with its own settings and folder",
    ),
    "isInBrokerContainer": (
        "act",
        "true",
        "it runs in a container of brokers",
        "run it as a separate process, with its own settings and folder",
    ),
    "enableSlaveActingMaster": (
        "act",
        "true",
        "a slave acts for a dead master",
        "controllers elect a master here (docs/failover.md)",
    ),
    "enableLmq": (
        "stop",
        "true",
        "light message queues (LMQ, for MQTT) are not supported",
        "leave the topics of the MQTT proxy at RocketMQ",
    ),
    "enableMultiDispatch": (
        "stop",
        "true",
        "messages are put into several queues at once (LMQ), which is not supported",
        "leave the topics of the MQTT proxy at RocketMQ",
    ),
    "fetchNamesrvAddrByAddressServer": (
        "act",
        "true",
        "it finds its name servers by an address server",
        "write namesrvAddr=HOST:PORT;... into broker.conf",
    ),
    "fetchNameSrvAddrByDnsLookup": (
        "act",
        "true",
        "it finds its name servers by DNS",
        "write namesrvAddr=HOST:PORT;... into broker.conf",
    ),
    "authenticationEnabled": (
        "act",
        "true",
        "accounts of ACL 2.0 are in a database of RocketMQ's",
        "make the accounts again with `rmq acl`; clients sign as before (docs/security.md)",
    ),
    "authorizationEnabled": (
        "act",
        "true",
        "policies of ACL 2.0 are in a database of RocketMQ's",
        "write the permissions again with `rmq acl`; try them with `rmq acl explain` (docs/security.md)",
    ),
    "aclEnable": (
        "act",
        "true",
        "accounts are checked (ACL 1.0)",
        "the plug-in acl reads conf/plain_acl.yml, and checks every request, also of administrators and"
        " slaves: try each account with `rmq acl explain` before (docs/security.md)",
    ),
    "transientStorePoolEnable": (
        "note",
        "true",
        "messages are acknowledged before they are written",
        "nothing: a broker of rmq writes before it acknowledges",
    ),
    "enableConsumeQueueExt": (
        "note",
        "true",
        "filters use the extended consume queue",
        "nothing: filters of rmq read the messages",
    ),
    "enablePopBufferMerge": ("note", "true", "POP acknowledgements are merged in memory", "nothing"),
    "popConsumerKVServiceEnable": (
        "act",
        "true",
        "taken messages (POP) are noted in a database of RocketMQ's",
        "stop the POP consumers, and wait for one invisible time before you move the broker",
    ),
    "timerStopEnqueue": ("note", "true", "timed messages are refused", "nothing"),
    "defaultMessageRequestMode": (
        "note",
        "POP",
        "consumers use POP unless a group says otherwise",
        "set the mode again: `mqadmin setConsumeMode` works with rmq too",
    ),
}
"""Setting -> level, the value in question, the difference, the remedy."""

_FILES: Final[Mapping[str, frozenset[str]]] = {
    "storeType": frozenset({"default"}),
    "configManagerVersion": frozenset({"v1"}),
    "messageStorePlugIn": frozenset({""}),
}
"""Settings for the form of files; values that rmq reads."""
_IN_DATABASE: Final = re.compile(r"(?i)rocksdb")


def settings_findings(broker: BrokerTables) -> Iterator[Finding]:
    """Findings about settings with another meaning, or no meaning, after the move."""
    where, config = f"broker {broker.name}", broker.config
    for key, (level, value, what, todo) in _SPECIAL.items():
        if config.get(key) == value:
            yield Finding(level, where, f"{key}={value}: {what}", todo)
    yield from _file_findings(where, config)
    if "," in (paths := config.get("storePathCommitLog", "")):
        todo = "join the files in one folder, by their names, while the broker is stopped"
        yield Finding("act", where, f"storePathCommitLog={paths}: the log has several folders", todo)
    yield from _without_effect(where, config)


def _file_findings(where: str, config: Mapping[str, str]) -> Iterator[Finding]:
    plugin = config.get("messageStorePlugIn", "")
    for key, read in _FILES.items():
        value = config.get(key)
        if value is None or value in read:
            continue
        if key == "messageStorePlugIn" and "Tiered" in plugin:
            what = "older messages are in tiered storage, which cannot be read"
        elif _IN_DATABASE.search(value) or key == "configManagerVersion":
            what = "topics, offsets or queues are in RocksDB, which cannot be read"
        else:
            what = "a plug-in of RocketMQ's keeps messages in a form that cannot be read"
        yield Finding("stop", where, f"{key}={value}: {what}", CONSUME_AND_SEND)


def _without_effect(where: str, config: Mapping[str, str]) -> Iterator[Finding]:
    """One finding that lists the changed settings without effect at a broker of rmq."""
    changed = {
        key: value
        for key, value in config.items()
        if key in DEFAULTS and value not in DEFAULTS[key] and key not in _SPECIAL and key not in _FILES
    }
    if changed:
        listed = ", ".join(f"{key}={value}" for key, value in sorted(changed.items()))
        todo = "check whether you rely on them; docs/reference/settings.md lists rmq's settings"
        yield Finding("note", where, f"settings without effect: {listed}", todo)
