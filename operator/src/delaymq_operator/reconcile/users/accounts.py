"""Changes of the accounts of a Broker. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from delaymq_operator.api.user import User
from delaymq_operator.manifests import UserAccount, UserRules, account_bytes, rule_of

MAX_USERS: Final = 1_000
"""Maximum accounts of a Broker."""
MAX_BYTES: Final = 900_000
"""Maximum size of all accounts; a Secret has at most 1 MiB."""
_KEY_BYTES: Final = 32
"""Random bytes of a secret key, which has 43 characters then."""


def new_secret_key() -> str:
    """Return a random secret key."""
    return secrets.token_urlsafe(_KEY_BYTES)


def first_rules(now_ms: int) -> UserRules:
    """Return the rules of a Broker without Users."""
    return UserRules(operator_secret=new_secret_key(), version=now_ms)


def age(user: User) -> tuple[str, str]:
    """Return a sort key for Users, oldest first; creation times have whole seconds only."""
    return user.creation_timestamp, user.uid


def with_users(kept: UserRules, users: Iterable[User], unreadable: Collection[str], now_ms: int) -> UserRules:
    """Return the rules with the accounts of these Users, `kept` itself if nothing changes.

    Accounts of Users in `unreadable`, by uid, are not changed. Of several Users with the same access key, the one that
    has the account keeps it, otherwise the oldest gets it. Users beyond the limits get no account; if a change would
    exceed them, the account is not changed.
    """
    version = _next_version(kept, now_ms)
    retained = {uid: account for uid, account in kept.accounts.items() if uid in unreadable}
    taken = {account.access_key for account in retained.values()}
    candidates = []
    for user in sorted(users, key=lambda each: (each.uid not in kept.accounts, *age(each))):
        if user.access_key not in taken:
            taken.add(user.access_key)
            candidates.append(user)
    found = {**retained, **{user.uid: kept.accounts[user.uid] for user in candidates if user.uid in kept.accounts}}
    size = sum(map(account_bytes, found.values()))
    for user in candidates:
        before = found.get(user.uid)
        after = _account(user, before, version)
        if after is before:
            continue
        grown = size + account_bytes(after) - (0 if before is None else account_bytes(before))
        if grown <= MAX_BYTES and (before is not None or len(found) < MAX_USERS):
            found[user.uid], size = after, grown
    return kept if found == kept.accounts else replace(kept, accounts=found, version=version)


def _account(user: User, before: UserAccount | None, version: int) -> UserAccount:
    rule = rule_of(user)
    if before is not None:
        return before if before.rule == rule else replace(before, rule=rule, version=version)
    return UserAccount(
        access_key=user.access_key,
        secret_key=new_secret_key(),
        rule=rule,
        version=version,
        request=user.rotation_request,
    )


def with_new_key(kept: UserRules, user: User, now_ms: int) -> UserRules:
    """Return the rules with a new secret key of an account, which keeps the present one as the former key."""
    account = kept.accounts[user.uid]
    return _changed(
        kept,
        user.uid,
        replace(
            account,
            secret_key=new_secret_key(),
            former=account.secret_key,
            issued_ms=0,
            request=user.rotation_request or account.request,
        ),
        now_ms,
    )


def without_former_key(kept: UserRules, uid: str, now_ms: int) -> UserRules:
    """Return the rules without the former key of an account."""
    return _changed(kept, uid, replace(kept.accounts[uid], former=None), now_ms)


def with_issued_key(kept: UserRules, user: User, issued_ms: int) -> UserRules:
    """Return the state after clients received the secret key; the rule file is the same."""
    account = kept.accounts[user.uid]
    # A request during the distribution is fulfilled by the key that is being distributed.
    issued = replace(account, issued_ms=issued_ms, request=user.rotation_request or account.request)
    return replace(kept, accounts={**kept.accounts, user.uid: issued})


def recovered(rules: UserRules, user: User, secret_key: str, issued_ms: int) -> UserRules:
    """Return the rules with an account whose secret key clients have, after the state was lost."""
    account = replace(_account(user, None, rules.version), secret_key=secret_key, issued_ms=issued_ms)
    return replace(rules, accounts={**rules.accounts, user.uid: account})


def _changed(kept: UserRules, uid: str, account: UserAccount, now_ms: int) -> UserRules:
    version = _next_version(kept, now_ms)
    return replace(kept, accounts={**kept.accounts, uid: replace(account, version=version)}, version=version)


def _next_version(kept: UserRules, now_ms: int) -> int:
    return max(kept.version + 1, now_ms)
