"""Acceptance of connections, their first bytes, doors, the server."""
