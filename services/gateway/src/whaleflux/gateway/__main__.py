"""Run with `python -m whaleflux.gateway`."""

from whaleflux.gateway.main import main

main()
