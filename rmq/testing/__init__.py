"""Fakes for tests of rmq and of programs that use it; the same ones that rmq's own tests run on."""

from rmq.testing.network import MemoryHost, MemoryListener, MemoryNetwork, MemoryStream

__all__ = ["MemoryHost", "MemoryListener", "MemoryNetwork", "MemoryStream"]
