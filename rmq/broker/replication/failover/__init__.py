"""Failover of a broker in a set with controllers."""
