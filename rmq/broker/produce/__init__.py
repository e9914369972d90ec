"""Sends: what may be stored, as which record, and when it is acknowledged."""
