"""Applies the rates of topics to deliveries, at the start and when the settings of a topic change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from delaymq.schedule.timeline.rates import Smoothing

if TYPE_CHECKING:
    from delaymq.api_types.delay_settings import TopicDelaySettings
    from delaymq.broker.delivery.settings.table import DelaySettingsTable

Smooth: TypeAlias = Callable[[Mapping[str, Smoothing | None]], None]


def smooth_deliveries(settings: DelaySettingsTable, smooth: Smooth, on_change: Callable[[str], None]) -> None:
    """Limit the rates of topics with `smooth` as the settings require, now and whenever they change.

    `on_change` is called when the changed settings of a topic have been applied.
    """

    def changed(topic: str) -> None:
        smooth({topic: _smoothing(settings.of_topic(topic))})
        on_change(topic)

    smooth({topic: _smoothing(each) for topic, each in settings.topics.items()})
    settings.on_topic = changed


def _smoothing(settings: TopicDelaySettings) -> Smoothing | None:
    if settings.max_per_second is None and settings.spread_over_ms is None:
        return None
    return Smoothing(settings.max_per_second, settings.spread_over_ms)
