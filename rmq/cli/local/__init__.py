"""Commands that start services or work on local files."""
