"""What telemetry does: hear, keep, show."""
