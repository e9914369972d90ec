"""Filters of subscriptions: tags, SQL-92 and Bloom filters."""
