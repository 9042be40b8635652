"""Settings that running brokers receive without a restart, including the delay levels."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from delaymq_operator.api.conditions import Reason
from delaymq_operator.manifests import broker_settings, hot_settings
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable

_SHOWN_KEYS = 5


def changed_settings(desired: Mapping[str, str], running: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that differ. A key unknown to the running broker waits for its next image."""
    return {key: value for key, value in desired.items() if key in running and not _same(value, running[key])}


def _same(one: str, other: str) -> bool:
    return one.split() == other.split()


async def apply_settings(p: BrokerPass) -> None:
    """Apply the settings to every reachable broker; a key removed from the spec returns to its default."""
    desired = hot_settings(broker_settings(p.broker.spec, p.delay))
    for group in p.groups:
        if group.info is not None and group.endpoint is not None:
            await _apply(p, group, changed_settings(desired, group.info.settings))


async def _apply(p: BrokerPass, group: Group, changed: dict[str, str]) -> None:
    if not changed or group.endpoint is None or group.info is None:
        return
    try:
        await p.ctx.admin.set_settings(group.endpoint, changed)
    except BrokerUnreachable as error:
        group.unreachable = str(error)
        return
    except BrokerRefused as error:
        p.not_applied(Reason.APPLY_FAILED, f"{group.name} rejects settings: {error.message}. Correct spec.config.")
        return
    group.info = replace(group.info, settings={**group.info.settings, **changed})
    shown = sorted(changed)[:_SHOWN_KEYS]
    more = f" and {len(changed) - len(shown)} more" if len(changed) > len(shown) else ""
    await p.event(
        "Normal", "SettingsChanged", f"{group.name} applied new settings without a restart: {', '.join(shown)}{more}"
    )
