"""Streams of a file: their description, the steps on their rows, and their targets."""
