"""Access control of a NameServer: checks of the eight request codes that change its data, and of queries (`queries`).

103 and 104 require the account of the broker's name, the other six an administrator. RocketMQ's signature covers
neither the code nor the boundaries between fields, so signed requests may contain only the fields of their code, and
administrators need TLS, a peer on this machine, or the second signature.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from delaymq.access.accounts import Account, shown
from delaymq.access.signed import signature_problem
from delaymq.config.checks import parse_address
from delaymq.config.errors import ConfigError
from delaymq.namesrv import queries
from delaymq.namesrv.errors import RefusalError
from delaymq.protocol import headers
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import (
    ACCESS_KEY,
    COMMON_FIELDS,
    CREDENTIAL_FIELDS,
    SECOND_SIGNATURE,
    SECURITY_TOKEN,
)
from delaymq.protocol.headers.base import Header

if TYPE_CHECKING:
    from delaymq.namesrv.routes import Routes
    from delaymq.namesrv.rules import NamesrvRules
    from delaymq.namesrv.session import NamesrvSession
    from delaymq.protocol.second_signature import Channels

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
"""Request codes that change data, with their headers."""
BROKERS_CODES: Final = frozenset({RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER})
_OPTIONAL: Final = COMMON_FIELDS | {SECURITY_TOKEN}
"""Fields that clients add to all requests; without the second signature, they must be empty, as RocketMQ's signature
does not separate fields."""
_SHOWN_CHARACTERS: Final = 64


def check(rules: NamesrvRules, channels: Channels, session: NamesrvSession, command: Command) -> None:
    """Raise RefusalError unless the request is permitted; call it once per request, because counters increase.

    Queries are permitted. Use `check_query` for them if they are restricted.
    """
    if command.code not in GUARDED:
        _keep_alive(rules, channels, session, command)
        return
    _check_readable(rules)
    name = command.fields.get("brokerName", "") if command.code in BROKERS_CODES else None
    if not states_account(command):
        if name is None or not _may_be_unsigned(rules, session, name):
            raise RefusalError("unsigned", _unsigned_text(rules, command.code, name))
        return
    account = _account(rules, command)
    _check_fields(command)
    _check_signature(channels, session, account, command)
    _check_account(rules, account, command.code, name)
    _check_addresses(rules, account, command)
    if name is None and SECOND_SIGNATURE not in command.fields and not session.is_private:
        text = (
            f"request code={command.code} needs TLS, a connection from this machine, or the second signature of"
            " DelayMQ's clients"
        )
        raise RefusalError("plain", text)


def check_query(
    rules: NamesrvRules, channels: Channels, routes: Routes, session: NamesrvSession, command: Command
) -> None:
    """Raise RefusalError unless a restricted query is permitted; call it once per request."""
    _check_readable(rules)
    name = command.fields.get("brokerName", "")
    if not states_account(command):
        if command.code == RequestCode.QUERY_DATA_VERSION and _may_be_unsigned(rules, session, name):
            return
        text = f"No accessKey is configured: request code={command.code} requires a signature"
        text += "" if command.code in queries.OF_RULES else " (namesrvAclMetadata=own)"
        raise RefusalError("unsigned", text)
    account = _account(rules, command)
    _check_signature(channels, session, account, command)
    queries.check_permission(account, routes, rules.registrars.get(name, frozenset()), command)


def _check_readable(rules: NamesrvRules) -> None:
    if not rules.readable:
        raise RefusalError(
            "unreadable", f"the rules are unreadable: correct {rules.path.name}; see the NameServer's log for details"
        )


def _account(rules: NamesrvRules, command: Command) -> Account:
    account = rules.accounts.get(command.fields[ACCESS_KEY])
    if account is None:
        raise RefusalError("unknown_key", f"No acl config for {shown(command.fields[ACCESS_KEY])}")
    return account


def states_account(command: Command) -> bool:
    """Return whether a request names an account, by which it is signed if it passed `check`."""
    return ACCESS_KEY in command.fields


def _keep_alive(rules: NamesrvRules, channels: Channels, session: NamesrvSession, command: Command) -> None:
    """Count a broker's query (322) for its challenge, which would otherwise expire before its next registration."""
    if command.code == RequestCode.QUERY_DATA_VERSION and SECOND_SIGNATURE in command.fields:
        account = rules.accounts.get(command.fields.get(ACCESS_KEY, ""))
        if account is not None:
            channels.verdict(session.id, account.entry.access_key, account.entry.secret_keys, command)


def _check_signature(channels: Channels, session: NamesrvSession, account: Account, command: Command) -> None:
    wrong = signature_problem(channels, session.id, account, command)
    if wrong is not None:
        raise RefusalError("signature", wrong[1])
    if account.entry.require_second_signature and SECOND_SIGNATURE not in command.fields:
        key = account.entry.access_key
        text = f"accessKey={shown(key)} requires the second signature: use a client or broker of DelayMQ"
        raise RefusalError("second_required", text)


def _may_be_unsigned(rules: NamesrvRules, session: NamesrvSession, name: str) -> bool:
    if name in rules.open_names:
        return True
    return name not in rules.registrars and rules.is_unsigned_network(session.remote_host)


def _unsigned_text(rules: NamesrvRules, code: int, name: str | None) -> str:
    if name is None:
        return f"No accessKey is configured: request code={code} requires an administrator's signature"
    stated = name[:_SHOWN_CHARACTERS]
    if name in rules.registrars:
        return f"No accessKey is configured: broker {stated} must sign with its account (namesrvAccountFile)"
    return (
        f"No accessKey is configured: add {stated} to the brokerNames of an account, or the broker's network to"
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
        text = (
            f"accessKey={shown(key)} may not register broker {name[:_SHOWN_CHARACTERS]}: add the name to the account's"
            " brokerNames"
        )
        raise RefusalError("name", text)


def _check_addresses(rules: NamesrvRules, account: Account, command: Command) -> None:
    key = account.entry.access_key
    networks = rules.addresses.get(key)
    if networks is None or command.code not in BROKERS_CODES:
        return
    for field in ("brokerAddr", "haServerAddr"):
        address = command.fields.get(field, "")
        ip = _ip_of(address)
        if field == "haServerAddr" and ip is not None and ip.is_loopback:
            continue  # sent by a broker without replicas, and useless to a remote replica
        if address and (ip is None or not any(ip in network for network in networks)):
            raise RefusalError(
                "address",
                f"accessKey={shown(key)} may not register {field} {address[:_SHOWN_CHARACTERS]!r}: add it to the"
                " account's addresses",
            )


def _check_fields(command: Command) -> None:
    header = GUARDED[command.code]
    known = CREDENTIAL_FIELDS - {SECURITY_TOKEN} | (frozenset() if header is None else header.field_names())
    is_covered = SECOND_SIGNATURE in command.fields
    strange = [
        name
        for name, value in command.fields.items()
        if name not in known and (name not in _OPTIONAL or (value and not is_covered))
    ]
    if strange:
        text = f"request code={command.code} has no field {strange[0][:_SHOWN_CHARACTERS]!r}: remove it and sign again"
        raise RefusalError("fields", text)
    address = command.fields.get("brokerAddr")
    if address is not None and _ip_of(address) is None:
        text = f"brokerAddr {address[:_SHOWN_CHARACTERS]!r} is not an IP address with a port: correct brokerIP1"
        raise RefusalError("fields", text)


def _ip_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address of `address` (with a port); None if it is not a valid broker address."""
    try:
        host, port = parse_address(address)
        ip = ipaddress.ip_address(host)
    except (ConfigError, ValueError):
        return None
    if ip.is_unspecified or ip.is_multicast:
        return None
    # Only the canonical spelling, so that text shifted between fields cannot form the same address.
    return ip if address in (f"{ip}:{port}", f"[{ip}]:{port}") else None
