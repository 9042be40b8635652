"""Secrets of Users: the rule file of a Broker with the state of its accounts, and the account of one User for clients.

Only the rule file is mounted in brokers' pods. The state is next to it, so that both change in the same request.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import msgspec

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker
from delaymq_operator.api.user import NamedPermission, User
from delaymq_operator.manifests.accounts.access import RULES_KEY
from delaymq_operator.manifests.metadata import API_VERSIONS, Manifest, new_object, owner_reference, secret_data

STATE_KEY: Final = "state.json"
TOOLS_KEY: Final = "tools.yml"
"""File with the account of RocketMQ's tools, for `conf/` in their ROCKETMQ_HOME."""


@dataclass(frozen=True, kw_only=True)
class UserAccount:
    """State of a User's account."""

    access_key: str
    secret_key: str = field(repr=False)
    """The newest secret key; clients receive it when all brokers know it."""
    former: str | None = field(default=None, repr=False)
    """A secret key that is valid in addition."""
    rule: Mapping[str, Any] = field(default_factory=dict)
    """The account's other keys in the rule file."""
    version: int
    """Version of the rule file with the last change of this account."""
    issued_ms: int = 0
    """When clients received `secret_key`; 0: they have not."""
    request: str | None = None
    """The last request for a new secret key that was fulfilled."""


@dataclass(frozen=True, kw_only=True)
class UserRules:
    """State of all accounts of a Broker."""

    operator_secret: str = field(repr=False)
    """Secret key of the operator's own account."""
    version: int
    """Version of the rule file, which increases with each change: the time in ms where possible."""
    accounts: Mapping[str, UserAccount] = field(default_factory=dict)
    """Accounts by metadata.uid of the User."""


def rule_of(user: User) -> dict[str, Any]:
    """Return the account's keys in the rule file, except for its access key and secret keys."""
    spec = user.spec
    found: dict[str, Any] = {"admin": spec.admin, "requireSecondSignature": user.requires_second}
    found |= {"defaultTopicPerm": spec.default_topic_permission, "defaultGroupPerm": spec.default_group_permission}
    found |= {"topicPerms": _permissions(spec.topics), "groupPerms": _permissions(spec.groups)}
    if spec.role is not None:
        found["role"] = spec.role
    if spec.quotas is not None:
        quotas = {key: value for key, value in msgspec.to_builtins(spec.quotas).items() if value is not None}
        found |= {"quotas": quotas} if quotas else {}
    return found


def _permissions(entries: tuple[NamedPermission, ...]) -> list[str]:
    return [f"{entry.name}={entry.permission}" for entry in entries]


def account_bytes(account: UserAccount) -> int:
    """Return the size of an account in the Secret."""
    return len(json.dumps(asdict(account))) + sum(len(line) + 1 for line in _account_lines(account)) + 64


def users_secret(broker: Broker, rules: UserRules) -> Manifest:
    """Return the Secret with rules and state."""
    found = new_object(broker, "Secret", names.users_secret(broker.name), "broker")
    found["type"] = "Opaque"
    texts = {RULES_KEY: _rules_text(rules), STATE_KEY: _state_text(rules)}
    texts |= {names.ACCESS_KEY: names.OPERATOR_ACCESS_KEY, names.SECRET_KEY: rules.operator_secret}
    return found | {"data": secret_data(texts)}


def read_user_rules(secret: Mapping[str, Any] | None) -> UserRules | None:
    """Return the state in the Secret; None if it is missing or invalid."""
    try:
        tree = json.loads(base64.b64decode(((secret or {}).get("data") or {})[STATE_KEY]))
        return UserRules(
            operator_secret=str(tree["operator"]),
            version=int(tree["version"]),
            accounts={str(uid): _account(account) for uid, account in tree["accounts"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _account(tree: Mapping[str, Any]) -> UserAccount:
    # A newer operator may have written more fields.
    return UserAccount(**{each.name: tree[each.name] for each in fields(UserAccount) if each.name in tree})


def _state_text(rules: UserRules) -> str:
    accounts = {uid: asdict(account) for uid, account in sorted(rules.accounts.items())}
    return json.dumps({"accounts": accounts, "operator": rules.operator_secret, "version": rules.version})


def _rules_text(rules: UserRules) -> str:
    lines = ["# Written by delaymq-operator. Change the Users instead.", "accounts:"]
    lines += [f"- accessKey: {names.OPERATOR_ACCESS_KEY}", f"  secretKey: {json.dumps(rules.operator_secret)}"]
    lines += ["  admin: true", "  requireSecondSignature: true"]
    for account in sorted(rules.accounts.values(), key=lambda each: each.access_key):
        lines += _account_lines(account)
    # The counter identifies the version: for a file without dataVersion, brokers report its time as the timestamp.
    lines += ["dataVersion:", f"- counter: {rules.version}", f"  timestamp: {rules.version}", ""]
    return "\n".join(lines)


def _account_lines(account: UserAccount) -> Iterator[str]:
    yield f"- accessKey: {json.dumps(account.access_key)}"
    yield f"  secretKey: {json.dumps(account.secret_key)}"
    if account.former is not None:
        yield f"  formerSecretKey: {json.dumps(account.former)}"
    for key, value in account.rule.items():
        # JSON values are valid YAML.
        if isinstance(value, dict):
            yield f"  {key}:"
            yield from (f"    {name}: {json.dumps(each)}" for name, each in value.items())
        elif isinstance(value, list) and value:
            yield f"  {key}:"
            yield from (f"  - {json.dumps(each)}" for each in value)
        elif not isinstance(value, list):
            yield f"  {key}: {json.dumps(value)}"


# The Secret of one User.


def credentials_secret(user: User, secret_key: str) -> Manifest:
    """Return the Secret for clients, owned by the User and deleted with it."""
    metadata = {
        "name": names.credentials_secret(user.name),
        "namespace": user.namespace,
        "labels": names.labels(user.spec.broker_ref.name),
        "ownerReferences": [owner_reference(user)],
    }
    tools = f"accessKey: {user.access_key}\nsecretKey: {secret_key}\n"
    texts = {names.ACCESS_KEY: user.access_key, names.SECRET_KEY: secret_key, TOOLS_KEY: tools}
    kind = "Secret"
    return {
        "apiVersion": API_VERSIONS[kind],
        "kind": kind,
        "metadata": metadata,
        "type": "Opaque",
        "data": secret_data(texts),
    }
