"""Producers: messages checked, packed, and sent singly, in batches, or in transactions."""
