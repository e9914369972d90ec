"""The hot leaf functions: what runs for every frame and every message.

They are plain functions over bytes, kept behind these names so that a compiled twin can take the place of
`rmq.protocol._frames` and `rmq.protocol._records` without a change elsewhere.
"""

from rmq.protocol._frames import (
    encode_frame,
    encode_pull_reply_head,
    encode_send_reply,
    frame_size,
    head_size,
    read_head,
    split_frames,
)
from rmq.protocol._records import (
    build_batch,
    build_record,
    crc32,
    encode_queue_units,
    parse_properties,
    split_batch,
)

__all__ = [
    "build_batch",
    "build_record",
    "crc32",
    "encode_frame",
    "encode_pull_reply_head",
    "encode_queue_units",
    "encode_send_reply",
    "frame_size",
    "head_size",
    "parse_properties",
    "read_head",
    "split_batch",
    "split_frames",
]
