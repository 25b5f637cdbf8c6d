"""The command line `whaleflux`: data on stdout, everything else on stderr."""
