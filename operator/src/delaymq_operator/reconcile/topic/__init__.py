"""Reconciliation of a Topic: a RocketMQ topic in every group of a Broker, and at the NameServers if it is ordered.

Only the settings in the spec are maintained; all others are left to their owners. Only release.py deletes, for the
Topic that owns the name, with deletionPolicy Delete.
"""

from delaymq_operator.reconcile.topic.reconcile import reconcile_topic
from delaymq_operator.reconcile.topic.release import release_topic

__all__ = ["reconcile_topic", "release_topic"]
