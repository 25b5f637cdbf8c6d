"""Decides which run gets which GPUs, and when.

Owns `EVT_SCHEDULER_<cell>` and the table `ASSIGNMENTS`. Hears commands, agents' facts and
failover's verdicts; `core.decide` decides, `shell.service` appends and publishes.
"""
