"""The accepting side: acceptance of connections, their first bytes, doors, the server."""
