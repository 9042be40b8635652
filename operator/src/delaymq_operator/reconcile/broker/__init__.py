"""The reconcile of a Broker. `reconcile.py` names the steps in their order; each has a module of its own.

What is decided from is what the cluster and the brokers say. Memory only saves requests and repetitions: a new
operator, at whatever instant the last one died, decides the same. A pod is only ever deleted by its uid.
"""

from delaymq_operator.reconcile.broker.reconcile import reconcile_broker

__all__ = ["reconcile_broker"]
