"""The history of charts: figures that are sampled and kept in SQLite."""
