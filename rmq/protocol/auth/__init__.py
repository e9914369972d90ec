"""Signatures and proofs of requests."""
