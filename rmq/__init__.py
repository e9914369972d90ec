"""rmq: Apache RocketMQ's semantics, wire protocol and store format, in Python on trio."""
