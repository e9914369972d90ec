"""Pulls: what a consumer may read, and long polls that wait for new messages."""
