"""Client core shared by producers, consumers and the admin.

Here: connections, NameServers, routes, heartbeats, requests in both directions. Not here: the parts specific to
sending and consuming. Invariants: no other subpackage is imported; every request ends by its timeout.
"""
