"""Copies: topics, groups, offsets and accounts of a cluster as a manifest, and stores as backups."""
