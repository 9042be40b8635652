"""Conflicts: of several Topics with the same topic of a Broker, the oldest owns it, and the others wait."""

from __future__ import annotations

from collections.abc import Iterable

from delaymq_operator.api import SpecError, Topic, parse_topic
from delaymq_operator.reconcile.ports import Manifest


def conflicting_topics(topic: Topic, bodies: Iterable[Manifest]) -> list[Topic]:
    """Return the other Topics in `bodies` with the same topic of the same Broker, oldest first."""
    found = []
    for body in bodies:
        try:
            other = parse_topic(body)
        except SpecError:
            continue  # it is never created on a broker
        same = (other.namespace, other.spec.broker_ref.name, other.topic_name) == (
            topic.namespace,
            topic.spec.broker_ref.name,
            topic.topic_name,
        )
        if same and other.uid != topic.uid:
            found.append(other)
    return sorted(found, key=age)


def age(topic: Topic) -> tuple[str, str]:
    """Return a sort key for Topics, oldest first; creation times have whole seconds only."""
    return topic.creation_timestamp, topic.uid
