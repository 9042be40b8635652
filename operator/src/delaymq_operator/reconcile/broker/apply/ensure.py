"""Ensuring that an object exists: nothing is sent if it is up to date, and foreign objects are never taken over."""

from __future__ import annotations

import asyncio

from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import BROKER_KIND, GROUP, MANAGED_BY_LABEL, MANAGED_BY_VALUE
from delaymq_operator.manifests.hashes import digest
from delaymq_operator.reconcile.broker.apply.compare import covers
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.broker.model.memory import Applied
from delaymq_operator.reconcile.ports import Manifest

# Number of times that others revert an object before it is left unchanged, and for how long:
_REPEATS = 5
_REPEAT_S = 300.0
MANIFEST_ANNOTATION = f"{GROUP}/manifest"
"""Hash of the applied object. It reveals fields that are no longer desired, which a comparison with the desired
state cannot.
"""


class NotOursError(Exception):
    """An object with this name exists but belongs to another owner."""

    def __init__(self, message: str, *, leftover: bool = False) -> None:
        super().__init__(message)
        self.leftover = leftover
        """Whether it belongs to an earlier Broker of the same name and will be deleted with it."""


async def ensure(p: BrokerPass, desired: Manifest) -> Manifest:
    """Return the object, applied if it differs from `desired`. NotOursError, KubeError.

    An object that is being deleted is left alone and returned. An object that stays different though it was applied
    (something else writes the same field) is not applied again before it changes.
    """
    # A Broker may have a hundred objects: other tasks run between two of them.
    await asyncio.sleep(0)
    kind, name = desired["kind"], desired["metadata"]["name"]
    wanted_digest = digest(desired)
    desired = _with_digest(desired, wanted_digest)
    last = p.memory.applied.get((kind, name))
    live = p.cached(kind, name)
    if live is None:
        # The cache may lag behind, and contains no foreign objects.
        live = await p.ctx.kube.get(kind, p.namespace, name)
    if live is not None:
        check_ours(p, live)
        if live["metadata"].get("deletionTimestamp") or covers(live, desired):
            return live
    version = live["metadata"].get("resourceVersion", "") if live is not None else ""
    if live is not None and last is not None and last.digest == wanted_digest:
        if version == last.seen_version:
            return last.result
        if version == last.result["metadata"].get("resourceVersion"):
            return live
    repeated = last.repeated + 1 if last is not None and last.digest == wanted_digest else 0
    if live is not None and last is not None and repeated > _REPEATS:
        if p.now_ms - last.at_ms < _REPEAT_S * 1000:
            _report_fought_over(p, f"{kind} {name}")
            return live
        repeated = 0
    done = await p.ctx.kube.apply(desired)
    p.memory.applied[kind, name] = Applied(
        digest=wanted_digest, seen_version=version, result=done, at_ms=p.now_ms, repeated=repeated
    )
    return done


def _report_fought_over(p: BrokerPass, what: str) -> None:
    p.problem(
        Reason.APPLY_FAILED,
        f"Another client keeps reverting {what}: find it in metadata.managedFields, and stop it.",
    )
    p.requeue(_REPEAT_S)


def _with_digest(desired: Manifest, wanted_digest: str) -> Manifest:
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), MANIFEST_ANNOTATION: wanted_digest}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def check_ours(p: BrokerPass, live: Manifest) -> None:
    """Raise NotOursError if an object must not be changed."""
    metadata = live["metadata"]
    what = f"{live.get('kind', 'the object')} {metadata['name']}"
    controllers = [owner for owner in metadata.get("ownerReferences") or [] if owner.get("controller")]
    for owner in controllers:
        if owner.get("uid") == p.broker.uid:
            continue
        if owner.get("kind") == BROKER_KIND and owner.get("name") == p.broker.name:
            raise NotOursError(
                (f"{what} belongs to a previous Broker with this name and is still being deleted"), leftover=True
            )
        raise NotOursError(
            f"{what} belongs to {owner.get('kind')} {owner.get('name')}: delete {what}, or create the Broker under "
            "another name"
        )
    if not controllers and (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) != MANAGED_BY_VALUE:
        raise NotOursError(
            f"{what} already exists but does not belong to this Broker: delete {what}, or create the Broker under "
            "another name"
        )
