"""Sends: rules for messages, their records, and their acknowledgement."""
