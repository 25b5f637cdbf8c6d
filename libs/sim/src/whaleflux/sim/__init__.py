"""Production decision cores in virtual time: tests, benchmarks and what-if."""
