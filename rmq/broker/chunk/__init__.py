"""A chunk of requests: its group commit, the calls of plug-ins and doors, and the steps of the loops."""
