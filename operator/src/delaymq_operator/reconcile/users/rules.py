"""Rules of a Broker with Users: read from their Secret, changed in it, and confirmed by the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from delaymq_operator.api import Broker, SpecError, User, parse_user
from delaymq_operator.api.names import BROKER_KIND, MANAGED_BY_LABEL, MANAGED_BY_VALUE, USER_KIND
from delaymq_operator.api.names import credentials_secret as credentials_name
from delaymq_operator.api.names import users_secret as users_secret_name
from delaymq_operator.api.resource import ms_of_timestamp
from delaymq_operator.manifests import UserRules, read_user_rules
from delaymq_operator.manifests import users_secret as rendered
from delaymq_operator.reconcile.context import Key, ReconcileContext
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.reconcile.secrets import parse_secret
from delaymq_operator.reconcile.users.accounts import first_rules, recovered, with_users
from delaymq_operator.reconcile.users.confirmations import Confirmations, Lagging

COMPARED_MS: Final = 1_000
"""Interval between comparisons of all Users, so that a pass of each of thousands does not read all of them."""
MAX_AGE_MS: Final = 60_000
"""Time after which the Secret is read again, to restore it if it was deleted."""


class ForeignSecretError(Exception):
    """A Secret with the name of an operator's Secret belongs to another owner."""


@dataclass
class RulesMemory:
    """What is known of a Broker's rules. It saves requests: everything is also in the Secret."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rules: UserRules | None = None
    version: str = ""
    """The Secret's resourceVersion."""
    read_ms: int = 0
    users: frozenset[tuple[str, int]] | None = None
    """uid and generation of the Users that `rules` takes into account; None: unknown."""
    compared_ms: int = 0
    """When these were compared with the cache."""
    parsed: dict[tuple[str, int], User | None] = field(default_factory=dict)
    """The Users by uid and generation; None: the spec is invalid."""
    confirmations: Confirmations = field(default_factory=Confirmations)


class AccountRules:
    """The rules of one Broker. Use it as a context: Users and the Broker change its rules one at a time."""

    def __init__(self, broker: Broker, ctx: ReconcileContext) -> None:
        self._broker = broker
        self._ctx = ctx
        self._memory = ctx.memory.of(Key(BROKER_KIND, broker.namespace, broker.name), RulesMemory)

    async def __aenter__(self) -> AccountRules:
        await self._memory.lock.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._memory.lock.release()

    async def current(self, user: User | None = None) -> UserRules:
        """Return the rules with the accounts of all Users, changed in the Secret if necessary.

        With `user`, only this one is certain to be taken into account in its present generation. KubeError;
        ForeignSecretError.
        """
        memory, ctx = self._memory, self._ctx
        known, now_ms = memory.rules, ctx.clock()
        if known is None or not 0 <= now_ms - memory.read_ms < MAX_AGE_MS:
            known = await self._read()
        is_taken = user is not None and memory.users is not None and (user.uid, user.generation) in memory.users
        if is_taken and 0 <= now_ms - memory.compared_ms < COMPARED_MS:
            return known
        found, unreadable = self._users()
        users = frozenset(memory.parsed)
        memory.compared_ms = now_ms
        if users == memory.users:
            return known
        # Comparing a thousand Users takes a while: other tasks run before.
        await asyncio.sleep(0)
        desired = with_users(known, found, unreadable, now_ms)
        if desired is not known:
            await self.save(desired)
        memory.users = users
        return desired

    async def save(self, rules: UserRules) -> None:
        """Replace the rules in the Secret. KubeError, which is a conflict if another process changed them."""
        memory = self._memory
        manifest = rendered(self._broker, rules)
        try:
            if memory.version:
                patch = {"metadata": {"resourceVersion": memory.version}, "data": manifest["data"]}
                written = await self._ctx.kube.patch(
                    "Secret", self._broker.namespace, manifest["metadata"]["name"], patch
                )
            else:
                written = await self._ctx.kube.create(manifest)
        except KubeError:
            # Whether it was changed is unknown.
            memory.rules = memory.users = None
            raise
        self._remember(written, rules)

    def holder(self, access_key: str) -> str | None:
        """Return the name of the User that has the account with this access key; None if there is none."""
        rules = self._memory.rules
        for uid, account in () if rules is None else rules.accounts.items():
            if account.access_key == access_key:
                return next((user.name for user in self._memory.parsed.values() if user and user.uid == uid), None)
        return None

    @property
    def servers(self) -> str:
        """Which servers have the rules, in words."""
        return "brokers and NameServers" if self._broker.hides_metadata else "brokers"

    async def unconfirmed(self, version: int) -> list[Lagging]:
        """Return the servers that may not have the rules of this version yet. KubeError."""
        return await self._memory.confirmations.missing(self._broker, version, self._ctx)

    def _remember(self, secret: Manifest, rules: UserRules) -> None:
        memory = self._memory
        memory.rules, memory.read_ms = rules, self._ctx.clock()
        memory.version = str(secret["metadata"].get("resourceVersion") or "")

    async def _read(self) -> UserRules:
        memory, name = self._memory, users_secret_name(self._broker.name)
        live = await self._ctx.kube.get("Secret", self._broker.namespace, name)
        if live is not None:
            _check_owner(live, self._broker)
        found = read_user_rules(live)
        memory.version = "" if live is None else str(live["metadata"].get("resourceVersion") or "")
        if found is not None and live is not None:
            if found != memory.rules:
                memory.users = None
            if live.get("data") != rendered(self._broker, found)["data"]:
                await self.save(found)  # someone changed the rule file
            else:
                self._remember(live, found)
            return found
        # Brokers and clients have the contents of a deleted Secret.
        rules, memory.users = memory.rules, None
        rules = await self._recovered() if rules is None else rules
        await self.save(rules)
        return rules

    async def _recovered(self) -> UserRules:
        """Return rules with the secret keys that clients have."""
        now_ms = self._ctx.clock()
        rules = first_rules(now_ms)
        for user in self._users()[0]:
            live = await self._ctx.kube.get("Secret", user.namespace, credentials_name(user.name))
            account = parse_secret(live).account if live is not None and is_owned(live, user.uid) else None
            if account is not None and account.access_key == user.access_key:
                issued_ms = ms_of_timestamp(user.status.rotated_at) or now_ms
                rules = recovered(rules, user, account.secret_key, issued_ms)
        return rules

    def _users(self) -> tuple[list[User], set[str]]:
        """Return the Broker's Users, and the uids of those whose spec is invalid. Only changed ones are parsed."""
        before = self._memory.parsed
        parsed: dict[tuple[str, int], User | None] = {}
        for body in self._ctx.cache.all(USER_KIND, self._broker.namespace):
            if self._concerns(body):
                key = str(body["metadata"].get("uid")), int(body["metadata"].get("generation", 0))
                parsed[key] = before[key] if key in before else _parsed(body)
        self._memory.parsed = parsed
        found = [user for user in parsed.values() if user is not None]
        return found, {uid for (uid, _), user in parsed.items() if user is None}

    def _concerns(self, body: Manifest) -> bool:
        reference = (body.get("spec") or {}).get("brokerRef") or {}
        return reference.get("name") == self._broker.name and not body["metadata"].get("deletionTimestamp")


def is_owned(live: Mapping[str, Any], uid: str) -> bool:
    """Return whether an object has this owner."""
    return any(owner.get("uid") == uid for owner in live["metadata"].get("ownerReferences") or [])


def _parsed(body: Manifest) -> User | None:
    try:
        return parse_user(body)
    except SpecError:
        return None


def _check_owner(live: Manifest, broker: Broker) -> None:
    metadata = live["metadata"]
    owners = [owner for owner in metadata.get("ownerReferences") or [] if owner.get("controller")]
    labelled = (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY_VALUE
    if any(owner.get("uid") != broker.uid for owner in owners) or (not owners and not labelled):
        raise ForeignSecretError(
            f"Secret {metadata['name']} does not belong to this Broker: delete it, or create the Broker under another"
            " name"
        )
