"""Consumers: members of groups, their queues, pulls, deliveries and retries."""
