"""Records and columns: RocketMQ's records as Arrow, and rows as messages."""
