"""Conditions of resources, with reasons and messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from delaymq_operator.api.resource import StatusStruct, timestamp

MAX_MESSAGE_CHARS: Final = 2_000
"""Maximum length of a message; metav1.Condition allows 32,768, which nobody would read."""

ConditionStatus = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """All condition types."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    SCHEDULER_INTACT = "SchedulerIntact"
    UP_TO_DATE = "UpToDate"
    REPLICAS_IN_SYNC = "ReplicasInSync"
    FAILOVER_READY = "FailoverReady"
    SCALE_IN_BLOCKED = "ScaleInBlocked"
    PAUSED = "Paused"
    ANALYTICS_READY = "AnalyticsReady"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    IN_USE = "InUse"


class Reason(StrEnum):
    """All reasons of conditions; docs/operations/resources.md documents them and the actions to take."""

    # Broker, Ready; Reconciling and Stalled have the reasons of Ready, Progressing and Degraded:
    ALL_GROUPS_READY = "AllGroupsReady"
    GROUPS_NOT_READY = "GroupsNotReady"
    NAME_SERVERS_NOT_READY = "NameServersNotReady"
    # Broker, Progressing; Creating is also a Ready reason:
    CREATING = "Creating"
    ROLLING = "Rolling"
    MOVING_WRITES = "MovingWrites"
    GROWING_VOLUMES = "GrowingVolumes"
    SCALING_IN = "ScalingIn"
    SWITCHING_OVER = "SwitchingOver"
    ADDING_REPLICAS = "AddingReplicas"
    REMOVING_REPLICAS = "RemovingReplicas"
    REPLACING_VOLUME = "ReplacingVolume"
    WAITING_FOR_POD = "WaitingForPod"
    SETTLED = "Settled"
    # Broker, Degraded; InvalidSpec is also a Ready reason:
    INVALID_SPEC = "InvalidSpec"
    INVALID_CONFIG = "InvalidConfig"
    DELAY_LEVEL_CONFIG_MISSING = "DelayLevelConfigMissing"
    DELAY_LEVEL_CONFIG_INVALID = "DelayLevelConfigInvalid"
    SECRET_MISSING = "SecretMissing"
    CERTIFICATE_INVALID = "CertificateInvalid"
    ACCOUNT_MISSING = "AccountMissing"
    NAME_SERVER_NOT_ALLOWED = "NameServerNotAllowed"
    NAME_SERVER_NOT_LISTED = "NameServerNotListed"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    POD_FAILING = "PodFailing"
    VOLUME_NOT_BOUND = "VolumeNotBound"
    VOLUME_CANNOT_GROW = "VolumeCannotGrow"
    VOLUME_BEING_DELETED = "VolumeBeingDeleted"
    VOLUME_LOST = "VolumeLost"
    VOLUME_UNKNOWN = "VolumeUnknown"
    BROKER_UNREACHABLE = "BrokerUnreachable"
    APPLY_FAILED = "ApplyFailed"
    NODE_PORT_TAKEN = "NodePortTaken"
    ADDRESS_PENDING = "AddressPending"
    NAME_CONFLICT = "NameConflict"
    AS_EXPECTED = "AsExpected"
    NO_MASTER = "NoMaster"
    REPLICA_FAILED = "ReplicaFailed"
    PROMOTION_REFUSED = "PromotionRefused"
    # Broker, ReplicasInSync and FailoverReady; NotInSync is also a Ready reason, NoMaster a Degraded reason:
    ALL_IN_SYNC = "AllInSync"
    NOT_IN_SYNC = "NotInSync"
    EVERY_GROUP = "EveryGroup"
    NO_CANDIDATE = "NoCandidate"
    MANUAL_FAILOVER = "ManualFailover"
    REGISTER_UNREACHABLE = "RegisterUnreachable"
    # Broker, SchedulerIntact:
    INTACT = "Intact"
    CORRECTED = "Corrected"
    WENT_BACK = "WentBack"
    NOT_YET_SEEN = "NotYetSeen"
    # Broker, UpToDate:
    CURRENT = "Current"
    OPERATOR_NEWER = "OperatorNewer"
    # Broker, ScaleInBlocked and Paused:
    MESSAGES_REMAIN = "MessagesRemain"
    PAUSED_BY_SPEC = "PausedBySpec"
    # Broker, AnalyticsReady:
    RUN_SUCCEEDED = "RunSucceeded"
    NO_RUN_YET = "NoRunYet"
    RUN_FAILED = "RunFailed"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    SPARK_OPERATOR_MISSING = "SparkOperatorMissing"
    SPARK_OPERATOR_SILENT = "SparkOperatorSilent"
    INVALID_SCHEDULE = "InvalidSchedule"
    # Topic, Ready; DryRun is also a reason of a DelayLevelConfig:
    IN_EVERY_GROUP = "InEveryGroup"
    BROKER_MISSING = "BrokerMissing"
    GROUPS_UNREACHABLE = "GroupsUnreachable"
    CONFLICT = "Conflict"
    BROKER_PAUSED = "BrokerPaused"
    DELETING = "Deleting"
    DRY_RUN = "DryRun"
    # User, Ready; it also has Invalid, Conflict, NameConflict, BrokerMissing and BrokerPaused:
    ACTIVE = "Active"
    DISTRIBUTING = "Distributing"
    USERS_DISABLED = "UsersDisabled"
    TOO_MANY_USERS = "TooManyUsers"
    # DelayLevelConfig, Ready and InUse:
    APPLIED = "Applied"
    APPLYING = "Applying"
    INVALID = "Invalid"
    NOT_USED = "NotUsed"
    USED_BY_BROKERS = "UsedByBrokers"


class Condition(StatusStruct, frozen=True, kw_only=True):
    """A metav1.Condition."""

    type: str
    status: ConditionStatus
    reason: str
    message: str
    """A sentence that states the problem and the action to take."""
    last_transition_time: str
    """Time of the last change of `status`, RFC 3339."""
    observed_generation: int = 0


def with_condition(
    conditions: Iterable[Condition],
    type: str,  # noqa: A002  (metav1.Condition calls it so)
    status: ConditionStatus,
    reason: str,
    message: str,
    now: datetime,
    generation: int,
) -> tuple[Condition, ...]:
    """Return the conditions with this one set. It keeps its position, and its time unless `status` changes."""
    conditions = tuple(conditions)
    before = find_condition(conditions, type)
    keeps_time = before is not None and before.status == status
    after = Condition(
        type=str(type),
        status=status,
        reason=str(reason),
        message=message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…",
        last_transition_time=before.last_transition_time if before and keeps_time else timestamp(now),
        observed_generation=generation,
    )
    if before is None:
        return (*conditions, after)
    return tuple(after if item.type == type else item for item in conditions)


def without_condition(conditions: Iterable[Condition], type: str) -> tuple[Condition, ...]:  # noqa: A002
    """Return the conditions without this one."""
    return tuple(item for item in conditions if item.type != type)


def only_conditions(conditions: Iterable[Condition], *types: str) -> tuple[Condition, ...]:
    """Return the conditions of these types; others do not belong to the operator."""
    return tuple(item for item in conditions if item.type in types)


def find_condition(conditions: Iterable[Condition], type: str) -> Condition | None:  # noqa: A002
    """Return the condition of this type."""
    return next((item for item in conditions if item.type == type), None)
