"""Reading topics without a group: at offsets of the application, dead letters, discarded half messages."""
