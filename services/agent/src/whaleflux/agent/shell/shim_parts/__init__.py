"""The parts of whaleflux-shim: standard library only, and little of it."""
