"""The hot leaf functions: what runs for every frame and every message.

They are plain functions over bytes, kept behind these names so that a compiled twin can take the place of
`rmq.protocol._pure` without a change elsewhere.
"""

from rmq.protocol._pure import (
    build_batch,
    build_record,
    crc32,
    encode_frame,
    encode_pull_reply_head,
    encode_queue_units,
    encode_send_reply,
    frame_size,
    parse_properties,
    split_batch,
    split_frames,
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
    "parse_properties",
    "split_batch",
    "split_frames",
]
