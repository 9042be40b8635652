"""Several Topics may name the same topic of a Broker: the oldest owns it, the others wait."""

from __future__ import annotations

from collections.abc import Iterable

from delaymq_operator.api import SpecError, Topic, parse_topic
from delaymq_operator.api.names import BROKER_KIND, TOPIC_KIND
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.reconcile.world import Key, World


class TopicNames:
    """Which Topics of a Broker name which topic; kept under the Broker's key.

    It is read from the cache once; later every Topic enters itself. What is found is looked up again, so that a Topic
    that is gone does not count.
    """

    def __init__(self) -> None:
        self._resources: dict[str, set[str]] | None = None

    def others(self, topic: Topic, world: World) -> list[Topic]:
        """All other Topics that name the same topic and are not being deleted."""
        if self._resources is None:
            self._resources = {}
            for body in world.cache.all(TOPIC_KIND, topic.namespace):
                self._enter(topic.spec.broker_ref.name, body)
        resources = self._resources.setdefault(topic.topic_name, set())
        resources.add(topic.name)
        if len(resources) == 1:
            return []
        bodies = {name: world.cache.get(TOPIC_KIND, topic.namespace, name) for name in resources - {topic.name}}
        found = [body for body in bodies.values() if body is not None]
        resources.difference_update(name for name, body in bodies.items() if body is None)
        return [other for other in rivals(topic, found) if not other.deleting]

    def _enter(self, broker: str, body: Manifest) -> None:
        assert self._resources is not None
        spec = body.get("spec") or {}
        if (spec.get("brokerRef") or {}).get("name") == broker:
            name = body["metadata"]["name"]
            self._resources.setdefault(spec.get("topicName") or name, set()).add(name)


def rivals(topic: Topic, bodies: Iterable[Manifest]) -> list[Topic]:
    """Those of the Topics in `bodies` that name the same topic of the same Broker, oldest first; not itself."""
    found = []
    for body in bodies:
        try:
            other = parse_topic(body)
        except SpecError:
            continue  # it never gets as far as a broker
        same = (other.namespace, other.spec.broker_ref.name, other.topic_name) == (
            topic.namespace,
            topic.spec.broker_ref.name,
            topic.topic_name,
        )
        if same and other.uid != topic.uid:
            found.append(other)
    return sorted(found, key=age)


def age(topic: Topic) -> tuple[str, str]:
    """Orders Topics, the oldest first; creation times have whole seconds only."""
    return topic.creation_timestamp, topic.uid


def names_of(topic: Topic, world: World) -> TopicNames:
    """The index that `topic` belongs to."""
    return world.memory.of(Key(BROKER_KIND, topic.namespace, topic.spec.broker_ref.name), TopicNames)
