"""Requests of operators: topics, groups, statistics, queries, metrics; and registration with name servers."""
