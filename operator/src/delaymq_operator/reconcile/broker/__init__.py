"""Reconciliation of a Broker. `reconcile.py` lists the steps in order; each has a module in the package of its
phase.

`observe` reads the current state, `apply` creates and updates objects, `roll` restarts and removes brokers,
`analytics` runs Spark, `report` writes the status; `model` contains shared data. Imports go report → roll, analytics
→ apply → observe → model, never back.

Decisions depend only on the state of the cluster and the brokers. Memory only saves requests and repetitions: a new
operator decides the same, whenever the previous one stopped. A pod is deleted only by its uid.
"""

from delaymq_operator.reconcile.broker.reconcile import reconcile_broker

__all__ = ["reconcile_broker"]
