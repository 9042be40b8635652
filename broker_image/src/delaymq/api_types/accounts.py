"""Types of /api/v1/accounts: usage and quotas of accounts."""

from delaymq.api_types.base import Answer


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
