"""Replication between master and slaves: sessions, links and tables. Pure; the loops are in `runtime`."""
