"""Numbers of the RocketMQ 4.9.7 protocol: request and response codes, flags, permissions, languages, states.

The members have the names that RocketMQ gives them. The numbers were read from the 4.9.7 classes and are
pinned by the vectors of tests/golden/codes.json.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final


class RequestCode(IntEnum):
    """Kind of a request. A frame may carry a code that is not listed."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    GET_TOPICS_BY_CLUSTER = 224
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329


class ResponseCode(IntEnum):
    """Result of a request. 0-4 are general, all others belong to a kind of request."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    FLOW_CONTROL = 215


class LanguageCode(IntEnum):
    """The language in which a peer is written, by its own report."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12


class CompressionType(IntEnum):
    """Value of bits 8-10 of a message system flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class ConsumeType(IntEnum):
    """Way in which a consumer group gets messages: by its own pulls, or pushed by the client library."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1


class MessageModel(StrEnum):
    """Way in which messages are shared: each member of a consumer group gets a part of them, or each gets
    all."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(IntEnum):
    """The first offset of a consumer group without a stored offset."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


class TopicFilterType(IntEnum):
    """The number of tags that a message of a topic may carry: one or many; bit 1 of the message system
    flag."""

    SINGLE_TAG = 0
    MULTI_TAG = 1


class CMResult(IntEnum):
    """A consumer's result for a message that was given to it directly."""

    CR_SUCCESS = 0
    CR_LATER = 1
    CR_ROLLBACK = 2
    CR_COMMIT = 3
    CR_THROW_EXCEPTION = 4
    CR_RETURN_NULL = 5


class MQVersion(IntEnum):
    """Ordinal of a RocketMQ release in a frame header."""

    V4_0_0 = 213
    V4_0_1 = 215
    V4_0_2 = 217
    V4_0_3 = 219
    V4_0_4 = 221
    V4_0_5 = 223
    V4_0_6 = 225
    V4_0_7 = 227
    V4_0_8 = 229
    V4_0_9 = 231
    V4_1_0 = 233
    V4_1_1 = 235
    V4_1_2 = 237
    V4_1_3 = 239
    V4_1_4 = 241
    V4_1_5 = 243
    V4_1_6 = 245
    V4_1_7 = 247
    V4_1_8 = 249
    V4_1_9 = 251
    V4_2_0 = 253
    V4_2_1 = 255
    V4_2_2 = 257
    V4_2_3 = 259
    V4_2_4 = 261
    V4_2_5 = 263
    V4_2_6 = 265
    V4_2_7 = 267
    V4_2_8 = 269
    V4_2_9 = 271
    V4_3_0 = 273
    V4_3_1 = 275
    V4_3_2 = 277
    V4_3_3 = 279
    V4_3_4 = 281
    V4_3_5 = 283
    V4_3_6 = 285
    V4_3_7 = 287
    V4_3_8 = 289
    V4_3_9 = 291
    V4_4_0 = 293
    V4_4_1 = 295
    V4_4_2 = 297
    V4_4_3 = 299
    V4_4_4 = 301
    V4_4_5 = 303
    V4_4_6 = 305
    V4_4_7 = 307
    V4_4_8 = 309
    V4_4_9 = 311
    V4_5_0 = 313
    V4_5_1 = 315
    V4_5_2 = 317
    V4_5_3 = 319
    V4_5_4 = 321
    V4_5_5 = 323
    V4_5_6 = 325
    V4_5_7 = 327
    V4_5_8 = 329
    V4_5_9 = 331
    V4_6_0 = 333
    V4_6_1 = 335
    V4_6_2 = 337
    V4_6_3 = 339
    V4_6_4 = 341
    V4_6_5 = 343
    V4_6_6 = 345
    V4_6_7 = 347
    V4_6_8 = 349
    V4_6_9 = 351
    V4_7_0 = 353
    V4_7_1 = 355
    V4_7_2 = 357
    V4_7_3 = 359
    V4_7_4 = 361
    V4_7_5 = 363
    V4_7_6 = 365
    V4_7_7 = 367
    V4_7_8 = 369
    V4_7_9 = 371
    V4_8_0 = 373
    V4_8_1 = 375
    V4_8_2 = 377
    V4_8_3 = 379
    V4_8_4 = 381
    V4_8_5 = 383
    V4_8_6 = 385
    V4_8_7 = 387
    V4_8_8 = 389
    V4_8_9 = 391
    V4_9_0 = 393
    V4_9_1 = 395
    V4_9_2 = 397
    V4_9_3 = 399
    V4_9_4 = 401
    V4_9_5 = 403
    V4_9_6 = 405
    V4_9_7 = 407


# The identity of rmq in a frame header.
VERSION: Final = 407

LANGUAGE: Final = "PYTHON"

# Frame flag.
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

# Message system flag.
SYS_COMPRESSED: Final = 1
SYS_MULTI_TAGS: Final = 2
SYS_PREPARED: Final = 4
SYS_COMMIT: Final = 8
SYS_ROLLBACK: Final = 12
SYS_BORNHOST_V6: Final = 16
SYS_STOREHOST_V6: Final = 32
SYS_COMPRESSION_MASK: Final = 1792
SYS_HOST_BITS: Final = SYS_BORNHOST_V6 | SYS_STOREHOST_V6
"""Bits with the lengths of a record's hosts: the writer of the record sets them."""
SYS_OF_SENDERS: Final = SYS_COMPRESSED | SYS_COMPRESSION_MASK | SYS_MULTI_TAGS
"""Bits that a sender may set; the broker sets hosts, the state of a transaction and batches."""

# System flag of a pull request.
PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4

# System flag of a topic and of a subscription.
TOPIC_UNIT: Final = 1
TOPIC_UNIT_SUB: Final = 2

# Permission of a topic.
RETENTION_MS: Final = "retention.ms"
"""Attribute of a topic: the age at which its messages are removed, in ms."""
RETENTION_BYTES: Final = "retention.bytes"
"""Attribute of a topic: total bytes of its newest messages on each broker; older messages are removed."""
RETENTION_GROUP: Final = "CID_RMQ_SYS_RETENTION"
"""The broker's own group, whose offsets are the first messages that limits of topics leave."""
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

# Broker id of the master.
MASTER_ID: Final = 0

# Codes of RocketMQ 5.x that rmq serves: pulls of lite pull consumers, messages one by one (POP),
# settings of topics and groups, and the recall of a scheduled message.
LITE_PULL_MESSAGE: Final = 361
POP_MESSAGE: Final = 200_050
ACK_MESSAGE: Final = 200_051
BATCH_ACK_MESSAGE: Final = 200_151
CHANGE_MESSAGE_INVISIBLETIME: Final = 200_053
NOTIFICATION: Final = 200_054
POLLING_INFO: Final = 200_055
GET_TOPIC_CONFIG: Final = 351
GET_SUBSCRIPTIONGROUP_CONFIG: Final = 352
QUERY_ASSIGNMENT: Final = 400
SET_MESSAGE_REQUEST_MODE: Final = 401
GET_ALL_MESSAGE_REQUEST_MODE: Final = 402
"""Codes of requests."""
POLLING_FULL: Final = 209
POLLING_TIMEOUT: Final = 210
"""Answer codes: too many polls wait; the poll has found no message."""
RECALL_MESSAGE: Final = 370
"""The request's code."""
ILLEGAL_OPERATION: Final = 604
"""Answer code: the text is no handle, or the handle's time has passed."""

# An addition of rmq to a request of RocketMQ, which ignores it.
HIDE_UNREAD: Final = "rmqHideUnread"
"""Header field of UPDATE_AND_CREATE_TOPIC; "true": cut queues even if they hold unread messages."""

# Requests of rmq. RocketMQ has no request from 19,001 to 19,005.
IDEMPOTENT_SEND: Final = 19_005
"""A batch send that names its producer and the number of its first message, to be stored once."""

# Between controllers, from brokers and from operators.
CONTROLLER_MESSAGE: Final = 19_001
"""A message of one controller to another."""
CONTROLLER_ASK: Final = 19_002
"""A broker registers, sends its heartbeat, or changes the in-sync set."""
CONTROLLER_STATUS: Final = 19_003
"""A question for the controllers' state."""
CONTROLLER_OPERATE: Final = 19_004
"""An operator hands the master's role over, removes a replica, adds or removes a controller."""
CONTROLLER_NOT_LEADER: Final = 2007
"""Answer code, RocketMQ 5.x's: another controller leads."""
CONTROLLER_CODES: Final = (CONTROLLER_MESSAGE, CONTROLLER_ASK, CONTROLLER_STATUS, CONTROLLER_OPERATE)
