"""A Topic: one RocketMQ topic in every group of a Broker, and at the NameServers when it is ordered.

Only what the spec names is kept as it says; all else belongs to whoever set it. What is deleted is deleted by
release.py alone, for the Topic that owns the name, with deletionPolicy Delete.
"""

from delaymq_operator.reconcile.topic.reconcile import reconcile_topic
from delaymq_operator.reconcile.topic.release import release_topic

__all__ = ["reconcile_topic", "release_topic"]
