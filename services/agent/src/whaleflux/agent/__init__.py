"""The agent: makes a node match its assignment, and reports."""
