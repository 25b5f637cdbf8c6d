"""Fixtures that every test folder shares, loaded by pytest through `addopts`."""
