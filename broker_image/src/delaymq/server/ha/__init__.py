"""Interoperation with RocketMQ's replication: plain slaves of this broker, and this broker as a plain slave.

A plain slave copies the log over RocketMQ's HA protocol. It is for migration: it takes no part in decisions about the
master, and its reports confirm nothing. Invariant: a slave receives only bytes that are confirmed.
"""
