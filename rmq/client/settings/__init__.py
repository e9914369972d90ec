"""Choice of a client's cluster: arguments, environment and contexts."""
