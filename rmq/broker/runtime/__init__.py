"""The loops, ports, threads and links of a running broker: all of its `async` code."""
