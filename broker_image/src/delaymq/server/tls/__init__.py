"""Server-side TLS: contexts, certificates and their reloading at run time.

Here: certificates that a server presents and accepts. Not here: handshakes of connections (transport/). Invariant: an
invalid pair of files never replaces a valid one.
"""
