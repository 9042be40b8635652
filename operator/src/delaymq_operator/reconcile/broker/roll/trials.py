"""Trials: a change to the only NameServer is tested by an additional pod, so that an invalid spec cannot replace it."""

from __future__ import annotations

from delaymq_operator.api import names
from delaymq_operator.api.conditions import Reason
from delaymq_operator.manifests import name_server_trial
from delaymq_operator.reconcile.broker.apply.ensure import check_ours, ensure
from delaymq_operator.reconcile.broker.apply.stateful_sets import made_from
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.ports import Manifest


def must_be_tried(p: BrokerPass) -> bool:
    """Return whether there is only one NameServer, and no ready trial pod with the current spec."""
    if p.broker.spec.name_servers.replicas > 1:
        return False
    pod = p.cached("Pod", names.namesrv_trial_pod(p.broker.name))
    inputs = _inputs(p.name_servers.live)
    return pod is None or not inputs or _inputs(pod) != inputs or not Pod.of(pod, p.now_ms).ready


async def try_out(p: BrokerPass, pod_name: str) -> bool:
    """Perform one step of a trial, and return whether it may succeed; meanwhile the NameServer `pod_name` is
    unchanged.
    """
    trial = names.namesrv_trial_pod(p.broker.name)
    made = made_from(p.name_servers.live)
    if made is None:
        return False
    live = p.cached("StatefulSet", names.namesrv_trial(p.broker.name))
    if live is not None and _inputs(live) != made.inputs:
        await end_trial(p)
        p.progressing(Reason.ROLLING, f"Pod {trial} is being replaced to test another change.")
        return True
    await ensure(p, name_server_trial(p.broker, made.inputs, made.template))
    body = p.cached("Pod", trial)
    problem = Pod.of(body, p.now_ms).problem if body is not None else None
    if problem is None:
        p.progressing(Reason.ROLLING, f"Pod {trial} is testing the change before NameServer {pod_name} is restarted.")
        return True
    p.problem(
        Reason.POD_FAILING,
        f"{problem}. This pod tests a change for NameServer {pod_name}; the NameServer and the brokers keep running "
        f"unchanged. See `kubectl describe pod {trial}` and `kubectl logs {trial}`, and correct the spec.",
    )
    p.progressing(Reason.WAITING_FOR_POD, f"Nothing is restarted until pod {trial} runs.")
    return False


async def end_trial(p: BrokerPass) -> None:
    """Delete the objects of a trial."""
    live = p.cached("StatefulSet", names.namesrv_trial(p.broker.name))
    if live is None or live["metadata"].get("deletionTimestamp"):
        return
    check_ours(p, live)
    await p.ctx.kube.delete("StatefulSet", p.namespace, live["metadata"]["name"], uid=live["metadata"]["uid"])


def _inputs(body: Manifest | None) -> str:
    annotations = ((body or {}).get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(names.INPUTS_ANNOTATION, ""))
