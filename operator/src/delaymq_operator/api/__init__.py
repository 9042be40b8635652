"""Types of the four resources: specs, statuses, and every name that the operator assigns.

The CRDs in crds/ are the source of truth: a test compares these types with them field by field. Bodies come from the
API server (defaults filled in, rules checked); statuses are returned as plain dicts. Imports neither kopf nor
kubernetes.
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
from delaymq_operator.api.user import User, UserSpec, UserStatus, parse_user

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
    "User",
    "UserSpec",
    "UserStatus",
    "find_condition",
    "parse_broker",
    "parse_delay_level_config",
    "parse_timestamp",
    "parse_topic",
    "parse_user",
    "status_patch",
    "timestamp",
    "with_condition",
    "without_condition",
]
