"""The watch cache: updates from watches, lists and own writes, and the keys they enqueue."""

from __future__ import annotations

from typing import Any

import pytest
from delaymq_operator.api.broker import parse_broker
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.controller.event_mapping import keys_to_enqueue
from delaymq_operator.manifests import AnalyticsRun, analytics_application
from delaymq_operator.reconcile.context import Key

Manifest = dict[str, Any]
OURS = {"app.kubernetes.io/managed-by": "delaymq-operator", "app.kubernetes.io/instance": "demo"}


def an_object(kind: str, name: str, version: int, **more: Any) -> Manifest:
    metadata: Manifest = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    metadata |= more.pop("metadata", {})
    if kind not in ("Broker", "Topic", "DelayLevelConfig", "User"):
        metadata.setdefault("labels", OURS)
    return {"kind": kind, "apiVersion": "v1", "metadata": metadata, **more}


class Seen:
    """A cache and the keys that its changes enqueue."""

    def __init__(self, namespaces: tuple[str, ...] = ()) -> None:
        self.woken: list[Key] = []
        self.cache = WatchCache(self._changed, namespaces=namespaces)

    def _changed(self, kind: str, before: Manifest | None, after: Manifest | None) -> None:
        self.woken += keys_to_enqueue(kind, before, after, self.cache)

    def woken_by(self, *objects: Manifest) -> list[Key]:
        self.woken.clear()
        for one in objects:
            self.cache.put(one["kind"], one)
        return list(self.woken)

    def event(self, one: Manifest) -> None:
        """Pass an object to the cache as an event of a watch, and discard the enqueued keys."""
        self.cache.put(one["kind"], one, event=True)
        self.woken.clear()


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_older_version_never_replaces_newer_one(seen: Seen) -> None:
    seen.cache.put("Pod", an_object("Pod", "p", 10, status={"phase": "Running"}))
    seen.cache.put("Pod", an_object("Pod", "p", 9, status={"phase": "Pending"}))
    found = seen.cache.get("Pod", "ns", "p")
    assert found is not None
    assert found["status"] == {"phase": "Running"}


def test_response_completes_object_from_outdated_watch(seen: Seen) -> None:
    """A watch that started before a CRD update returns objects without the new fields."""
    seen.event(an_object("Broker", "demo", 10, spec={}))
    assert seen.woken_by(an_object("Broker", "demo", 10, spec={"paused": True})) == [Key("Broker", "ns", "demo")]
    seen.event(an_object("Broker", "demo", 10, spec={}))
    found = seen.cache.get("Broker", "ns", "demo")
    assert found is not None
    assert found["spec"] == {"paused": True}


def test_list_completes_object_and_ignores_differences_in_form(seen: Seen) -> None:
    whole = an_object("Broker", "demo", 10, spec={"paused": True})
    item = {key: value for key, value in whole.items() if key not in ("apiVersion", "kind")}
    seen.event(an_object("Broker", "demo", 10, spec={}))
    assert seen.cache.differs("Broker", None, [item], "11")
    assert seen.cache.replace("Broker", None, [item], "11") == 1
    assert seen.woken == [Key("Broker", "ns", "demo")]
    seen.event(whole)
    item["metadata"] |= {"managedFields": [{"manager": "kubectl"}]}
    assert not seen.cache.differs("Broker", None, [item], "12")


def test_deletion_of_former_object_with_same_name_is_ignored(seen: Seen) -> None:
    seen.cache.put("Pod", an_object("Pod", "p", 10, metadata={"uid": "new"}))
    seen.cache.remove("Pod", an_object("Pod", "p", 11, metadata={"uid": "old"}))
    assert seen.cache.get("Pod", "ns", "p") is not None
    seen.cache.remove("Pod", an_object("Pod", "p", 12, metadata={"uid": "new"}))
    assert seen.cache.get("Pod", "ns", "p") is None


def test_managed_fields_are_not_cached(seen: Seen) -> None:
    seen.cache.put("Pod", an_object("Pod", "p", 1, metadata={"managedFields": [{"manager": "x"}]}))
    assert "managedFields" not in seen.cache.all("Pod")[0]["metadata"]


def test_unmanaged_objects_and_other_namespaces_are_not_cached() -> None:
    seen = Seen(("ns",))
    seen.cache.put("Pod", an_object("Pod", "theirs", 1, metadata={"labels": {}}))
    seen.cache.put("Broker", an_object("Broker", "elsewhere", 1, metadata={"namespace": "other"}))
    assert seen.cache.all("Pod") == seen.cache.all("Broker") == []


def test_reading_unwatched_kind_raises_error(seen: Seen) -> None:
    with pytest.raises(LookupError, match=r"kube\.get"):
        seen.cache.get("Secret", "ns", "demo-http-token")


def test_objects_are_found_by_owner_and_by_label(seen: Seen) -> None:
    owned = an_object("Pod", "p0", 1, metadata={"ownerReferences": [{"uid": "set"}]})
    seen.cache.put("Pod", owned)
    seen.cache.put("Pod", an_object("Pod", "p1", 2, metadata={"labels": OURS | {"delaymq.io/group": "1"}}))
    assert [pod["metadata"]["name"] for pod in seen.cache.owned("Pod", "set")] == ["p0"]
    assert [pod["metadata"]["name"] for pod in seen.cache.labelled("Pod", "ns", {"delaymq.io/group": "1"})] == ["p1"]
    seen.cache.put("Pod", an_object("Pod", "p0", 3))
    assert seen.cache.owned("Pod", "set") == []


def test_list_removes_missing_objects_except_newer_ones(seen: Seen) -> None:
    for name, version in (("gone", 5), ("kept", 6), ("younger", 30)):
        seen.cache.put("Service", an_object("Service", name, version))
    listed = [an_object("Service", "kept", 6), an_object("Service", "missed", 8)]
    assert seen.cache.differs("Service", None, listed, "20")
    assert seen.cache.replace("Service", None, listed, "20") == 2
    assert sorted(one["metadata"]["name"] for one in seen.cache.all("Service")) == ["kept", "missed", "younger"]
    assert not seen.cache.differs("Service", None, listed, "20")


def test_list_of_one_namespace_leaves_other_namespaces_unchanged(seen: Seen) -> None:
    seen.cache.put("Service", an_object("Service", "elsewhere", 5, metadata={"namespace": "other"}))
    assert seen.cache.replace("Service", "ns", [], "20") == 0


def test_owned_object_enqueues_broker_unless_only_its_version_changed(seen: Seen) -> None:
    assert seen.woken_by(an_object("Pod", "p", 1)) == [Key("Broker", "ns", "demo")]
    assert seen.woken_by(an_object("Pod", "p", 2)) == []
    assert seen.woken_by(an_object("Pod", "p", 3, status={"phase": "Running"})) == [Key("Broker", "ns", "demo")]


def test_analytics_driver_enqueues_broker_and_executors_are_not_cached(seen: Seen) -> None:
    broker = parse_broker({"metadata": {"name": "demo", "namespace": "ns"}, "spec": {"analytics": {}}})
    assert broker.spec.analytics is not None
    run = AnalyticsRun(group=0, token="1", image="i", read="HTTP")
    made = analytics_application(broker, broker.spec.analytics, run)
    # The Spark operator gives pods the application's labels, overridden by the labels of their role.
    driver, executor = (made["metadata"]["labels"] | made["spec"][role]["labels"] for role in ("driver", "executor"))
    assert seen.woken_by(an_object("Pod", "d", 1, metadata={"labels": driver})) == [Key("Broker", "ns", "demo")]
    assert seen.woken_by(an_object("Pod", "e", 2, metadata={"labels": executor})) == []
    assert seen.cache.counts()["Pod"] == 1


def test_own_status_and_kopf_annotations_enqueue_nothing(seen: Seen) -> None:
    spec = {"brokerRef": {"name": "demo"}}
    seen.woken_by(an_object("Topic", "t", 1, spec=spec, metadata={"generation": 1}))
    noted = {"generation": 1, "annotations": {"delaymq.io/kopf-managed": "yes", "delaymq.io/release": "{}"}}
    assert seen.woken_by(an_object("Topic", "t", 2, spec=spec, status={"topicName": "t"}, metadata=noted)) == []
    wished = an_object("Topic", "t", 3, spec=spec, metadata=noted | {"generation": 2})
    assert seen.woken_by(wished) == [Key("Topic", "ns", "t")]


def test_broker_enqueues_topics_on_readiness_change_but_not_on_figures(seen: Seen) -> None:
    for name, broker in (("mine", "demo"), ("theirs", "other")):
        seen.woken_by(an_object("Topic", name, 1, spec={"brokerRef": {"name": broker}}))
    group = {"group": 0, "ready": False, "pending": 1}
    keys = seen.woken_by(an_object("Broker", "demo", 2, status={"groups": [group]}))
    assert keys == [Key("Broker", "ns", "demo"), Key("Topic", "ns", "mine")]
    assert seen.woken_by(an_object("Broker", "demo", 3, status={"groups": [group | {"pending": 2}]})) == []
    keys = seen.woken_by(an_object("Broker", "demo", 4, status={"groups": [group | {"ready": True}]}))
    assert keys == [Key("Topic", "ns", "mine")]


def test_restart_annotation_enqueues_broker(seen: Seen) -> None:
    seen.woken_by(an_object("Broker", "demo", 1))
    annotated = an_object("Broker", "demo", 2, metadata={"annotations": {"delaymq.io/restart": "now"}})
    assert Key("Broker", "ns", "demo") in seen.woken_by(annotated)


def test_delay_levels_enqueue_brokers_and_changed_reference_enqueues_both(seen: Seen) -> None:
    levels = [an_object("DelayLevelConfig", name, 1, metadata={"generation": 1}) for name in ("old", "new")]
    broker = an_object("Broker", "demo", 2, spec={"delayLevelConfigRef": {"name": "old"}}, metadata={"generation": 1})
    seen.woken_by(*levels, broker)
    changed = an_object("DelayLevelConfig", "old", 3, metadata={"generation": 2})
    assert seen.woken_by(changed) == [Key("DelayLevelConfig", "ns", "old"), Key("Broker", "ns", "demo")]
    broker = an_object("Broker", "demo", 4, spec={"delayLevelConfigRef": {"name": "new"}}, metadata={"generation": 2})
    assert set(seen.woken_by(broker)) == {
        Key("Broker", "ns", "demo"),
        Key("DelayLevelConfig", "ns", "old"),
        Key("DelayLevelConfig", "ns", "new"),
    }


def test_deletion_of_conflicting_topic_enqueues_the_other(seen: Seen) -> None:
    older = an_object("Topic", "older", 1, spec={"brokerRef": {"name": "demo"}, "topicName": "orders"})
    younger = an_object("Topic", "orders", 2, spec={"brokerRef": {"name": "demo"}})
    seen.woken_by(older, younger)
    seen.woken.clear()
    seen.cache.remove("Topic", older)
    assert Key("Topic", "ns", "orders") in seen.woken


def test_conflicting_topics_are_found_without_scanning_all_topics(seen: Seen) -> None:
    def looked_through(kind: str, namespace: str | None = None) -> list[Manifest]:
        raise AssertionError("all Topics were looked through for one of them")

    seen.cache.all = looked_through
    topics = [an_object("Topic", f"t{n}", n, spec={"brokerRef": {"name": "demo"}}) for n in range(1, 4)]
    same = an_object("Topic", "same", 9, spec={"brokerRef": {"name": "demo"}, "topicName": "t2"})
    assert seen.cache.replace("Topic", None, [*topics, same], "9") == 4
    assert seen.cache.conflicting_topics(same) == [topics[1]]
    moved = an_object("Topic", "same", 10, spec={"brokerRef": {"name": "demo"}, "topicName": "t3"})
    seen.cache.put("Topic", moved)
    assert seen.cache.conflicting_topics(topics[1]) == []
    assert seen.cache.conflicting_topics(moved) == [topics[2]]
    seen.cache.remove("Topic", topics[2])
    assert seen.cache.conflicting_topics(moved) == []
    assert seen.woken[-1] == Key("Topic", "ns", "same")


def test_user_enqueues_itself_and_its_deletion_the_broker_and_users_with_the_same_access_key(seen: Seen) -> None:
    def user(name: str, version: int, **spec: Any) -> Manifest:
        return an_object("User", name, version, spec={"brokerRef": {"name": "demo"}} | spec)

    first, second = Key("User", "ns", "orders-service"), Key("User", "ns", "second")
    assert seen.woken_by(user("orders-service", 1)) == [first]
    assert seen.woken_by(user("second", 2, accessKey="orders-service"), user("third-service", 3))[0] == second
    assert seen.woken_by(user("orders-service", 4) | {"status": {"accessKey": "orders-service"}}) == []
    seen.woken.clear()
    seen.cache.remove("User", user("orders-service", 5))
    assert seen.woken == [first, Key("Broker", "ns", "demo"), second]
    assert second in seen.woken_by(an_object("Broker", "demo", 6, spec={"accessControl": {"users": True}}))
