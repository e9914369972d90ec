"""Pulls: readable messages for consumers, and long polls that wait for new messages."""
