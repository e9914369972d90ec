"""Parts that broker, name server and controllers share: pages, health, signals, process, log, profiles."""
