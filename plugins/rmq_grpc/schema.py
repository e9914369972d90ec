"""Messages of `apache.rocketmq.v2`, the protocol of RocketMQ's 5.x clients, as protobuf classes.

The names and numbers are those of the public protocol. The classes are made when this module is imported,
in a descriptor pool of their own, so that a program which also uses RocketMQ's Python client for 5.x does
not register the same file twice.

A line of `_MESSAGES` is a message: its name, and its fields as `name:type=number`. A type in `[]` is
repeated, one with `?` has presence, `map` is string to string; a name in `()` before it is its oneof.
"""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"

_MESSAGES: Final = """
FilterExpression type:FilterType=1 expression:string=2
ExponentialBackoff initial:Duration=1 max:Duration=2 multiplier:float=3
CustomizedBackoff next:[Duration]=1
RetryPolicy max_attempts:int32=1 exponential_backoff:(strategy)ExponentialBackoff=2 \
 customized_backoff:(strategy)CustomizedBackoff=3
Resource resource_namespace:string=1 name:string=2
SubscriptionEntry topic:Resource=1 expression:FilterExpression=2
Address host:string=1 port:int32=2
Endpoints scheme:AddressScheme=1 addresses:[Address]=2
Broker name:string=1 id:int32=2 endpoints:Endpoints=3
MessageQueue topic:Resource=1 id:int32=2 permission:Permission=3 broker:Broker=4 \
 accept_message_types:[MessageType]=5
Digest type:DigestType=1 checksum:string=2
DeadLetterQueue topic:string=1 message_id:string=2
SystemProperties tag:string?=1 keys:[string]=2 message_id:string=3 body_digest:Digest=4 \
 body_encoding:Encoding=5 message_type:MessageType=6 born_timestamp:Timestamp=7 born_host:string=8 \
 store_timestamp:Timestamp?=9 store_host:string=10 delivery_timestamp:Timestamp?=11 \
 receipt_handle:string?=12 queue_id:int32=13 queue_offset:int64?=14 invisible_duration:Duration?=15 \
 delivery_attempt:int32?=16 message_group:string?=17 trace_context:string?=18 \
 orphaned_transaction_recovery_duration:Duration?=19 dead_letter_queue:DeadLetterQueue?=20 \
 lite_topic:string?=21 priority:int32?=22
Message topic:Resource=1 user_properties:map=2 system_properties:SystemProperties=3 body:bytes=4
Assignment message_queue:MessageQueue=1
Status code:Code=1 message:string=2
UA language:Language=1 version:string=2 platform:string=3 hostname:string=4
Publishing topics:[Resource]=1 max_body_size:int32=2 validate_message_type:bool=3
Subscription group:Resource?=1 subscriptions:[SubscriptionEntry]=2 fifo:bool?=3 receive_batch_size:int32?=4 \
 long_polling_timeout:Duration?=5 lite_subscription_quota:int32?=6 max_lite_topic_size:int32?=7
Metric on:bool=1 endpoints:Endpoints?=2
Settings client_type:ClientType?=1 access_point:Endpoints?=2 backoff_policy:RetryPolicy?=3 \
 request_timeout:Duration?=4 publishing:(pub_sub)Publishing=5 subscription:(pub_sub)Subscription=6 \
 user_agent:UA=7 metric:Metric=8
OffsetOption policy:(offset_type)int32=1 offset:(offset_type)int64=2 tail_n:(offset_type)int64=3 \
 timestamp:(offset_type)int64=4
QueryRouteRequest topic:Resource=1 endpoints:Endpoints=2
QueryRouteResponse status:Status=1 message_queues:[MessageQueue]=2
SendMessageRequest messages:[Message]=1
SendResultEntry status:Status=1 message_id:string=2 transaction_id:string=3 offset:int64=4 \
 recall_handle:string=5
SendMessageResponse status:Status=1 entries:[SendResultEntry]=2
QueryAssignmentRequest topic:Resource=1 group:Resource=2 endpoints:Endpoints=3
QueryAssignmentResponse status:Status=1 assignments:[Assignment]=2
ReceiveMessageRequest group:Resource=1 message_queue:MessageQueue=2 filter_expression:FilterExpression=3 \
 batch_size:int32=4 invisible_duration:Duration?=5 auto_renew:bool=6 long_polling_timeout:Duration?=7 \
 attempt_id:string?=8
ReceiveMessageResponse status:(content)Status=1 message:(content)Message=2 \
 delivery_timestamp:(content)Timestamp=3
AckMessageEntry message_id:string=1 receipt_handle:string=2 lite_topic:string?=3
AckMessageRequest group:Resource=1 topic:Resource=2 entries:[AckMessageEntry]=3
AckMessageResultEntry message_id:string=1 receipt_handle:string=2 status:Status=3
AckMessageResponse status:Status=1 entries:[AckMessageResultEntry]=2
ForwardMessageToDeadLetterQueueRequest group:Resource=1 topic:Resource=2 receipt_handle:string=3 \
 message_id:string=4 delivery_attempt:int32=5 max_delivery_attempts:int32=6 lite_topic:string?=7
ForwardMessageToDeadLetterQueueResponse status:Status=1
HeartbeatRequest group:Resource?=1 client_type:ClientType=2
HeartbeatResponse status:Status=1
EndTransactionRequest topic:Resource=1 message_id:string=2 transaction_id:string=3 \
 resolution:TransactionResolution=4 source:TransactionSource=5 trace_context:string=6
EndTransactionResponse status:Status=1
PrintThreadStackTraceCommand nonce:string=1
ReconnectEndpointsCommand nonce:string=1
ThreadStackTrace nonce:string=1 thread_stack_trace:string?=2
VerifyMessageCommand nonce:string=1 message:Message=2
VerifyMessageResult nonce:string=1
RecoverOrphanedTransactionCommand message:Message=1 transaction_id:string=2
NotifyUnsubscribeLiteCommand lite_topic:string=1
TelemetryCommand status:Status?=1 settings:(command)Settings=2 \
 thread_stack_trace:(command)ThreadStackTrace=3 \
 verify_message_result:(command)VerifyMessageResult=4 \
 recover_orphaned_transaction_command:(command)RecoverOrphanedTransactionCommand=5 \
 print_thread_stack_trace_command:(command)PrintThreadStackTraceCommand=6 \
 verify_message_command:(command)VerifyMessageCommand=7 \
 reconnect_endpoints_command:(command)ReconnectEndpointsCommand=8 \
 notify_unsubscribe_lite_command:(command)NotifyUnsubscribeLiteCommand=9
NotifyClientTerminationRequest group:Resource?=1
NotifyClientTerminationResponse status:Status=1
ChangeInvisibleDurationRequest group:Resource=1 topic:Resource=2 receipt_handle:string=3 \
 invisible_duration:Duration=4 message_id:string=5 lite_topic:string?=6 suspend:bool?=7
ChangeInvisibleDurationResponse status:Status=1 receipt_handle:string=2
PullMessageRequest group:Resource=1 message_queue:MessageQueue=2 offset:int64=3 batch_size:int32=4 \
 filter_expression:FilterExpression=5 long_polling_timeout:Duration=6
PullMessageResponse status:(content)Status=1 message:(content)Message=2 next_offset:(content)int64=3
UpdateOffsetRequest group:Resource=1 message_queue:MessageQueue=2 offset:int64=3
UpdateOffsetResponse status:Status=1
GetOffsetRequest group:Resource=1 message_queue:MessageQueue=2
GetOffsetResponse status:Status=1 offset:int64=2
QueryOffsetRequest message_queue:MessageQueue=1 query_offset_policy:QueryOffsetPolicy=2 timestamp:Timestamp?=3
QueryOffsetResponse status:Status=1 offset:int64=2
RecallMessageRequest topic:Resource=1 recall_handle:string=2
RecallMessageResponse status:Status=1 message_id:string=2
SyncLiteSubscriptionRequest action:int32=1 topic:Resource=2 group:Resource=3 lite_topic_set:[string]=4 \
 version:int64?=5 offset_option:OffsetOption?=6
SyncLiteSubscriptionResponse status:Status=1
"""

_ENUMS: Final = """
TransactionResolution TRANSACTION_RESOLUTION_UNSPECIFIED=0 COMMIT=1 ROLLBACK=2
TransactionSource SOURCE_UNSPECIFIED=0 SOURCE_CLIENT=1 SOURCE_SERVER_CHECK=2
Permission PERMISSION_UNSPECIFIED=0 NONE=1 READ=2 WRITE=3 READ_WRITE=4
FilterType FILTER_TYPE_UNSPECIFIED=0 TAG=1 SQL=2
AddressScheme ADDRESS_SCHEME_UNSPECIFIED=0 IPv4=1 IPv6=2 DOMAIN_NAME=3
MessageType MESSAGE_TYPE_UNSPECIFIED=0 NORMAL=1 FIFO=2 DELAY=3 TRANSACTION=4 LITE=5 PRIORITY=6
DigestType DIGEST_TYPE_UNSPECIFIED=0 CRC32=1 MD5=2 SHA1=3
ClientType CLIENT_TYPE_UNSPECIFIED=0 PRODUCER=1 PUSH_CONSUMER=2 SIMPLE_CONSUMER=3 PULL_CONSUMER=4 \
 LITE_PUSH_CONSUMER=5 LITE_SIMPLE_CONSUMER=6
Encoding ENCODING_UNSPECIFIED=0 IDENTITY=1 GZIP=2
Language LANGUAGE_UNSPECIFIED=0 JAVA=1 CPP=2 DOT_NET=3 GOLANG=4 RUST=5 PYTHON=6 PHP=7 NODE_JS=8 RUBY=9 \
 OBJECTIVE_C=10 DART=11 KOTLIN=12
QueryOffsetPolicy BEGINNING=0 END=1 TIMESTAMP=2
Code CODE_UNSPECIFIED=0 OK=20000 MULTIPLE_RESULTS=30000 BAD_REQUEST=40000 ILLEGAL_ACCESS_POINT=40001 \
 ILLEGAL_TOPIC=40002 ILLEGAL_CONSUMER_GROUP=40003 ILLEGAL_MESSAGE_TAG=40004 ILLEGAL_MESSAGE_KEY=40005 \
 ILLEGAL_MESSAGE_GROUP=40006 ILLEGAL_MESSAGE_PROPERTY_KEY=40007 INVALID_TRANSACTION_ID=40008 \
 ILLEGAL_MESSAGE_ID=40009 ILLEGAL_FILTER_EXPRESSION=40010 ILLEGAL_INVISIBLE_TIME=40011 \
 ILLEGAL_DELIVERY_TIME=40012 INVALID_RECEIPT_HANDLE=40013 MESSAGE_PROPERTY_CONFLICT_WITH_TYPE=40014 \
 UNRECOGNIZED_CLIENT_TYPE=40015 MESSAGE_CORRUPTED=40016 CLIENT_ID_REQUIRED=40017 ILLEGAL_POLLING_TIME=40018 \
 ILLEGAL_OFFSET=40019 ILLEGAL_LITE_TOPIC=40020 UNAUTHORIZED=40100 PAYMENT_REQUIRED=40200 FORBIDDEN=40300 \
 NOT_FOUND=40400 MESSAGE_NOT_FOUND=40401 TOPIC_NOT_FOUND=40402 CONSUMER_GROUP_NOT_FOUND=40403 \
 OFFSET_NOT_FOUND=40404 REQUEST_TIMEOUT=40800 PAYLOAD_TOO_LARGE=41300 MESSAGE_BODY_TOO_LARGE=41301 \
 MESSAGE_BODY_EMPTY=41302 PRECONDITION_FAILED=42800 TOO_MANY_REQUESTS=42900 \
 LITE_TOPIC_QUOTA_EXCEEDED=42901 LITE_SUBSCRIPTION_QUOTA_EXCEEDED=42902 \
 REQUEST_HEADER_FIELDS_TOO_LARGE=43100 MESSAGE_PROPERTIES_TOO_LARGE=43101 INTERNAL_ERROR=50000 \
 INTERNAL_SERVER_ERROR=50001 HA_NOT_AVAILABLE=50002 NOT_IMPLEMENTED=50100 PROXY_TIMEOUT=50400 \
 MASTER_PERSISTENCE_TIMEOUT=50401 SLAVE_PERSISTENCE_TIMEOUT=50402 UNSUPPORTED=50500 \
 VERSION_UNSUPPORTED=50501 \
 VERIFY_FIFO_MESSAGE_UNSUPPORTED=50502 FAILED_TO_CONSUME_MESSAGE=60000
"""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "float": _Field.TYPE_FLOAT,
}
_FIELD: Final = re.compile(r"(\w+):(?:\((\w+)\))?(\[)?(\w+)\]?(\?)?=(\d+)")


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.replace("\\\n", "").splitlines() if line.strip()]


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="rmq_grpc/v2.proto",
        package=PACKAGE,
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"],
    )
    enums = set()
    for name, *values in _lines(_ENUMS):
        enum = file.enum_type.add(name=name)
        enums.add(name)
        for value in values:
            word, _, number = value.partition("=")
            enum.value.add(name=word, number=int(number))
    for name, *fields in _lines(_MESSAGES):
        message = file.message_type.add(name=name)
        late = []
        for text in fields:
            match = _FIELD.fullmatch(text)
            assert match is not None, text
            field_name, oneof, repeated, kind, present, number = match.groups()
            field = message.field.add(name=field_name, number=int(number), label=_Field.LABEL_OPTIONAL)
            if repeated or kind == "map":
                field.label = _Field.LABEL_REPEATED
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            elif kind in enums:
                field.type, field.type_name = _Field.TYPE_ENUM, f".{PACKAGE}.{kind}"
            elif kind == "map":
                _add_map(message, name, field)
            else:
                place = "google.protobuf" if kind in ("Timestamp", "Duration") else PACKAGE
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{place}.{kind}"
            if oneof:
                names = [one.name for one in message.oneof_decl]
                if oneof not in names:
                    message.oneof_decl.add(name=oneof)
                    names.append(oneof)
                field.oneof_index = names.index(oneof)
            elif present:
                field.proto3_optional = True
                late.append(field)
        for field in late:  # the oneofs of single fields stand behind the others
            message.oneof_decl.add(name=f"_{field.name}")
            field.oneof_index = len(message.oneof_decl) - 1
    return file


def _add_map(message: Any, name: str, field: Any) -> None:
    entry_name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    for number, word in ((1, "key"), (2, "value")):
        entry.field.add(name=word, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{name}.{entry_name}"


_POOL: Final = descriptor_pool.DescriptorPool()
for _known in (timestamp_pb2, duration_pb2):
    _POOL.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
_POOL.AddSerializedFile(_file().SerializeToString())


def message(name: str) -> Any:
    """The class of a message, by its name. Raises KeyError when there is none."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def enum(name: str) -> dict[str, int]:
    """The numbers of an enum by its words."""
    return {one.name: one.number for one in _POOL.FindEnumTypeByName(f"{PACKAGE}.{name}").values}
