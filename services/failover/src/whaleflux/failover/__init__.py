"""failover."""
