"""A replica's part in a set whose master the controllers elect."""
