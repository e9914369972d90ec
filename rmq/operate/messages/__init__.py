"""Messages of a cluster: pages of a topic, a message in detail, traces, dead letters, delayed messages and
transactions."""
