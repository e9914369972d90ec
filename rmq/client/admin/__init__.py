"""`client.admin`: administration of a cluster, as methods with typed results.

    async with rmq.connect("127.0.0.1:9876") as client:
        await client.admin.create_topic("Orders", cluster="DefaultCluster", queues=8)
        for row in await client.admin.consumer_progress("billing"):
            print(row.message_queue, row.lag)

The modules `cluster`, `topics`, `groups`, `messages`, `reports` and `acl` hold the methods, and the classes
of their results where RocketMQ has no form of its own (times are ms since 1970). A `broker` is given by its
name or address, a `cluster` by its name; without both, a method addresses all masters. A change of several
servers is made in order: when it fails at a server, the error has a note with the servers changed before.
Works with rmq's servers and with Java's.
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
    """Administration of a cluster; the module has an example. Errors are those of
    `rmq.client.admin.cluster`."""
