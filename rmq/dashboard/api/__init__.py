"""The HTTP API: every operation as a path, described by OpenAPI."""
