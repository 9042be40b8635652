"""Read-only tools on top of the reader: verify, inspect, and the check before a migration back to RocketMQ.

This package reports on stores; a running broker does not need it. Invariant: tools never write to the store and never
take its lock.
"""
