"""Types of /api/v1/accounts and /api/v1/session: usage and quotas of accounts, and their sign-in."""

from typing import Annotated, Literal

import msgspec

from delaymq.api_types.base import Answer, Body

MAX_KEY_CHARACTERS = 1_024

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARACTERS)]
Permission = Literal["PUB", "SUB"]
Role = Literal["", "read", "operate", "administer"]


class QuotaUse(Answer):
    """A quota of an account, and what exceeded it since the start of the broker."""

    quota: str
    """Key in the rule file, such as `sendBytesPerSecond`."""
    limit: int | None
    """Null: the quota was removed meanwhile."""
    used: int | None
    """Present number of a quota that is counted; null for rates, whose usage follows from two responses."""
    delays: int
    """Number of requests after which a connection was not read for a time."""
    delayed_seconds: float
    """Time for which connections were not read, added up."""
    rejected: int
    """Number of rejected requests."""


class AccountUse(Answer):
    """Usage of an account. Totals count from the start of the broker."""

    account: str
    admin: bool
    connections: int
    held_pulls: int
    requests: int
    """Accepted requests, including sends and pulls."""
    sends: int
    send_bytes: int
    """Bytes of the bodies of sends."""
    pulls: int
    pull_bytes: int
    """Bytes of messages in responses to pulls."""
    event_loop_seconds: float
    created_topics: int
    """Topics created by sends."""
    created_groups: int
    max_delay_ms: int
    """Longest time for which a connection is not read because of a quota."""
    quotas: list[QuotaUse]


class Accounts(Answer):
    """A page of accounts, sorted by name."""

    as_of_ms: int
    boot_id: str
    """Random id of this start of the broker, from which totals count."""
    access_control: bool
    """False: the broker has no accounts (aclEnable)."""
    accounts: list[AccountUse]
    total: int
    """Number of accounts on all pages."""
    next: str | None


class SignIn(Body):
    """Credentials of an account of the rule file."""

    access_key: Key
    secret_key: Key
    bearer: bool = False
    """Whether the response contains the session's token, for programs, and sets no cookie."""


class SessionState(Answer):
    """The rights of the caller, and the session, if there is one."""

    as_of_ms: int
    account: str | None
    """Null for the token (`httpToken`), and without access control."""
    role: Role
    """`administer` for the token and without access control."""
    access_control: bool
    idle_expires_ms: int | None
    """Time at which the session ends unless it is used; null without a session."""
    expires_ms: int | None
    """Time at which the session ends."""
    broker_name: str | None
    """Null at the address of several broker groups."""
    address: str | None
    """Address that the broker advertises."""
    topic_permissions: list[Permission] | None
    """Permissions for the topic in the request; null without one."""
    group_permissions: list[Permission] | None
    token: str | None = None
    """Bearer token, only in the response to a sign-in that requests it."""


class SessionEnded(Answer):
    """Response to a sign-out."""

    signed_out: bool
