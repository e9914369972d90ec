"""Operations: each action on a cluster as a function with typed arguments and a typed result, called by pages
and served by the API."""
