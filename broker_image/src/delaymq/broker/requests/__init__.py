"""Requests as the domain sees them: the client's session, the results of a processor, and its errors.

Imports no other package of the broker.
"""
