"""Decides which nodes may be used, and when a lost node's work may start elsewhere.

Owns `EVT_FAILOVER` (one writer: the holder of the leader lease `failover`). Hears agents renewing
their node's lease on `wf.qry.failover.lease.<node>`; says what became of nodes. `core.decide`
decides, `core.watch` keeps the clocks, `shell.service` appends and answers.
"""
