"""Validation of the spec. If it is invalid, nothing is changed, and the status states what to correct."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec
from delaymq.config import BrokerConfig, ConfigError, from_environment

from delaymq_operator.api.broker import Broker, BrokerSpec, parse_broker
from delaymq_operator.api.broker_status import BrokerStatus
from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.delay_level_config import parse_delay_level_config
from delaymq_operator.api.errors import SpecError
from delaymq_operator.api.names import (
    ACCESS_KEY,
    CA_KEY,
    CERTIFICATE_KEY,
    DRY_RUN_ANNOTATION,
    PRIVATE_KEY_KEY,
    SECRET_KEY,
)
from delaymq_operator.api.resource import metadata_of, status_of
from delaymq_operator.manifests import RULES_KEY, DelayTable, broker_settings, check_settings, parse_quantity
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Note
from delaymq_operator.reconcile.name_servers import foreign_addresses, refused_addresses
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.reconcile.secrets import read_secret

_MAX_POD_TEMPLATE_BYTES: Final = 200_000
"""Maximum size of the pod template: it is stored in an annotation, and an object's annotations have at most 256 KiB."""

_SECRET_LOOK_S: Final = 3.0
"""Interval between checks of an incomplete Secret, which is not watched."""


def read_broker(body: Manifest) -> tuple[Broker, Note | None]:
    """Return the Broker and the problem of its spec; with a problem, it has a default spec that must not be applied."""
    try:
        return parse_broker(body), None
    except SpecError as error:
        empty = Broker(spec=BrokerSpec(), status=status_of(body, BrokerStatus), **metadata_of("Broker", body))
        return empty, Note(Reason.INVALID_SPEC, f"{error}.")


async def check_spec(p: BrokerPass) -> None:
    """Check that a broker would start with the configuration."""
    if p.spec_problem is not None:
        return None
    spec = p.broker.spec
    try:
        parse_quantity(spec.storage.size)
    except ValueError as error:
        return p.bad_spec(Reason.INVALID_SPEC, f"spec.storage.size: {error}.")
    size_bytes = len(json.dumps(msgspec.to_builtins(spec.pod_template)))
    if size_bytes > _MAX_POD_TEMPLATE_BYTES:
        what = f"spec.podTemplate has {size_bytes} bytes as JSON, and the maximum is {_MAX_POD_TEMPLATE_BYTES}"
        return p.bad_spec(Reason.INVALID_SPEC, f"{what}: shorten env, annotations or affinity.")
    misplaced = sorted(from_environment(BrokerConfig, {entry.name: entry.value for entry in spec.pod_template.env}))
    if misplaced:
        what = f"spec.podTemplate.env sets {', '.join(misplaced)}"
        return p.bad_spec(
            Reason.INVALID_CONFIG, f"{what}: use spec.config or the corresponding field, and remove the variable."
        )
    try:
        check_settings(broker_settings(spec, DelayTable()))
    except ConfigError as error:
        return p.bad_spec(Reason.INVALID_CONFIG, f"spec.config: {error}.")
    return None


async def check_name_servers(p: BrokerPass) -> None:
    """Check that external NameServers are in the operator's list, or already in use."""
    foreign = foreign_addresses(p.broker, p.ctx)
    if p.spec_problem is not None or not foreign:
        return
    refused = refused_addresses(p.broker, p.ctx)
    found = refused or foreign
    verb, noun = ("is", "the address") if len(found) == 1 else ("are", "the addresses")
    what = (
        f"spec.nameServers.addresses: {', '.join(found)} {verb} outside namespace {p.namespace} and not in the "
        "operator's setting nameServerAddresses"
    )
    todo = f"Add {noun} to that setting, or use NameServers in this namespace"
    if refused:
        p.bad_spec(Reason.NAME_SERVER_NOT_ALLOWED, f"{what}. {todo}; until then, nothing is changed.")
    else:
        said = f"{what}, but already in use and therefore kept. {todo}: a new Broker would be rejected."
        p.problem(Reason.NAME_SERVER_NOT_LISTED, said)


async def find_levels(p: BrokerPass) -> None:
    """Find the table of the DelayLevelConfig in the spec.

    Without it, no broker is created or changed: with another table, messages would have different due times.
    """
    reference = p.broker.spec.delay_level_config_ref
    if p.spec_problem is not None:
        return
    if reference is None:
        p.delay = DelayTable()
        return
    body = p.cached("DelayLevelConfig", reference.name)
    if body is None:
        what = f"DelayLevelConfig {reference.name} does not exist in namespace {p.namespace}"
        p.bad_spec(
            Reason.DELAY_LEVEL_CONFIG_MISSING,
            f"{what}: create it, or correct spec.delayLevelConfigRef; until then, nothing is changed.",
        )
        return
    try:
        config = parse_delay_level_config(body)
    except SpecError as error:
        what = f"DelayLevelConfig {reference.name} is invalid: {error}"
        p.bad_spec(Reason.DELAY_LEVEL_CONFIG_INVALID, f"{what}. Until it is corrected, nothing is changed.")
        return
    table = config.status.applied if config.is_dry_run else config.spec
    if table is None:
        what = f"DelayLevelConfig {reference.name} has the annotation {DRY_RUN_ANNOTATION} and no table in effect"
        p.bad_spec(Reason.DELAY_LEVEL_CONFIG_MISSING, f"{what}: remove the annotation; until then, nothing is changed.")
        return
    p.delay = DelayTable(levels=table.message_delay_level, overflow=table.delay_level_overflow)


async def find_secrets(p: BrokerPass) -> None:
    """Check that the Secrets in the spec contain the required keys.

    Otherwise no pod is created or restarted: it could not start, and would wait for minutes after it could.
    """
    spec = p.broker.spec
    # The Secret with the rules of Users is the operator's own, and is created by a later step.
    rules = None if spec.access_control is None else spec.access_control.secret_name
    if rules is not None:
        await _find_secret(p, "spec.accessControl", rules, (RULES_KEY,))
    if spec.tls is not None and spec.tls.secret_name is not None:
        keys = (CERTIFICATE_KEY, PRIVATE_KEY_KEY)
        await _find_secret(p, "spec.tls", spec.tls.secret_name, (*keys, CA_KEY) if p.broker.enforces_tls else keys)
        await _check_certificate(p, spec.tls.secret_name)
    if rules is not None and p.spec_problem is None and (await read_secret(p.broker, rules, p.ctx)).account is None:
        p.requeue(_SECRET_LOOK_S)
        p.problem(
            Reason.ACCOUNT_MISSING,
            f"Secret {rules} has no {ACCESS_KEY} and {SECRET_KEY}: add those of an account with admin: true. "
            "Without them, the operator cannot change brokers or create topics.",
        )


async def _check_certificate(p: BrokerPass, name: str) -> None:
    """Check that what requires TLS can be verified: otherwise brokers and operator would reject their own servers."""
    if p.spec_problem is not None or not p.broker.enforces_tls:
        return
    if (await read_secret(p.broker, name, p.ctx)).trust is None:
        p.requeue(_SECRET_LOOK_S)
        p.bad_spec(
            Reason.CERTIFICATE_INVALID,
            f"Secret {name} cannot be used with spec.tls.mode enforcing: tls.crt must contain at least one name "
            "(subjectAltName), and ca.crt the certificate of its issuer. Correct the Secret, or set the mode to "
            "permissive; until then, nothing is changed.",
        )


async def _find_secret(p: BrokerPass, field: str, name: str, keys: Sequence[str]) -> None:
    if p.spec_problem is not None:
        return
    seen = await read_secret(p.broker, name, p.ctx)
    missing = [key for key in keys if key not in seen.keys]
    if not missing:
        return
    p.requeue(_SECRET_LOOK_S)
    if seen.there:
        what, todo = f"Secret {name} has no {' and no '.join(missing)}", "add it" if len(missing) == 1 else "add them"
    else:
        what, todo = f"Secret {name} does not exist in namespace {p.namespace}", f"create it with {' and '.join(keys)}"
    p.bad_spec(Reason.SECRET_MISSING, f"{what}: {todo}, or correct {field}.secretName; until then, nothing is changed.")
