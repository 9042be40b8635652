"""The reconcile of a Broker. `reconcile.py` names the steps in their order; each has a module in the room of its phase.

`observe` finds what is there, `apply` makes objects as they are wanted, `roll` restarts and removes brokers,
`analytics` runs Spark, `report` writes the status; `model` is what they share. Imports go report → roll, analytics →
apply → observe → model, never back.

What is decided from is what the cluster and the brokers say. Memory only saves requests and repetitions: a new
operator, at whatever instant the last one died, decides the same. A pod is only ever deleted by its uid.
"""

from delaymq_operator.reconcile.broker.reconcile import reconcile_broker

__all__ = ["reconcile_broker"]
