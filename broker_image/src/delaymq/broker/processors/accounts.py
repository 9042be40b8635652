"""Accounts that sign requests, and what they may see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import ACCESS_KEY

if TYPE_CHECKING:
    from delaymq.access.views import View
    from delaymq.broker.broker import Broker
    from delaymq.broker.groups.consumer_group import Client
    from delaymq.broker.requests.session import Session


def account_of(broker: Broker, command: Command) -> str:
    """Return the account that sent a request; empty without access control."""
    return command.fields.get(ACCESS_KEY, "") if broker.access is not None else ""


def view_of(broker: Broker, session: Session, command: Command) -> View | None:
    """Return what the sender of a request may see of topics and groups (`aclMetadata`), None for everything."""
    return None if broker.access is None else broker.access.view_of(session, command)


def visible_clients(broker: Broker, view: View | None, clients: Iterable[Client]) -> list[Client]:
    """Return the members of a producer group that may be shown. Rules have no permissions for such groups."""
    access = broker.access
    if view is None or access is None:
        return list(clients)
    return [client for client in clients if access.is_client_of(client.session, view.access_key)]
