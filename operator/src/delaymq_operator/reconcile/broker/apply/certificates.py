"""Certificates that the operator issues: created, renewed after two thirds of their lifetimes, extended by new names.

The CA's Secret is written before a certificate that it issued, and each pair by one request. An operator that is killed
in between leaves the previous pair, or the next one, in force.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from delaymq_operator.api import names
from delaymq_operator.api.broker import GeneratedCertificate
from delaymq_operator.manifests.certificates import (
    authority_config_map,
    authority_secret,
    issued_secret,
    secret_texts,
)
from delaymq_operator.manifests.hashes import digest
from delaymq_operator.reconcile.authorities import Authorities, advance, read_authorities
from delaymq_operator.reconcile.broker.apply.addresses import cluster_ip_of
from delaymq_operator.reconcile.broker.apply.ensure import check_ours, ensure
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.certificates import (
    DAY_MS,
    Facts,
    Pair,
    belong_together,
    facts_of,
    is_issued_by_one_of,
    issue,
    split_bundle,
)
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.reconcile.secrets import forget_secret, read_secret

CHECK_MS: Final = 60_000
"""Interval between checks of the Secrets, which are not watched."""
_SAME_LIFETIME_MS: Final = 60_000
_LOCAL: Final = ("localhost", "127.0.0.1")
_CLUSTER_DOMAIN: Final = "svc.cluster.local"
_HOST: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")


async def ensure_certificates(p: BrokerPass) -> None:
    """Ensure CA and certificate, before any pod mounts them."""
    tls = p.broker.spec.tls
    if tls is not None and tls.generate is not None:
        await _ensure(p, tls.generate, certificate_names(p))


async def renew_certificates(p: BrokerPass) -> None:
    """Renew an existing certificate although the pass changes nothing else: clients would be disconnected by an expired
    one.
    """
    tls = p.broker.spec.tls
    if tls is not None and tls.generate is not None:
        await _ensure(p, tls.generate, ())


def certificate_names(p: BrokerPass) -> tuple[str, ...]:
    """Return the names and addresses by which clients, brokers and the operator reach brokers and NameServers."""
    broker, found = p.broker.name, list[str]()
    services = [names.broker_pods_service(broker), *(names.group_object(broker, group.index) for group in p.groups)]
    pods = [names.broker_pods_service(broker)]
    addresses: list[str | None] = [*_LOCAL]
    for group in p.groups:
        addresses += [cluster_ip_of(group.service), group.address, *_ingress(group.external)]
    if p.own_name_servers:
        services += [names.namesrv_objects(broker), names.namesrv_pods_service(broker)]
        pods.append(names.namesrv_pods_service(broker))
        addresses.append(cluster_ip_of(p.cached("Service", names.namesrv_objects(broker))))
        addresses += _ingress(p.cached("Service", names.namesrv_external_service(broker)))
    if p.broker.spec.external is not None:
        addresses.append(p.broker.spec.external.advertised_address)
    # The first name is the one by which the operator verifies servers: all Brokers have it, and it never changes.
    found += [name for service in services for name in _service_names(p, service)]
    found += [f"*.{name}" for service in pods for name in _service_names(p, service)[1:]]
    return tuple(dict.fromkeys([*found, *(each for each in addresses if each)]))


def _service_names(p: BrokerPass, service: str) -> list[str]:
    inside = f"{service}.{p.namespace}"
    domains = dict.fromkeys([p.ctx.settings.cluster_domain, names.DEFAULT_CLUSTER_DOMAIN, _CLUSTER_DOMAIN])
    return [f"{inside}.{names.DEFAULT_CLUSTER_DOMAIN}", service, inside, *(f"{inside}.{each}" for each in domains)]


def _ingress(service: Manifest | None) -> Iterator[str]:
    for each in ((((service or {}).get("status") or {}).get("loadBalancer") or {}).get("ingress")) or []:
        if each.get("ip"):
            yield each["ip"]
        host = str(each.get("hostname") or "").lower()
        if _HOST.fullmatch(host):
            yield host


async def _ensure(p: BrokerPass, generate: GeneratedCertificate, wanted: Sequence[str]) -> None:
    """Perform the steps that are due; without `wanted` names, of an existing certificate only."""
    issued = names.certificate_secret(p.broker.name)
    checked = digest([generate.validity_days, generate.ca_validity_days, *wanted])
    age_ms = p.now_ms - p.memory.certified_ms
    all_ready = all(group.ready for group in p.desired_groups)
    if all_ready and checked == p.memory.certified and 0 <= age_ms < CHECK_MS:
        seen = await read_secret(p.broker, issued, p.ctx)
        if {names.CERTIFICATE_KEY, names.PRIVATE_KEY_KEY, names.CA_KEY} <= seen.keys:
            return
    live = await p.ctx.kube.get("Secret", p.namespace, issued)
    if live is not None:
        check_ours(p, live)
    texts = secret_texts(live)
    if not wanted and not _names_of(Pair(certificate=texts.get(names.CERTIFICATE_KEY, ""), key="")):
        return
    authorities = await _ensure_authorities(p, generate, split_bundle(texts.get(names.CA_KEY, "")))
    await ensure(p, authority_config_map(p.broker, authorities.bundle))
    await _ensure_issued(p, generate, authorities, texts, wanted)
    p.memory.certified, p.memory.certified_ms = checked, p.now_ms


async def _ensure_authorities(p: BrokerPass, generate: GeneratedCertificate, published: Sequence[str]) -> Authorities:
    name = names.authority_objects(p.broker.name)
    live = await p.ctx.kube.get("Secret", p.namespace, name)
    if live is not None:
        check_ours(p, live)
    found = read_authorities(secret_texts(live))
    common_name = f"{p.broker.name}.{p.namespace} CA"
    wanted = advance(found, published, common_name, p.now_ms, generate.ca_validity_days)
    if wanted != found:
        await p.ctx.kube.apply(authority_secret(p.broker, wanted.texts))
        await p.event("Normal", "AuthorityChanged", _describe(found, wanted, name))
    return wanted


def _describe(found: Authorities | None, wanted: Authorities, name: str) -> str:
    what = f"clients need the certificates in ConfigMap {name}"
    if found is None or found.active != wanted.active:
        return f"a new CA issues the certificates of brokers and NameServers: {what}"
    if wanted.next is not None and wanted.next != found.next:
        return f"a new CA will issue the certificates of brokers and NameServers later: {what}"
    return f"expired CAs were removed: {what}"


async def _ensure_issued(
    p: BrokerPass,
    generate: GeneratedCertificate,
    authorities: Authorities,
    texts: dict[str, str],
    wanted: Sequence[str],
) -> None:
    pair = Pair(certificate=texts.get(names.CERTIFICATE_KEY, ""), key=texts.get(names.PRIVATE_KEY_KEY, ""))
    why = _why_new(pair, generate, authorities, p.now_ms, wanted)
    if why:
        pair = issue(authorities.active, wanted or _names_of(pair), p.now_ms, generate.validity_days)
    desired = {names.CERTIFICATE_KEY: pair.certificate, names.PRIVATE_KEY_KEY: pair.key}
    desired[names.CA_KEY] = authorities.bundle
    if desired == texts:
        return
    await p.ctx.kube.apply(issued_secret(p.broker, desired))
    issued = names.certificate_secret(p.broker.name)
    forget_secret(p.broker, issued, p.ctx)
    if why:
        await p.event("Normal", "CertificateIssued", f"Secret {issued} has a new certificate: {why}")


def _names_of(pair: Pair) -> tuple[str, ...]:
    try:
        return facts_of(pair.certificate).names
    except ValueError:
        return ()


def _why_new(
    pair: Pair, generate: GeneratedCertificate, authorities: Authorities, now_ms: int, wanted: Iterable[str]
) -> str:
    """Return why a certificate is to be issued; empty: the present one is kept."""
    if not belong_together(pair):
        return "there was none"
    if not is_issued_by_one_of(pair.certificate, authorities.certificates):
        return "the present one has another issuer"
    facts = facts_of(pair.certificate)
    if now_ms >= facts.due_ms:
        return "two thirds of its lifetime had passed"
    added = [name for name in wanted if name not in facts.names]
    if added:
        return f"it lacked {added[0]}" + (f" and {len(added) - 1} more names" if len(added) > 1 else "")
    if _has_other_lifetime(facts, generate, authorities):
        return "spec.tls.generate.validityDays has changed"
    return ""


def _has_other_lifetime(facts: Facts, generate: GeneratedCertificate, authorities: Authorities) -> bool:
    """Return whether the lifetime differs from the spec, unless the certificate ends with its CA."""
    if any(abs(facts_of(each).ends_ms - facts.ends_ms) < _SAME_LIFETIME_MS for each in authorities.certificates):
        return False
    return abs(facts.ends_ms - facts.created_ms - generate.validity_days * DAY_MS) > _SAME_LIFETIME_MS
