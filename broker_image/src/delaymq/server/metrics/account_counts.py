"""Counts of accounts for the metrics, which are collected without loading the metrics' library."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delaymq.server.log_reader import clean_text

if TYPE_CHECKING:
    from delaymq.access.accounts import Account
    from delaymq.broker.quotas.usage import AccountUsage

Labels = tuple[str, str]
"""Account, and what is counted."""


@dataclass
class AccountCounts:
    """Usage of accounts."""

    requests: dict[Labels, float] = field(default_factory=dict)
    transferred: dict[Labels, float] = field(default_factory=dict)
    used: dict[Labels, float] = field(default_factory=dict)
    loop_s: dict[Labels, float] = field(default_factory=dict)
    quotas: dict[Labels, float] = field(default_factory=dict)
    delays: dict[Labels, float] = field(default_factory=dict)
    delayed_s: dict[Labels, float] = field(default_factory=dict)
    refused: dict[Labels, float] = field(default_factory=dict)

    def add(self, usage: "AccountUsage", account: "Account | None") -> None:
        """Add an account; `account` is None if it was deleted."""
        label = clean_text(usage.account)
        others = usage.requests - usage.sends - usage.pulls
        _add(self.requests, label, {"send": usage.sends, "pull": usage.pulls, "other": others})
        _add(self.transferred, label, {"sent": usage.send_bytes, "pulled": usage.pull_bytes})
        _add(self.used, label, usage.counts)
        _add(self.loop_s, label, {"": usage.loop_s})
        _add(self.delays, label, usage.delays)
        _add(self.delayed_s, label, usage.delayed_s)
        _add(self.refused, label, usage.refused)
        if account is not None and account.quotas is not None:
            _add(self.quotas, label, dict(account.quotas.limits()))


def _add(counts: dict[Labels, float], label: str, values: Mapping[str, float]) -> None:
    counts |= {(label, name): value for name, value in values.items()}
