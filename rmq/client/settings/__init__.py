"""Which cluster a client connects to when its arguments do not say."""
