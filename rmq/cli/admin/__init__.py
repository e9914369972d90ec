"""`rmq admin NAME`: the commands of RocketMQ's mqadmin, under its names and with its options.

Their output has mqadmin's columns. Two things differ on purpose: a command that fails ends with a status
other than 0, and no secret is printed. docs/reference/admin.md has the list of differences.
"""

from __future__ import annotations

from typing import Final

import click

from rmq.cli import LazyGroup

_SECTIONS: Final = {
    "Topics": (
        "topics",
        {
            "updateTopic": "Create or change a topic.",
            "deleteTopic": "Delete a topic from brokers and name servers.",
            "updateTopicPerm": "Change the permissions of a topic.",
            "topicRoute": "Show where a topic's queues are.",
            "topicStatus": "Show the ends of a topic's queues.",
            "topicClusterList": "Show which clusters have a topic.",
            "topicList": "List all topics.",
            "updateOrderConf": "Read, write or delete the queues of an ordered topic.",
            "allocateMQ": "Show how queues would be shared out among addresses.",
            "statsAll": "Show rates and lag of all topics and groups.",
        },
    ),
    "Groups and offsets": (
        "groups",
        {
            "updateSubGroup": "Create or change a consumer group.",
            "deleteSubGroup": "Delete a consumer group.",
            "getConsumerConfig": "Show the settings of a consumer group.",
            "consumerProgress": "Show how far groups are, and how fast.",
            "consumerStatus": "Show the running state that members of a group report.",
            "cloneGroupOffset": "Give a group the offsets of another.",
            "resetOffsetByTime": "Set a group to a time; members need no restart.",
            "skipAccumulatedMessage": "Set a group to the end of a topic.",
            "startMonitoring": "Watch all groups: backlog and stuck members.",
        },
    ),
    "Connections": (
        "clients",
        {
            "producerConnection": "Show the members of a producer group.",
            "consumerConnection": "Show the members of a consumer group and their subscriptions.",
            "producer": "Show all producers of a broker.",
        },
    ),
    "Brokers": (
        "brokers",
        {
            "brokerStatus": "Show the metrics of brokers.",
            "updateBrokerConfig": "Change a setting of running brokers.",
            "getBrokerConfig": "Show the settings of brokers.",
            "brokerConsumeStats": "Show the progress of all groups on a broker.",
            "cleanExpiredCQ": "Remove files of queues whose messages were deleted.",
            "deleteExpiredCommitLog": "Remove log files past their time now.",
            "cleanUnusedTopic": "Remove queues of topics that do not exist.",
            "queryCq": "Show raw units of a consume queue.",
        },
    ),
    "Clusters and name servers": (
        "cluster",
        {
            "clusterList": "List all brokers with their rates.",
            "wipeWritePerm": "Take the write permission from a broker.",
            "addWritePerm": "Give the write permission back to a broker.",
            "updateKvConfig": "Keep a value at the name servers.",
            "deleteKvConfig": "Forget a value at the name servers.",
            "getNamesrvConfig": "Show the settings of name servers.",
            "updateNamesrvConfig": "Change a setting of running name servers.",
        },
    ),
    "Probes": (
        "messages",
        {
            "sendMsgStatus": "Send messages to a broker and time them.",
            "clusterRT": "Time sends to every broker, again and again.",
            "checkMsgSendRT": "Time sends to a topic's queues.",
        },
    ),
    "Messages": (
        "messages",
        {
            "queryMsgById": "Show messages by their offset ids, resend or redeliver them.",
            "queryMsgByKey": "Find messages by a key.",
            "queryMsgByUniqueKey": "Show messages by the producer's id, or deliver one to a member.",
            "queryMsgByOffset": "Show the message at an offset of a queue.",
            "queryMsgTraceById": "Show a message's trace.",
            "printMsg": "Print the messages of a topic.",
            "printMsgByQueue": "Print or count the messages of a queue.",
            "sendMessage": "Send a message.",
            "consumeMessage": "Read messages without committing offsets.",
        },
    ),
    "Access control": (
        "acl",
        {
            "updateAclConfig": "Create or change an account.",
            "deleteAclConfig": "Remove an account.",
            "clusterAclConfigVersion": "Show the versions of account files.",
            "updateGlobalWhiteAddr": "Set the addresses that need no account.",
            "getAclConfig": "Show accounts, without their secrets.",
        },
    ),
    "Exports": (
        "cluster",
        {
            "exportMetadata": "Write topics and groups into a JSON file.",
            "exportConfigs": "Write main settings of a cluster into a JSON file.",
            "exportMetrics": "Write rates and sizes of a cluster into a JSON file.",
        },
    ),
}
"""Heading -> (module, command name -> line of help): kept here so that help imports nothing."""

COMMANDS: Final = {
    name: (f"rmq.cli.admin.{module}", line)
    for module, commands in _SECTIONS.values()
    for name, line in commands.items()
}
"""Command name -> the module with the command in its `COMMANDS`, and its line of help."""


@click.command(
    cls=LazyGroup,
    commands_of=COMMANDS,
    sections={heading: tuple(commands) for heading, (_, commands) in _SECTIONS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def admin() -> None:
    """RocketMQ's mqadmin: the same 57 names, the same options.

    For people there are shorter forms: rmq topic, group, msg, cluster, broker, acl.
    """
