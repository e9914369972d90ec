"""An event loop for programs without async: in a thread of its own, or run by the calling thread."""
