"""Clients of the broker: members of groups, their subscriptions, and requests to clients."""
