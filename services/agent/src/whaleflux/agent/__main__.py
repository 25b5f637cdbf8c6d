"""Start the agent: `python -m whaleflux.agent`."""

from whaleflux.agent.main import main

main()
