"""Byte streams: TCP, TLS and WebSocket behind the same interface."""
