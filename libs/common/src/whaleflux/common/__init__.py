"""What every WhaleFlux service shares: messages, log, bus, clock, ids and errors."""
