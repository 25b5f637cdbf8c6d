"""What failover thinks: pure, deterministic, without clock or bus."""
