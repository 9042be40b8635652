"""Accounts that sign requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import ACCESS_KEY

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker


def account_of(broker: Broker, command: Command) -> str:
    """Return the account that sent a request; empty without access control."""
    return command.fields.get(ACCESS_KEY, "") if broker.access is not None else ""
