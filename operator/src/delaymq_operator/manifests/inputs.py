"""Hash of the user's settings whose change requires a restart of pods.

Only the user's settings count, and only where they differ from the default: neither a newer operator nor a new field
may change a hash. Therefore, never remove an entry, and add new ones with an empty default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from delaymq_operator.api.broker import Broker, ResourceRequirements
from delaymq_operator.api.names import OWN_LABELS
from delaymq_operator.manifests.accounts.access import OWN_METADATA
from delaymq_operator.manifests.accounts.registration import has_names_rules
from delaymq_operator.manifests.config import cold_keys
from delaymq_operator.manifests.context import Context
from delaymq_operator.manifests.hashes import digest, short_hash
from delaymq_operator.manifests.quantities import Quantity, canonical
from delaymq_operator.manifests.replication import replication_inputs
from delaymq_operator.manifests.services import listen_port


def broker_inputs(broker: Broker, context: Context, group: int, advertised_address: str, members: int = 0) -> str:
    """Return the hash for the pod of a broker group."""
    spec = broker.spec
    servers = spec.name_servers
    said = _of_all_pods(broker) | {
        "advertised": advertised_address,
        "port": listen_port(spec, group),
        "token": short_hash(context.token),
        "flush": spec.flush,
        "config": cold_keys(spec.config),
        "nameServers": list(servers.addresses) or servers.replicas,
        "resources": _resources(spec.resources),
        "env": msgspec.to_builtins(spec.pod_template.env),
        "grace": spec.pod_template.termination_grace_period_seconds,
        "registration": "signed" if _rules(broker) else "",
        "replication": replication_inputs(broker, members),
        "accessControl": broker.rules_secret or "",
    }
    return _hash(said)


def name_server_inputs(broker: Broker) -> str:
    """Return the hash for the pods of the NameServers."""
    said = {"resources": _resources(broker.spec.name_servers.resources), "rules": _rules(broker)}
    return _hash(_of_all_pods(broker) | said)


def _of_all_pods(broker: Broker) -> dict[str, Any]:
    spec, template = broker.spec, broker.spec.pod_template
    return {
        "image": spec.image,
        "pullPolicy": spec.image_pull_policy,
        "pullSecrets": [reference.name for reference in spec.image_pull_secrets],
        "restart": broker.restart_annotation,
        "labels": {key: value for key, value in template.labels.items() if key not in OWN_LABELS},
        "annotations": template.annotations,
        "nodeSelector": template.node_selector,
        "tolerations": list(template.tolerations),
        "affinity": template.affinity,
        "spread": list(template.topology_spread_constraints),
        "priority": template.priority_class_name,
        "serviceAccount": template.service_account_name,
        "tls": _certificate(broker),
        "tlsMode": "enforcing" if broker.enforces_tls else "",
        "metadata": OWN_METADATA if broker.hides_metadata else "",
    }


def _certificate(broker: Broker) -> str:
    """Return the source of the certificate; its lifetime restarts nothing."""
    tls = broker.spec.tls
    return "" if tls is None else tls.secret_name or "generate:"


def _rules(broker: Broker) -> str:
    """Return the Secret with accounts that users add to the NameServers' rules, or that of Users; empty: there are no
    rules.
    """
    return broker.rules_secret or "" if has_names_rules(broker) else ""


def _resources(resources: ResourceRequirements) -> dict[str, Any]:
    def amounts(table: Mapping[str, Quantity]) -> dict[str, str]:
        return {key: canonical(amount) for key, amount in table.items()}

    return {"requests": amounts(resources.requests), "limits": amounts(resources.limits)}


def _hash(said: Mapping[str, Any]) -> str:
    return digest({key: value for key, value in said.items() if value not in (None, "", [], {}, ())})
