"""Run with `python -m whaleflux.failover`."""

from whaleflux.failover.main import main

main()
