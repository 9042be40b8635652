"""Reconciliation of Users: the rules of a Broker, the Secrets for clients, and changes of secret keys.

A secret key is changed in three steps. All brokers receive the new key, with the former one still valid; then clients
receive it; later, the former key is removed. The state is in the Secret with the rules, never in memory only.
"""

from delaymq_operator.reconcile.users.reconcile import reconcile_user
from delaymq_operator.reconcile.users.rules import AccountRules, ForeignSecretError

__all__ = ["AccountRules", "ForeignSecretError", "reconcile_user"]
