"""Operations: each act on a cluster once, as a function with typed arguments and a typed result. Pages call
them, and the API serves them."""
