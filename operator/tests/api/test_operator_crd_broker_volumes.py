"""Validation of changes of `spec.storage` by a real API server, depending on `status.volumes`."""

from __future__ import annotations

import pytest
from delaymq_operator_testing.api_server import ApiError, ApiServer
from delaymq_operator_testing.crd_requests import CLASS_FIXED, Spec, collection, manifest, sentences


def _shrinks(to: str, has: str) -> tuple[str, str]:
    what = f"a volume cannot shrink to {to}: the smallest volume of this Broker has {has}"
    return "spec.storage.size", f"{what}; use this size or more, or move to a new Broker with smaller volumes"


def _of(smallest: str = "10Gi", chosen: str = "") -> Spec:
    return {"smallest": smallest} | ({"storageClassName": chosen} if chosen else {})


CHANGES: list[tuple[Spec, Spec | None, Spec, tuple[str, str] | None]] = [
    ({"size": "900Ti"}, _of("10Gi"), {"size": "10Gi"}, None),
    ({"size": "900Ti"}, _of("10Gi"), {"size": "10240Mi"}, None),
    ({"size": "900Ti"}, _of("10Gi"), {"size": "9Gi"}, _shrinks("9Gi", "10Gi")),
    ({"size": "10Gi"}, _of("20Gi"), {"size": "15Gi"}, None),
    ({"size": "20Gi"}, _of("20Gi"), {"size": "10G"}, _shrinks("10G", "20Gi")),
    ({"size": "900Ti"}, None, {"size": "10Gi"}, None),
    ({"storageClassName": "fsat"}, None, {"storageClassName": "fast"}, None),
    ({"storageClassName": "fsat"}, None, {}, None),
    ({}, None, {"storageClassName": "fast"}, None),
    ({"storageClassName": "a"}, _of(chosen="a"), {"storageClassName": "b"}, CLASS_FIXED),
    ({"storageClassName": "a"}, _of(chosen="a"), {}, CLASS_FIXED),
    ({"storageClassName": "a"}, _of(), {"storageClassName": "b"}, CLASS_FIXED),
    ({}, _of(chosen="standard"), {"storageClassName": "fast"}, CLASS_FIXED),
    ({"storageClassName": "a"}, _of(), {"storageClassName": "a", "deleteClaim": True}, None),
    # The new class is that of the bound volumes: stated explicitly, or restored after they were bound unnoticed.
    ({}, _of(chosen="standard"), {"storageClassName": "standard"}, None),
    ({"storageClassName": "b"}, _of(chosen="a"), {"storageClassName": "a"}, None),
]
"""Old `spec.storage`, `status.volumes`, new `spec.storage`, and field and message of the error, or None if accepted."""


@pytest.mark.parametrize(("before", "volumes", "after", "refused"), CHANGES)
def test_storage_change_is_accepted_or_rejected_by_volume_status(
    api_server: ApiServer,
    namespace: str,
    before: Spec,
    volumes: Spec | None,
    after: Spec,
    refused: tuple[str, str] | None,
) -> None:
    path = f"{collection(namespace, 'Broker')}/t"
    api_server.create(collection(namespace, "Broker"), manifest("Broker", "t", {"storage": before}))
    made = api_server.merge(f"{path}/status", {"status": {"volumes": volumes}})
    changed = manifest("Broker", "t", {"storage": after})
    changed["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    if refused is None:
        kept = api_server.request("PUT", path, changed)["spec"]["storage"]
        assert kept == {"deleteClaim": False, "size": "10Gi"} | after
        return
    with pytest.raises(ApiError) as error:
        api_server.request("PUT", path, changed)
    assert sentences(error.value) == [refused]
