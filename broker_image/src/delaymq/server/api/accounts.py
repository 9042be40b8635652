"""GET /api/v1/accounts: usage and quotas of accounts."""

from typing import TYPE_CHECKING

from delaymq.api_types.accounts import Accounts, AccountUse, QuotaUse
from delaymq.server.api.routing import Api, Limit, Name, Query
from delaymq.server.api.topics import page_of
from delaymq.server.log_reader import clean_text
from delaymq.server.time_slices import TimeSlices

if TYPE_CHECKING:
    from delaymq.access.accounts import Account
    from delaymq.broker.quotas.usage import AccountUsage


class AccountsQuery(Query):
    """Parameters of the list of accounts."""

    contains: Name = ""
    limit: Limit = 100
    after: Name = ""


async def accounts(api: Api, query: AccountsQuery) -> Accounts:
    """Return a page of accounts, also of those that have sent nothing yet."""
    access, slices = api.broker.access, TimeSlices()
    wanted = query.contains.lower()
    candidates = []
    total = 0
    for key in () if access is None else list(access.rules.accounts):
        await slices.yield_if_due()
        if wanted in key.lower():
            total += 1
            if key > query.after:
                candidates.append(key)
    page, following = await page_of(candidates, query.limit)
    rows = []
    for key in page:
        await slices.yield_if_due()
        account = None if access is None else access.rules.accounts.get(key)
        if access is not None and account is not None:
            rows.append(_row(account, access.usages.of(key)))
    return Accounts(
        as_of_ms=api.broker.now_ms(),
        boot_id=api.server.boot_id,
        access_control=access is not None,
        accounts=rows,
        total=total,
        next=following,
    )


def _row(account: "Account", usage: "AccountUsage") -> AccountUse:
    limits = {} if account.quotas is None else dict(account.quotas.limits())
    # Also quotas that were removed after they had been exceeded.
    shown = [*limits, *sorted({*usage.delays, *usage.refused} - limits.keys())]
    return AccountUse(
        account=clean_text(usage.account),
        admin=account.admin,
        connections=usage.counts["connections"],
        held_pulls=usage.counts["heldPulls"],
        requests=usage.requests,
        sends=usage.sends,
        send_bytes=usage.send_bytes,
        pulls=usage.pulls,
        pull_bytes=usage.pull_bytes,
        event_loop_seconds=usage.loop_s,
        created_topics=usage.counts["createdTopics"],
        created_groups=usage.counts["createdGroups"],
        max_delay_ms=account.max_delay_ms,
        quotas=[
            QuotaUse(
                quota=quota,
                limit=limits.get(quota),
                used=usage.counts.get(quota),
                delays=usage.delays.get(quota, 0),
                delayed_seconds=usage.delayed_s.get(quota, 0.0),
                rejected=usage.refused.get(quota, 0),
            )
            for quota in shown
        ],
    )
