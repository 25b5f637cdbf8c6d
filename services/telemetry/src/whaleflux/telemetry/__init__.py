"""Keeps what nodes measure: the live picture of every GPU.

Hears `wf.smp.<node>`; writes the live ring `tel:` in Valkey, Prometheus metrics, and answers
`wf.qry.telemetry.gpus`. Nothing is decided yet, so there is no core.
"""
