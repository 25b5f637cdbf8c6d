"""`python -m whaleflux.client.cli`."""

import sys

from whaleflux.client.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
