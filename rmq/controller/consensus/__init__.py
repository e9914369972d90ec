"""Raft: the algorithm, its journal and its messages."""
