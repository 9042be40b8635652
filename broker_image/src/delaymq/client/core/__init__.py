"""The client that producers, consumers and the admin share.

Here: connections, NameServers, routes, heartbeats, requests in both directions. Not here: what sends and consumers
add. Invariants: no other room is imported; every request ends by its timeout.
"""
