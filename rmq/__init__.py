"""Apache RocketMQ 4.9, wire- and file-compatible, in Python: name server, broker and async client.

The names for applications. Each name loads its module on first use, so that `import rmq` costs almost
nothing.

    async with rmq.connect("127.0.0.1:9876") as client:
        async with client.producer("orders-producer") as producer:
            await producer.send(rmq.Message("Orders", b"paid 42", tags="paid", keys=["42"]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq.client.app import App as App
    from rmq.client.client import Client as Client
    from rmq.client.client import connect as connect
    from rmq.client.codec import Codec as Codec
    from rmq.client.codec import MsgspecCodec as MsgspecCodec
    from rmq.client.codec import PydanticCodec as PydanticCodec
    from rmq.client.config import ClientConfig as ClientConfig
    from rmq.client.consume.consumer import Consumer as Consumer
    from rmq.client.consume.deliveries.delivery import Delivery as Delivery
    from rmq.client.consume.retry import Backoff as Backoff
    from rmq.client.consume.retry import Retry as Retry
    from rmq.client.consume.subscription import Sql as Sql
    from rmq.client.consume.subscription import sql as sql
    from rmq.client.duplicates import Inbox as Inbox
    from rmq.client.duplicates import MemoryWindow as MemoryWindow
    from rmq.client.duplicates import SkipDuplicates as SkipDuplicates
    from rmq.client.duplicates import TableWindow as TableWindow
    from rmq.client.handlers import Middleware as Middleware
    from rmq.client.handlers import Next as Next
    from rmq.client.observability.trace import MessageTrace as MessageTrace
    from rmq.client.produce.pipeline import Pipeline as Pipeline
    from rmq.client.produce.producer import Producer as Producer
    from rmq.client.produce.transactional import COMMIT as COMMIT
    from rmq.client.produce.transactional import ROLLBACK as ROLLBACK
    from rmq.client.produce.transactional import UNKNOWN as UNKNOWN
    from rmq.client.produce.transactional import Decision as Decision
    from rmq.client.produce.transactional import Transaction as Transaction
    from rmq.client.produce.transactional import TransactionalProducer as TransactionalProducer
    from rmq.client.reading.dead_letters import DeadLetter as DeadLetter
    from rmq.client.reading.dead_letters import Letters as Letters
    from rmq.client.reading.dead_letters import Redriven as Redriven
    from rmq.client.reading.discarded import DiscardedHalf as DiscardedHalf
    from rmq.client.reading.leased_consumer import LeasedConsumer as LeasedConsumer
    from rmq.client.reading.pull_consumer import PullConsumer as PullConsumer
    from rmq.client.reading.pull_consumer import PullResult as PullResult
    from rmq.client.reading.simple_consumer import ReceivedMessage as ReceivedMessage
    from rmq.client.reading.simple_consumer import SimpleConsumer as SimpleConsumer
    from rmq.client.session.events import Assigned as Assigned
    from rmq.client.session.events import Connected as Connected
    from rmq.client.session.events import Disconnected as Disconnected
    from rmq.client.session.events import Stalled as Stalled
    from rmq.client.session.health import Health as Health
    from rmq.client.session.observer import Observer as Observer
    from rmq.client.session.results import SendResult as SendResult
    from rmq.errors import AccessDenied as AccessDenied
    from rmq.errors import AskerGone as AskerGone
    from rmq.errors import ConfigError as ConfigError
    from rmq.errors import ConnectFailed as ConnectFailed
    from rmq.errors import ConnectionLost as ConnectionLost
    from rmq.errors import CorruptRecord as CorruptRecord
    from rmq.errors import InvalidBody as InvalidBody
    from rmq.errors import InvalidMessage as InvalidMessage
    from rmq.errors import InvalidMessageType as InvalidMessageType
    from rmq.errors import InvalidName as InvalidName
    from rmq.errors import InvalidType as InvalidType
    from rmq.errors import LocalProtocolError as LocalProtocolError
    from rmq.errors import MessageIllegal as MessageIllegal
    from rmq.errors import NoPermission as NoPermission
    from rmq.errors import NoRoute as NoRoute
    from rmq.errors import NotNameServers as NotNameServers
    from rmq.errors import NotReady as NotReady
    from rmq.errors import RemoteProtocolError as RemoteProtocolError
    from rmq.errors import ReplyTimeout as ReplyTimeout
    from rmq.errors import RequestTimeout as RequestTimeout
    from rmq.errors import ResponseError as ResponseError
    from rmq.errors import RmqError as RmqError
    from rmq.errors import SendFailed as SendFailed
    from rmq.errors import ServiceNotAvailable as ServiceNotAvailable
    from rmq.errors import StrayCancellation as StrayCancellation
    from rmq.errors import SubscriptionParseFailed as SubscriptionParseFailed
    from rmq.errors import SystemBusy as SystemBusy
    from rmq.errors import TopicNotExist as TopicNotExist
    from rmq.errors import Unreachable as Unreachable
    from rmq.errors import WindowFull as WindowFull
    from rmq.message import Message as Message
    from rmq.message import MessageQueue as MessageQueue
    from rmq.message import StoredMessage as StoredMessage
    from rmq.protocol.auth.signature import Credentials as Credentials
    from rmq.remoting.transports.tls import TlsConfig as TlsConfig

_MODULES = {
    "rmq.client.app": "App",
    "rmq.client.client": "Client connect",
    "rmq.client.codec": "Codec MsgspecCodec PydanticCodec",
    "rmq.client.config": "ClientConfig",
    "rmq.client.duplicates": "Inbox MemoryWindow SkipDuplicates TableWindow",
    "rmq.client.consume.consumer": "Consumer",
    "rmq.client.consume.deliveries.delivery": "Delivery",
    "rmq.client.reading.dead_letters": "DeadLetter Letters Redriven",
    "rmq.client.reading.discarded": "DiscardedHalf",
    "rmq.client.session.events": "Assigned Connected Disconnected Stalled",
    "rmq.client.session.health": "Health",
    "rmq.client.session.observer": "Observer",
    "rmq.client.session.results": "SendResult",
    "rmq.client.produce.pipeline": "Pipeline",
    "rmq.client.produce.producer": "Producer",
    "rmq.client.reading.leased_consumer": "LeasedConsumer",
    "rmq.client.reading.pull_consumer": "PullConsumer PullResult",
    "rmq.client.reading.simple_consumer": "ReceivedMessage SimpleConsumer",
    "rmq.client.consume.retry": "Backoff Retry",
    "rmq.client.consume.subscription": "Sql sql",
    "rmq.client.handlers": "Middleware Next",
    "rmq.client.observability.trace": "MessageTrace",
    "rmq.client.produce.transactional": (
        "COMMIT ROLLBACK UNKNOWN Decision Transaction TransactionalProducer"
    ),
    "rmq.errors": (
        "AccessDenied AskerGone ConfigError ConnectFailed ConnectionLost CorruptRecord InvalidBody"
        " InvalidMessage InvalidMessageType InvalidName InvalidType LocalProtocolError MessageIllegal"
        " NoPermission"
        " NoRoute NotNameServers NotReady RemoteProtocolError ReplyTimeout RequestTimeout ResponseError"
        " RmqError SendFailed"
        " ServiceNotAvailable StrayCancellation SubscriptionParseFailed SystemBusy TopicNotExist Unreachable"
        " WindowFull"
    ),
    "rmq.message": "Message MessageQueue StoredMessage",
    "rmq.protocol.auth.signature": "Credentials",
    "rmq.remoting.transports.tls": "TlsConfig",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rmq' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
