"""Conditions of a Broker from the results of a pass, each with a sentence that states the problem and the action to
take.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from delaymq_operator.api.broker_status import GroupStatus
from delaymq_operator.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    find_condition,
    only_conditions,
    with_condition,
    without_condition,
)
from delaymq_operator.api.names import RESTART_ANNOTATION
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Note
from delaymq_operator.reconcile.broker.observe.scheduler import verdict_text
from delaymq_operator.reconcile.broker.report.readiness import readiness_of, reconciling_of, stalled_of
from delaymq_operator.reconcile.broker.report.replicas import failover_verdict, in_sync_verdict


def conditions_of(p: BrokerPass, groups: Sequence[GroupStatus]) -> tuple[Condition, ...]:
    """Return all conditions; unchanged ones keep their positions."""
    conditions = _Conditions(p)
    ready = readiness_of(p)
    conditions.set(ConditionType.READY, *ready)
    if p.progress:
        conditions.set(ConditionType.PROGRESSING, "True", p.progress[0].reason, _joined(p.progress, p.progress[0]))
    else:
        conditions.set(ConditionType.PROGRESSING, "False", Reason.SETTLED, "No change is in progress.")
    if p.problems:
        conditions.set(ConditionType.DEGRADED, "True", p.problems[0].reason, _joined(p.problems))
    else:
        conditions.set(ConditionType.DEGRADED, "False", Reason.AS_EXPECTED, "There are no problems.")
    stalled = stalled_of(p, find_condition(conditions.found, ConditionType.DEGRADED))
    conditions.set_note(ConditionType.RECONCILING, reconciling_of(p, ready, stalled))
    conditions.set_note(ConditionType.STALLED, stalled)
    conditions.set(ConditionType.SCHEDULER_INTACT, *_scheduler_intact(groups))
    if p.manifest_context is not None:
        conditions.set(ConditionType.UP_TO_DATE, *_up_to_date(p))
    conditions.set_verdict(ConditionType.REPLICAS_IN_SYNC, in_sync_verdict(p))
    conditions.set_verdict(ConditionType.FAILOVER_READY, failover_verdict(p))
    conditions.set_or_drop(ConditionType.SCALE_IN_BLOCKED, Reason.MESSAGES_REMAIN, " ".join(p.scale_in_blocked))
    paused = "spec.paused is true: the operator changes nothing. Set it to false to resume."
    conditions.set_or_drop(ConditionType.PAUSED, Reason.PAUSED_BY_SPEC, paused if p.broker.spec.paused else "")
    conditions.set_analytics(p)
    return conditions.found


class _Conditions:
    def __init__(self, p: BrokerPass) -> None:
        self.found = only_conditions(p.broker.status.conditions, *ConditionType)
        self._now = datetime.fromtimestamp(p.now_ms / 1000, UTC)
        self._generation = p.broker.generation

    def set(self, kind: ConditionType, status: ConditionStatus, reason: Reason, message: str) -> None:
        self.found = with_condition(self.found, kind, status, reason, message, self._now, self._generation)

    def set_or_drop(self, kind: ConditionType, reason: Reason, message: str) -> None:
        """Set the condition to True with a message; remove it without one."""
        if message:
            self.set(kind, "True", reason, message)
        else:
            self.found = without_condition(self.found, kind)

    def set_note(self, kind: ConditionType, note: Note | None) -> None:
        """Set the condition to True with a note; remove it without one."""
        self.set_or_drop(kind, note.reason if note is not None else Reason.SETTLED, note.message if note else "")

    def set_verdict(self, kind: ConditionType, verdict: tuple[ConditionStatus, Reason, str] | None) -> None:
        """Set the condition; remove it without a verdict."""
        if verdict is None:
            self.found = without_condition(self.found, kind)
        else:
            self.set(kind, *verdict)

    def set_analytics(self, p: BrokerPass) -> None:
        """Set the condition only with spec.analytics; keep it if the step reports nothing."""
        verdict = p.analytics.verdict
        if p.analytics.status is None:
            self.found = without_condition(self.found, ConditionType.ANALYTICS_READY)
        elif verdict is not None:
            self.set(ConditionType.ANALYTICS_READY, verdict.status, verdict.reason, verdict.message)


def _joined(notes: Sequence[Note], *only_of: Note) -> str:
    reasons = {note.reason for note in only_of}
    chosen = [note.message for note in notes if not reasons or note.reason in reasons]
    return " ".join(dict.fromkeys(chosen))


def _scheduler_intact(groups: Sequence[GroupStatus]) -> tuple[ConditionStatus, Reason, str]:
    resumed = [(group.name, group.resumed) for group in groups if group.resumed is not None]
    for verdict, reason in (("WentBack", Reason.WENT_BACK), ("Corrected", Reason.CORRECTED)):
        found = [verdict_text(name, each) for name, each in resumed if each.verdict == verdict]
        if found:
            return "False", reason, " ".join(found)
    if not resumed:
        return "Unknown", Reason.NOT_YET_SEEN, "No broker has reported its delay offsets yet."
    return "True", Reason.INTACT, "Every scheduler resumed at its previous position."


def _up_to_date(p: BrokerPass) -> tuple[ConditionStatus, Reason, str]:
    sets = [(group.name, group.set) for group in p.desired_groups] + [("the NameServers", p.name_servers)]
    outdated = [name for name, each in sets if each.outdated_operator]
    if not outdated:
        return "True", Reason.CURRENT, "All pods match the pod template of this operator version."
    named = " and ".join(part for part in (", ".join(outdated[:-1]), outdated[-1]) if part)
    return (
        "False",
        Reason.OPERATOR_NEWER,
        f"The pods of {named} do not match the pod template of this operator version, for example because the "
        "image differs. Nothing restarts automatically; to replace the pods, change the annotation "
        f"{RESTART_ANNOTATION}.",
    )


def news(before: Sequence[Condition], after: Sequence[Condition]) -> list[Condition]:
    """Return the conditions that users should be notified of: readiness, problems, obstacles."""
    told = (ConditionType.READY, ConditionType.DEGRADED, ConditionType.SCALE_IN_BLOCKED)
    found = []
    for condition in after:
        old = find_condition(before, condition.type)
        same = old is not None and (old.status, old.reason) == (condition.status, condition.reason)
        is_news = condition.status == "True" or (condition.type == ConditionType.READY and old is not None)
        if condition.type in told and is_news and not same:
            found.append(condition)
    return found
