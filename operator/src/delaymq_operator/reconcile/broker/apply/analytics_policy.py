"""NetworkPolicy of drivers and executors, in effect before the first of them and until the last."""

from __future__ import annotations

from contextlib import suppress

from delaymq_operator.manifests import analytics_network_policy, component_labels
from delaymq_operator.reconcile.broker.apply.ensure import NotOursError, ensure
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass


async def ensure_policy(p: BrokerPass) -> None:
    """Apply the policy if the Broker has policies enabled. NotOursError, KubeError."""
    if p.broker.spec.network_policy.enabled:
        await ensure(p, analytics_network_policy(p.broker))


async def keep_policy(p: BrokerPass) -> None:
    """Restore the policy in every pass. A name conflict is reported by the next run, which cannot start. KubeError."""
    if p.may_change:
        with suppress(NotOursError):
            await ensure_policy(p)


def needs_policy(p: BrokerPass) -> bool:
    """Return whether an existing policy is kept: without spec.analytics, until runs and drivers are deleted."""
    if not p.broker.spec.network_policy.enabled:
        return False
    if p.broker.spec.analytics is not None or p.analytics.status is not None:
        return True
    return bool(p.ctx.cache.labelled("Pod", p.namespace, component_labels(p.broker, "analytics")))
