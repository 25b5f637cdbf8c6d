"""What the scheduler touches: streams, the assignment table, snapshots."""
