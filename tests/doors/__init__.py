"""Doors: protocols of third parties on a broker. `package` holds one as its authors would publish it."""
