"""`client.admin`: all that an administrator asks and tells a cluster, as methods with typed answers.

    async with rmq.connect("127.0.0.1:9876") as client:
        await client.admin.create_topic("Orders", cluster="DefaultCluster", queues=8)
        for row in await client.admin.consumer_progress("billing"):
            print(row.message_queue, row.lag)

The modules `cluster`, `topics`, `groups`, `messages`, `reports` and `acl` hold the methods, and the values
that they return where RocketMQ has no shape of its own (times in them are ms since 1970). A `broker` is named
by its name or by an address, a `cluster` by its name; where both may be left out, all masters are meant. What
changes several servers does so one after the other: when one fails, its error has a note on those that have
changed already. Works with our servers and with Java's.
"""

from rmq.client.admin.acl import Acl, AclAccount, AclConfig, AclVersion
from rmq.client.admin.groups import GroupProgress, OffsetReset, QueueProgress
from rmq.client.admin.messages import Lookup, MessageTrack, Trace
from rmq.client.admin.reports import Reports, TopicRates

__all__ = [
    "AclAccount",
    "AclConfig",
    "AclVersion",
    "Admin",
    "GroupProgress",
    "Lookup",
    "MessageTrack",
    "OffsetReset",
    "QueueProgress",
    "TopicRates",
    "Trace",
]


class Admin(Reports, Acl):
    """See the module. Errors are those of `rmq.client.admin.cluster`."""
