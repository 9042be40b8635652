"""Reconciliation: from the observed state of the cluster and the brokers to the next action. Imports no kopf,
Kubernetes client or sockets.

Level-based: every decision follows from the current state, so the operator may stop at any time. Waiting is an
Outcome with a requeue time, never a sleep.
"""
