"""Decides who may do what, and is the way in: HTTP, events, views.

Owns `EVT_GATEWAY` (tenants and keys) and `PUB` (what tenants may know); sends commands. What it
shows is folded from the other services' logs into views that can be lost and rebuilt.
"""
