"""Producers: messages checked, packed, sent one by one, in batches, or in transactions."""
