"""Rules that result from Users: created before the pods that mount them, and without the accounts of deleted Users."""

from __future__ import annotations

from delaymq_operator.reconcile.broker.apply.ensure import NotOursError
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.users import AccountRules, ForeignSecretError


async def ensure_user_rules(p: BrokerPass) -> None:
    """Ensure the Secret with the rules. NotOursError, KubeError."""
    if not p.broker.has_users:
        return
    try:
        async with AccountRules(p.broker, p.ctx) as rules:
            await rules.current()
    except ForeignSecretError as error:
        raise NotOursError(str(error)) from error
