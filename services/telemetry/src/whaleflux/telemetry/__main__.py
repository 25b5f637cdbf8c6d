"""Run with `python -m whaleflux.telemetry`."""

from whaleflux.telemetry.main import main

main()
