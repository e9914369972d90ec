"""Migration of a cluster of Apache RocketMQ to rmq: differences that matter, each with its remedy."""
