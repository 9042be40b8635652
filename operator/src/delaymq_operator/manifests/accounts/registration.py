"""Accounts with which brokers register at their NameServers, and the NameServers' rules.

Everything is derived from the seeds in one Secret. A broker's pod mounts only its own account; changed files restart
nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.accounts.access import OWN_METADATA, RULES_KEY
from delaymq_operator.manifests.metadata import Manifest, new_object, secret_data

REGISTRATION_PATH: Final = "/etc/delaymq-registration"
REGISTRATION_VOLUME: Final = "registration"
STATE_KEY: Final = "state.json"
ACCOUNT_FILE: Final = "account.yml"
NAMES_RULES_KEY: Final = "namesrv_acl.yml"
"""Key in the operator's Secret and, for accounts added by users, in the user's Secret."""
_FOLDER: Final = "acl"
"""Folder next to a NameServer's rule file, from which it reads further rule files."""
NAMES_ACCOUNTS_PATH: Final = f"{REGISTRATION_PATH}/{_FOLDER}/{RULES_KEY}"
"""The brokers' rules in a NameServer's pod."""
_RESTRICTS: Final = "DELAYMQ_NAMESRV_ACL_METADATA"
_ADMINISTRATOR: Final = "operator"


@dataclass(frozen=True, kw_only=True)
class Registrations:
    """Contents of the Secret. Accounts of all `seeds` are valid; brokers and operator use those of `given`."""

    seeds: Mapping[int, str] = field(repr=False)
    """Seeds by generation."""
    given: int
    newest: int
    rotation: str = ""
    """Value of the annotation that requested the newest generation."""
    since_ms: int = 0
    """Time when NameServers received the newest generation."""


def registers(broker: Broker) -> bool:
    """Return whether brokers sign their registrations: with the operator's NameServers and access control."""
    return broker.spec.access_control is not None and not broker.spec.name_servers.addresses


_SECOND: Final = "  requireSecondSignature: true"


def has_names_rules(broker: Broker) -> bool:
    """Return whether the operator's NameServers require signatures."""
    control = broker.spec.access_control
    return registers(broker) and control is not None and (bool(control.name_servers) or broker.hides_metadata)


def registration_secret(broker: Broker, kept: Registrations, unsigned: Collection[int]) -> Manifest:
    """Return the Secret; pods of groups in `unsigned` do not sign yet."""
    found = new_object(broker, "Secret", names.registration_secret(broker.name), "namesrv")
    found["type"] = "Opaque"
    key, secret = _account(kept, kept.given, _ADMINISTRATOR, broker.name)
    texts = {STATE_KEY: _state_text(kept), NAMES_RULES_KEY: _rules(broker, kept, unsigned)}
    texts |= {names.ACCESS_KEY: key, names.SECRET_KEY: secret}
    for group in range(names.MAX_SIZE):
        key, secret = _account(kept, kept.given, names.rocketmq_broker_name(broker.name, group))
        texts[_group_key(group)] = f"accessKey: {key}\nsecretKey: {secret}\n"
    found["data"] = secret_data(texts)
    return found


def read_registrations(secret: Mapping[str, object] | None) -> Registrations | None:
    """Return the contents of a Secret; None if the operator did not create it or it is invalid."""
    data = (secret or {}).get("data")
    try:
        tree = json.loads(base64.b64decode(data[STATE_KEY]))  # type: ignore[index]
        seeds = {int(number): str(seed) for number, seed in tree["seeds"].items()}
        found = Registrations(
            seeds=seeds,
            given=int(tree["given"]),
            newest=int(tree["newest"]),
            rotation=str(tree["rotation"]),
            since_ms=int(tree["sinceMs"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return found if {found.given, found.newest} <= seeds.keys() and all(seeds.values()) else None


def _state_text(kept: Registrations) -> str:
    seeds = {str(number): seed for number, seed in sorted(kept.seeds.items())}
    tree = {"given": kept.given, "newest": kept.newest, "rotation": kept.rotation, "seeds": seeds}
    return json.dumps(tree | {"sinceMs": kept.since_ms}, sort_keys=True)


def _rules(broker: Broker, kept: Registrations, unsigned: Collection[int]) -> str:
    about = (
        "# Written by delaymq-operator. Add your own accounts to namesrv_acl.yml in the Secret of spec.accessControl."
    )
    lines = [about, "accounts:"]
    for generation in sorted(kept.seeds, reverse=True):
        key, secret = _account(kept, generation, _ADMINISTRATOR, broker.name)
        lines += [f"- accessKey: {key}", f"  secretKey: {secret}", _SECOND, "  admin: true"]
        for group in range(names.MAX_SIZE):
            name = names.rocketmq_broker_name(broker.name, group)
            key, secret = _account(kept, generation, name)
            lines += [f"- accessKey: {key}", f"  secretKey: {secret}", _SECOND, "  brokerNames:", f'  - "{name}"']
            if group in unsigned:
                lines.append("  unsigned: true")
    return "\n".join([*lines, ""])


def _account(kept: Registrations, generation: int, *of: str) -> tuple[str, str]:
    name = "-".join(of)
    text = json.dumps([generation, *of])
    secret = hmac.new(kept.seeds[generation].encode(), text.encode(), hashlib.sha256).hexdigest()
    return f"{name}-registration-{generation}", secret


def _group_key(group: int) -> str:
    return f"group-{group}.yml"


# In pods.


def account_environment(broker: Broker) -> dict[str, str]:
    """Return a broker's variables with the location of its account."""
    return {"DELAYMQ_NAMESRV_ACCOUNT_FILE": f"{REGISTRATION_PATH}/{ACCOUNT_FILE}"} if registers(broker) else {}


def account_volumes(broker: Broker, group: int) -> list[Manifest]:
    """Return a broker's volume with its own account only."""
    if not registers(broker):
        return []
    items = [{"key": _group_key(group), "path": ACCOUNT_FILE}]
    secret = {"secretName": names.registration_secret(broker.name), "items": items, "defaultMode": 0o440}
    return [{"name": REGISTRATION_VOLUME, "secret": secret}]


def registration_mounts(broker: Broker, *, wanted: bool) -> list[Manifest]:
    """Return the mounts of a container. They do not use subPath, since such a mount would never be updated."""
    return [{"name": REGISTRATION_VOLUME, "mountPath": REGISTRATION_PATH, "readOnly": True}] if wanted else []


def rules_environment(broker: Broker) -> dict[str, str]:
    """Return a NameServer's variables with the location of its rules."""
    if not has_names_rules(broker):
        return {}
    found = {"DELAYMQ_NAMESRV_ACL_CONFIG_PATH": f"{REGISTRATION_PATH}/{NAMES_RULES_KEY}"}
    return found | ({_RESTRICTS: OWN_METADATA} if broker.hides_metadata else {})


def restricts_queries(pod: Mapping[str, Any]) -> bool:
    """Return whether the NameServer in a pod requires accounts for queries."""
    containers = (pod.get("spec") or {}).get("containers") or []
    return any(entry.get("name") == _RESTRICTS for each in containers for entry in each.get("env") or [])


def rules_volumes(broker: Broker) -> list[Manifest]:
    """Return a NameServer's volumes: the operator's rules, and in a directory next to them, those of the user's Secret
    for NameServers and, if queries need accounts, the rules of the brokers, without which it does not start.
    """
    control = broker.spec.access_control
    if control is None or not has_names_rules(broker):
        return []
    own = {
        "name": names.registration_secret(broker.name),
        "items": [{"key": NAMES_RULES_KEY, "path": NAMES_RULES_KEY}],
    }
    sources: list[Manifest] = [{"secret": own}]
    if control.secret_name is not None:
        items = [{"key": NAMES_RULES_KEY, "path": f"{_FOLDER}/{NAMES_RULES_KEY}"}]
        sources.append({"secret": {"name": control.secret_name, "items": items, "optional": True}})
    if broker.hides_metadata:
        items = [{"key": RULES_KEY, "path": f"{_FOLDER}/{RULES_KEY}"}]
        sources.append({"secret": {"name": broker.rules_secret, "items": items}})
    projected = {"defaultMode": 0o440, "sources": sources}
    return [{"name": REGISTRATION_VOLUME, "projected": projected}]
