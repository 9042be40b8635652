"""The operator's program with simple reconcilers: each Broker gets a ConfigMap, an Event and a status.

Everything else is the real program. A Topic is released when its Broker has no annotation `test/hold`.
"""

from __future__ import annotations

import os
import sys

from delaymq_operator.logs import configure_logging
from delaymq_operator.main import end_process, serve
from delaymq_operator.reconcile.context import Key, Outcome, ReconcileContext, Waiting
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.runtime import Reconcilers
from delaymq_operator.settings import read_settings


async def reconcile_broker(key: Key, world: ReconcileContext) -> Outcome:
    """Apply a ConfigMap with the Broker's generation."""
    print("RECONCILE", key, flush=True)
    broker = world.cache.get(*key)
    if broker is None:
        return Outcome()
    wanted = _config_map(broker)
    live = world.cache.get("ConfigMap", key.namespace, wanted["metadata"]["name"])
    if live is None or live.get("data") != wanted["data"]:
        await world.kube.apply(wanted)
        await world.kube.event(broker, type="Normal", reason="Applied", message="the ConfigMap was applied")
        status = {"status": {"observedGeneration": broker["metadata"]["generation"]}}
        await world.kube.patch("Broker", key.namespace, key.name, status, subresource="status")
    return Outcome(world.settings.poll_interval_s)


async def reconcile_nothing(key: Key, world: ReconcileContext) -> Outcome:
    """Print the key."""
    print("RECONCILE", key, flush=True)
    return Outcome()


async def release_topic(key: Key, world: ReconcileContext) -> Waiting | None:
    """Wait while the Broker has the annotation `test/hold`."""
    print("RELEASE", key, flush=True)
    topic = world.cache.get(*key)
    broker = world.cache.get("Broker", key.namespace, topic["spec"]["brokerRef"]["name"]) if topic else None
    if broker is not None and "test/hold" in (broker["metadata"].get("annotations") or {}):
        return Waiting("the Broker holds it", 1.0)
    return None


async def release_levels(key: Key, world: ReconcileContext) -> Waiting | None:
    """Release a DelayLevelConfig immediately."""
    print("RELEASE", key, flush=True)
    return None


def _config_map(broker: Manifest) -> Manifest:
    metadata = broker["metadata"]
    owner = {"apiVersion": broker["apiVersion"], "kind": "Broker", "name": metadata["name"], "uid": metadata["uid"]}
    labels = {
        "app.kubernetes.io/managed-by": "delaymq-operator",
        "app.kubernetes.io/instance": metadata["name"],
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{metadata['name']}-broker-conf",
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
        },
        "data": {"generation": str(metadata["generation"])},
    }


def reconcilers() -> Reconcilers:
    """Return the reconcilers of all three kinds."""
    return Reconcilers(
        reconcile={"Broker": reconcile_broker, "Topic": reconcile_nothing, "DelayLevelConfig": reconcile_nothing},
        release={"Topic": release_topic, "DelayLevelConfig": release_levels},
    )


if __name__ == "__main__":
    settings = read_settings(sys.argv[1:], os.environ)
    configure_logging(settings.log_format, settings.log_level)
    end_process(serve(settings, reconcilers))
