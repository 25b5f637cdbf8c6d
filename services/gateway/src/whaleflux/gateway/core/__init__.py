"""What the gateway thinks: who may do what, what to show, and what may be public."""
