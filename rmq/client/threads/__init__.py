"""An event loop for programs without async: in a thread of its own, or turned by the caller."""
