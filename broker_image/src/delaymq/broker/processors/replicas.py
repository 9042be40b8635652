"""Requests between the members of a replicated group (30002, 30003, 30004)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaymq.broker.requests.results import LinkRequest
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command
from delaymq.protocol.errors import RequestError

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session


def link_replica(broker: Broker, session: Session, command: Command) -> LinkRequest:
    """Handle LINK_REPLICA and PROVE_REPLICA (30002, 30003): a step of the handshake of a link."""
    return LinkRequest()


def replicate(broker: Broker, session: Session, command: Command) -> LinkRequest:
    """Reject REPLICATE (30004): after a successful handshake, messages do not arrive here."""
    text = f"request {command.code} needs a proof that the peer is a member of the group: begin with 30002"
    raise RequestError(ResponseCode.NO_PERMISSION, text)
