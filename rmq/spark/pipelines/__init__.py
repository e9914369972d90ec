"""Pipelines: whole jobs made of the data sources. Each is a function that `rmq.spark` has, and a command."""
