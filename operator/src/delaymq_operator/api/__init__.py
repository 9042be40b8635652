"""The three resources as types: what a spec says, what a status tells, and every name that the operator gives.

The CRDs in crds/ are the source of truth: what is here is compared with them field by field by a test. Bodies come in
as the API server has them (defaults filled in, rules checked); status goes out as plain dicts. No kopf, no kubernetes.
"""

from delaymq_operator.api.analytics import AnalyticsGroupStatus, AnalyticsSpec, AnalyticsStatus
from delaymq_operator.api.broker import Broker, BrokerSpec, parse_broker
from delaymq_operator.api.broker_status import BrokerStatus
from delaymq_operator.api.conditions import (
    Condition,
    ConditionType,
    Reason,
    find_condition,
    with_condition,
    without_condition,
)
from delaymq_operator.api.delay_level_config import (
    DelayLevelConfig,
    DelayLevelConfigSpec,
    DelayLevelConfigStatus,
    parse_delay_level_config,
)
from delaymq_operator.api.errors import SpecError
from delaymq_operator.api.resource import parse_timestamp, status_patch, timestamp
from delaymq_operator.api.topic import Topic, TopicSpec, TopicStatus, parse_topic

__all__ = [
    "AnalyticsGroupStatus",
    "AnalyticsSpec",
    "AnalyticsStatus",
    "Broker",
    "BrokerSpec",
    "BrokerStatus",
    "Condition",
    "ConditionType",
    "DelayLevelConfig",
    "DelayLevelConfigSpec",
    "DelayLevelConfigStatus",
    "Reason",
    "SpecError",
    "Topic",
    "TopicSpec",
    "TopicStatus",
    "find_condition",
    "parse_broker",
    "parse_delay_level_config",
    "parse_timestamp",
    "parse_topic",
    "status_patch",
    "timestamp",
    "with_condition",
    "without_condition",
]
