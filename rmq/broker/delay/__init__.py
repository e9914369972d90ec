"""Delayed delivery: the levels of RocketMQ, and timers for any time."""
