"""Per-message delivery: consumers take messages, and acknowledge each one by itself."""
