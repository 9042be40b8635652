"""Reconciliation of a User: its account in the rules of the Broker, its Secret, and changes of its secret key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from delaymq_operator.api import Broker, Reason, SpecError, User, parse_broker, parse_user
from delaymq_operator.api.names import BROKER_KIND
from delaymq_operator.api.names import credentials_secret as credentials_name
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.manifests import UserAccount, credentials_secret
from delaymq_operator.reconcile.context import Key, Outcome, ReconcileContext
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.reconcile.users.accounts import (
    MAX_USERS,
    with_issued_key,
    with_new_key,
    without_former_key,
)
from delaymq_operator.reconcile.users.confirmations import Lagging
from delaymq_operator.reconcile.users.rules import AccountRules, ForeignSecretError, is_owned
from delaymq_operator.reconcile.users.status import Reporter

_SHOWN: Final = 4
"""Number of servers that a message names."""


@dataclass(frozen=True)
class _State:
    """The account after the pass."""

    account: UserAccount
    servers: str
    """Which servers need the account, in words."""
    unconfirmed: Sequence[Lagging]
    """Servers that may have older rules."""
    event: str = ""
    """What the pass changed."""


async def reconcile_user(key: Key, ctx: ReconcileContext) -> Outcome:
    """Take the next step for the account. KubeError.

    A deleted User needs no work: its Secret is deleted with it, and the Broker's pass removes its account.
    """
    body = ctx.cache.get(*key)
    if body is None or body["metadata"].get("deletionTimestamp"):
        return Outcome()
    report = Reporter(body, ctx)
    try:
        user = parse_user(body)
    except SpecError as error:
        await report.problem(Reason.INVALID, f"{error}.")
        return Outcome()
    broker = await _usable_broker(user, report, ctx)
    if broker is None:
        return Outcome()
    later = Outcome(ctx.settings.status_interval_s)
    live = await ctx.kube.get("Secret", user.namespace, credentials_name(user.name))
    if live is not None and not is_owned(live, user.uid):
        message = (
            f"Secret {credentials_name(user.name)} exists and does not belong to this User: delete it, or create the "
            "User under another name."
        )
        await report.problem(Reason.NAME_CONFLICT, message)
        return later
    try:
        async with AccountRules(broker, ctx) as rules:
            state = await _step(user, live, rules, ctx)
            holder = rules.holder(user.access_key) if state is None else None
    except ForeignSecretError as error:
        await report.problem(Reason.NAME_CONFLICT, f"{error}.")
        return later
    if state is None:
        await _report_missing(user, holder, report)
        return later
    if state.event:
        await report.event("Normal", "SecretKeyChanged", state.event)
    await _report(user, state, report)
    return Outcome(_next_s(user, state, ctx))


async def _usable_broker(user: User, report: Reporter, ctx: ReconcileContext) -> Broker | None:
    name = user.spec.broker_ref.name
    body = ctx.cache.get(BROKER_KIND, user.namespace, name)
    if body is None or body["metadata"].get("deletionTimestamp"):
        what = "does not exist" if body is None else "is being deleted"
        await report.problem(
            Reason.BROKER_MISSING,
            f"Broker {name} {what} in namespace {user.namespace}: create it, and the account is created for it.",
        )
        return None
    try:
        broker = parse_broker(body)
    except SpecError as error:
        await report.problem(Reason.BROKER_MISSING, f"The spec of Broker {name} is invalid: {error}.")
        return None
    if not broker.has_users:
        await report.problem(
            Reason.USERS_DISABLED,
            f"The accounts of Broker {name} are not those of Users: set its spec.accessControl to users: true.",
        )
        return None
    if broker.spec.paused:
        await report.problem(
            Reason.BROKER_PAUSED, f"Broker {name} is paused: nothing is changed until its spec.paused is false."
        )
        return None
    return broker


async def _step(user: User, live: Manifest | None, rules: AccountRules, ctx: ReconcileContext) -> _State | None:
    """Take the next step of the account; None if it has none.

    Each step is complete with one request. If the operator is killed in between, the next pass repeats the step.
    """
    found = await rules.current(user)
    account = found.accounts.get(user.uid)
    if account is None:
        return None
    event = ""
    now_ms = ctx.clock()
    if account.issued_ms and _is_due(user, account, live, now_ms):
        found = with_new_key(found, user, now_ms)
        await rules.save(found)
        event = f"the {rules.servers} receive a new secret key; clients receive it when all of them have it"
    elif account.issued_ms and account.former is not None and now_ms >= account.issued_ms + user.overlap_ms:
        found = without_former_key(found, user.uid, now_ms)
        await rules.save(found)
        event = f"the former secret key is removed from the {rules.servers}"
    account = found.accounts[user.uid]
    unconfirmed = await rules.unconfirmed(account.version)
    # A first secret key replaces none: servers that do not run read it when they start.
    obstacles = [each for each in unconfirmed if each.responds or account.former is not None]
    if not account.issued_ms and not obstacles:
        await ctx.kube.apply(credentials_secret(user, account.secret_key))
        found = with_issued_key(found, user, now_ms)
        await rules.save(found)
        event = f"Secret {credentials_name(user.name)} has the new secret key"
    elif account.issued_ms and live is not None:
        desired = credentials_secret(user, account.secret_key)
        if not desired["data"].items() <= (live.get("data") or {}).items():
            await ctx.kube.apply(desired)
    return _State(found.accounts[user.uid], rules.servers, unconfirmed, event)


def _is_due(user: User, account: UserAccount, live: Manifest | None, now_ms: int) -> bool:
    """Return whether the account, whose secret key clients have, needs a new one."""
    if live is None:
        return True  # its deletion is a request for a new secret key, which takes precedence over the overlap
    if account.former is not None:
        return False
    request = user.rotation_request
    if request is not None and request != account.request:
        return True
    return user.every_ms is not None and now_ms >= account.issued_ms + user.every_ms


async def _report_missing(user: User, holder: str | None, report: Reporter) -> None:
    """Report why a User has no account: another one has the access key, or there are too many."""
    broker = user.spec.broker_ref.name
    if holder is not None:
        reason = Reason.CONFLICT
        message = (
            f"User {holder} is older and has the access key {user.access_key} on Broker {broker}: use another access "
            f"key in a new User, or delete {holder}; this User then gets the access key, with another secret key."
        )
    else:
        reason = Reason.TOO_MANY_USERS
        message = (
            f"Broker {broker} has more Users than its Secret can hold ({MAX_USERS} Users, 900 kB): delete some, or "
            "shorten their lists of topics and groups."
        )
    await report.write("False", reason, message)


async def _report(user: User, state: _State, report: Reporter) -> None:
    account, in_force = state.account, not state.unconfirmed
    until = account.issued_ms + user.overlap_ms if account.issued_ms and account.former is not None else None
    message = f"All {state.servers} have the account."
    if until is not None:
        message += f" The former secret key is valid until {timestamp_of_ms(until)}."
    if not in_force:
        more = len(state.unconfirmed) - _SHOWN
        shown = ", ".join(map(str, state.unconfirmed[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
        is_rotating = not account.issued_ms and account.former is not None
        what = f"Not yet on all {state.servers}"
        if is_rotating:
            what = f"Clients receive a new secret key when all {state.servers} have it"
        message = f"{what}. Waiting for {shown}."
    await report.write(
        # A spec that was in force stays in force while a secret key changes or a broker restarts.
        "True" if in_force or report.was_ready else "False",
        Reason.ACTIVE if in_force else Reason.DISTRIBUTING,
        message,
        access_key=user.access_key,
        secret_name=credentials_name(user.name) if account.issued_ms or account.former is not None else None,
        rotated_at=timestamp_of_ms(account.issued_ms) if account.issued_ms else report.rotated_at,
        former_key_until=None if until is None else timestamp_of_ms(until),
    )


def _next_s(user: User, state: _State, ctx: ReconcileContext) -> float:
    """Return the time until the next pass."""
    account = state.account
    if state.unconfirmed or not account.issued_ms:
        return ctx.settings.progress_interval_s
    due_ms = [account.issued_ms + user.overlap_ms] if account.former is not None else []
    if user.every_ms is not None and account.former is None:
        due_ms.append(account.issued_ms + user.every_ms)
    waits_s = [max(ctx.settings.progress_interval_s, (at_ms - ctx.clock()) / 1000) for at_ms in due_ms]
    return min([*waits_s, ctx.settings.status_interval_s])
