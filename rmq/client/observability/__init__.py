"""Observers of messages: metrics, OpenTelemetry, Prometheus and RocketMQ's message trace."""
