"""Per-message delivery: consumers take messages, and acknowledge each message separately."""
