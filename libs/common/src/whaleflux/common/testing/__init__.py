"""Clocks, buses and servers that tests can steer; never imported by production code."""
