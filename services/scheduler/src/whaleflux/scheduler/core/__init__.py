"""What the scheduler thinks: pure functions over a state that only events change."""
