"""Checks, comparison and repair of a store's folder."""
