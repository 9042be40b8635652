"""Fake registers: etcd's JSON gateway and the API server's Leases, behind an HTTP server with faults."""
