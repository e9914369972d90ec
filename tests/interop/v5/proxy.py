"""A gRPC proxy that does harm: proxy.py PORT TARGET FAULT; it runs in the environment of the Python client.

It passes all calls on. By FAULT every seventh send is answered and dropped (`drop`), passed on twice
(`double`), or passed on after the send that follows (`swap`); with `forget` every seventh acknowledgement is
answered and dropped. With `none` it does no harm.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-not-found]
from rocketmq.grpc_protocol import service_pb2  # type: ignore[import-not-found]

EVERY = 7


class Passing(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes calls on, but for those that are harmed."""

    def __init__(self, target: str, fault: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(target, options)
        self._fault = fault
        self._numbers = itertools.count(1)
        self._held: list[tuple[str, bytes, Any]] = []
        self._lock = threading.Lock()

    def service(self, details: Any) -> Any:
        """The handler of any method: a stream of bytes both ways."""
        method = details.method
        harmed = "/AckMessage" if self._fault == "forget" else "/SendMessage"
        is_harmed = self._fault != "none" and method.endswith(harmed)

        def behave(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            metadata = [one for one in context.invocation_metadata() if not one[0].startswith("grpc-")]
            if is_harmed:
                yield self._harm(method, next(requests), metadata)
                return
            call = self._channel.stream_stream(method)(
                requests, metadata=metadata, timeout=context.time_remaining()
            )
            context.add_callback(call.cancel)
            try:
                yield from call
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())

        return grpc.stream_stream_rpc_method_handler(behave)

    def _harm(self, method: str, request: bytes, metadata: Any) -> bytes:
        with self._lock:
            hit = next(self._numbers) % EVERY == 0
            if hit and self._fault == "swap":
                self._held.append((method, request, metadata))
            if hit and self._fault in ("drop", "forget", "swap"):
                return self._lie(method, request)
            answer = self._ask(method, request, metadata)
            if hit:
                answer = self._ask(method, request, metadata)
            while self._held:
                self._ask(*self._held.pop())
            return answer

    def _ask(self, method: str, request: bytes, metadata: Any) -> bytes:
        answer: bytes = self._channel.unary_unary(method)(request, metadata=metadata, timeout=10)
        return answer

    def _lie(self, method: str, request: bytes) -> bytes:
        """An answer that all is well."""
        if method.endswith("/AckMessage"):
            acks = service_pb2.AckMessageResponse()
            acks.status.code = 20_000
            for one in service_pb2.AckMessageRequest.FromString(request).entries:
                entry = acks.entries.add(message_id=one.message_id, receipt_handle=one.receipt_handle)
                entry.status.code = 20_000
            return bytes(acks.SerializeToString())
        sends = service_pb2.SendMessageResponse()
        sends.status.code = 20_000
        for message in service_pb2.SendMessageRequest.FromString(request).messages:
            sends.entries.add(message_id=message.system_properties.message_id).status.code = 20_000
        return bytes(sends.SerializeToString())


def main() -> None:
    """Serve until killed."""
    port, target, fault = sys.argv[1:]
    options = [("grpc.max_receive_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(64), options=options)
    server.add_generic_rpc_handlers((Passing(target, fault),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
