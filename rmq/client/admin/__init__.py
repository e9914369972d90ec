"""`client.admin`: all that an administrator asks and tells a cluster, as methods with typed answers.

    async with rmq.connect("127.0.0.1:9876") as client:
        await client.admin.create_topic("Orders", cluster="DefaultCluster", queues=8)
        for row in await client.admin.consumer_progress("billing"):
            print(row.message_queue, row.lag)

The modules `topics`, `groups`, `offsets`, `messages`, `cluster`, `reports` and `acl` hold the methods. A
`broker` is named by its name or by an address, a `cluster` by its name; where both may be left out, all
masters are meant. What changes several servers does so one after the other: when one fails, its error has a
note on those that have changed already. Works with our servers and with Java's.
"""

from rmq.client.admin.acl import Acl
from rmq.client.admin.reports import Reports
from rmq.client.admin.values import (
    AclAccount,
    AclConfig,
    AclVersion,
    GroupProgress,
    Lookup,
    MessageTrack,
    OffsetReset,
    QueueProgress,
    TopicRates,
    Trace,
)

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
    """See the module. Errors are those of `rmq.client.admin.calls`."""
