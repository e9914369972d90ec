"""Metrics as Prometheus reads them."""

from __future__ import annotations

from contextlib import suppress

import trio


async def said(address: str, request: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    with trio.fail_after(60):
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            await stream.send_all(request)
            answer = b""
            with suppress(trio.BrokenResourceError):  # a reset, where it hung up before it had read all
                while data := await stream.receive_some():
                    answer += data
    return answer
