"""Messages of a cluster: pages of a topic, one message in detail, traces, dead letters, delayed messages and
transactions."""
