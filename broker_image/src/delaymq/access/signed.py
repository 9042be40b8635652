"""Verification of a request's signature, the second one or RocketMQ's."""

from __future__ import annotations

from typing import Final

from delaymq.access.accounts import Account, shown
from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import NEW_CHALLENGE, SECOND_SIGNATURE
from delaymq.protocol.second_signature import Channels

_WHAT_TO_DO: Final = {
    "signature": "compare the secret keys",
    "second": "compare the secret keys; the request is not signed for this connection",
    "replay": "the request was sent before",
    "silence": f"the connection was silent for too long: {NEW_CHALLENGE}",
}


def signature_problem(
    channels: Channels, connection_id: int, account: Account, command: Command
) -> tuple[str, str] | None:
    """Verify a signature: return the reason (`signature`, or a verdict on the second one) and the text for the peer.

    Returns None if the signature is valid, with the current or the former secret key. Call it once per request,
    because counters increase.
    """
    key = account.entry.access_key
    if account.entry.certificate_only:
        text = "it needs a client certificate (certificateOnly)"
        return "signature", f"accessKey={shown(key)} must not sign requests: {text}"
    if SECOND_SIGNATURE in command.fields:
        reason: str = channels.verdict(connection_id, key, account.entry.secret_keys, command)
    else:
        valid = account.signer.signed(command.fields, command.body) or _signed_with(account.former, command)
        reason = "" if valid else "signature"
    if not reason:
        return None
    return reason, f"Check signature failed for accessKey={shown(key)}: {_WHAT_TO_DO[reason]}"


def signing_account(channels: Channels, connection_id: int, account: Account, command: Command) -> Account:
    """Return the account, with its former secret key as the only one if a request with a valid signature uses that.

    Call it before the next request of the connection.
    """
    former = account.former
    if former is None:
        return account
    if SECOND_SIGNATURE in command.fields:
        secret_key = channels.secret_key_of(connection_id, account.entry.access_key)
        return former if secret_key == former.entry.secret_key else account
    return former if _signed_with(former, command) else account


def _signed_with(account: Account | None, command: Command) -> bool:
    return account is not None and account.signer.signed(command.fields, command.body)
