"""A proxy: the gRPC door as a process before a cluster."""
