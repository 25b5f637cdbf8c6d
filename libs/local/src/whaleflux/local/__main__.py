"""`python -m whaleflux.local`."""

from whaleflux.local.main import main

raise SystemExit(main())
