"""Who may change what a NameServer tells: the check of eight request codes by its rules.

103 and 104 need the account of the broker's name, the other six an administrator's. RocketMQ's signature has no
boundaries between fields, so a signed request has the fields of its code and no others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from delaymq.access.accounts import Account, shown
from delaymq.config.checks import parse_address
from delaymq.config.errors import ConfigError
from delaymq.namesrv.errors import RefusalError
from delaymq.protocol import headers
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command
from delaymq.protocol.headers.base import Header
from delaymq.protocol.signatures import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

if TYPE_CHECKING:
    from delaymq.namesrv.nameserver import NamesrvSession
    from delaymq.namesrv.rules import NamesrvRules

GUARDED: Final[Mapping[int, type[Header] | None]] = {
    RequestCode.PUT_KV_CONFIG: headers.PutKVConfigRequestHeader,
    RequestCode.DELETE_KV_CONFIG: headers.DeleteKVConfigRequestHeader,
    RequestCode.REGISTER_BROKER: headers.RegisterBrokerRequestHeader,
    RequestCode.UNREGISTER_BROKER: headers.UnRegisterBrokerRequestHeader,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: headers.WipeWritePermOfBrokerRequestHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: headers.DeleteTopicFromNamesrvRequestHeader,
    RequestCode.UPDATE_NAMESRV_CONFIG: None,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: headers.AddWritePermOfBrokerRequestHeader,
}
"""The codes that change something, with their fields."""
BROKERS_CODES: Final = frozenset({RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER})
COMMON_FIELDS: Final = frozenset(
    {ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, "OnsChannel", "bname", "oway", "ns", "nsd", "lo"}
)
"""What any request may carry: signatures, and what RocketMQ 5's clients add to all of theirs."""
_SHOWN_CHARACTERS: Final = 64


def check(rules: NamesrvRules, session: NamesrvSession, command: Command) -> None:
    """Nothing, or RefusalError."""
    if command.code not in GUARDED:
        return
    if not rules.readable:
        raise RefusalError(
            "unreadable", f"the rules cannot be read: correct {rules.path.name}, the NameServer's log has more"
        )
    name = command.fields.get("brokerName", "") if command.code in BROKERS_CODES else None
    if not states_account(command):
        if name is None or not _may_be_unsigned(rules, session, name):
            raise RefusalError("unsigned", _unsigned_text(rules, command.code, name))
        return
    account = rules.accounts.get(command.fields[ACCESS_KEY])
    if account is None:
        raise RefusalError("unknown_key", f"No acl config for {shown(command.fields[ACCESS_KEY])}")
    if not is_signed(account, command):
        key = shown(account.entry.access_key)
        raise RefusalError("signature", f"Check signature failed for accessKey={key}: compare the secret keys")
    _check_fields(command)
    _check_account(rules, account, command.code, name)


def states_account(command: Command) -> bool:
    """Whether a request names an account; one that `check` passed is signed by it then."""
    return ACCESS_KEY in command.fields


def is_signed(account: Account, command: Command) -> bool:
    """Whether a request carries the account's signature."""
    return account.signer.signed(command.fields, command.body)


def _may_be_unsigned(rules: NamesrvRules, session: NamesrvSession, name: str) -> bool:
    if name in rules.open_names:
        return True
    return name not in rules.registrars and rules.is_unsigned_network(session.remote_host)


def _unsigned_text(rules: NamesrvRules, code: int, name: str | None) -> str:
    if name is None:
        return f"No accessKey is configured: request code={code} needs the signature of an administrator"
    stated = name[:_SHOWN_CHARACTERS]
    if name in rules.registrars:
        return f"No accessKey is configured: broker {stated} signs with its account (namesrvAccountFile)"
    return (
        f"No accessKey is configured: give an account brokerNames with {stated}, or list the broker's network in"
        " unsignedBrokers"
    )


def _check_account(rules: NamesrvRules, account: Account, code: int, name: str | None) -> None:
    key = account.entry.access_key
    if name is None:
        if not account.admin:
            raise RefusalError(
                "admin", f"Need admin permission for request code={code}, but accessKey={shown(key)} is not"
            )
    elif key not in rules.registrars.get(name, ()):
        text = f"accessKey={shown(key)} may not register broker {name[:_SHOWN_CHARACTERS]}: add it to its brokerNames"
        raise RefusalError("name", text)


def _check_fields(command: Command) -> None:
    header = GUARDED[command.code]
    known = COMMON_FIELDS if header is None else COMMON_FIELDS | header.field_names()
    strange = [name for name in command.fields if name not in known]
    if strange:
        text = (
            f"request code={command.code} has no field {strange[0][:_SHOWN_CHARACTERS]!r}: send a signed one without it"
        )
        raise RefusalError("fields", text)
    address = command.fields.get("brokerAddr")
    if address is not None and not _is_ip_address(address):
        text = f"brokerAddr {address[:_SHOWN_CHARACTERS]!r} is no IP address with a port: set brokerIP1 to one"
        raise RefusalError("fields", text)


def _is_ip_address(address: str) -> bool:
    try:
        host, port = parse_address(address)
        ip = ipaddress.ip_address(host)
    except (ConfigError, ValueError):
        return False
    if ip.is_unspecified or ip.is_multicast:
        return False
    # One spelling of each: what is shifted out of a field must not be the same address.
    return address in (f"{ip}:{port}", f"[{ip}]:{port}")
