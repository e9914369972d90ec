"""The pages: HTML from templates, over the operations."""
