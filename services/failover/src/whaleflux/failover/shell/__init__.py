"""What failover does: the bus, the clock, the loop."""
