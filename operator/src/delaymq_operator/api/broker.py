"""The Broker resource: its spec. Its status is in broker_status.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field, structs

from delaymq_operator.api.analytics import AnalyticsSpec
from delaymq_operator.api.broker_status import BrokerStatus
from delaymq_operator.api.errors import SpecError
from delaymq_operator.api.names import (
    ANALYZE_ANNOTATION,
    FORCE_SCALE_IN_ANNOTATION,
    GROUP_NODE_PORT_DISTANCE,
    MAX_REPLICAS,
    MAX_SIZE,
    OWNED_KEYS,
    PROMOTE_ANNOTATION,
    RESTART_ANNOTATION,
    ROTATE_ANNOTATION,
    certificate_secret,
    users_secret,
)
from delaymq_operator.api.resource import ApiStruct, NameRef, Resource, metadata_of, spec_of, status_of

_LINE_ENDS = frozenset("\x85\u2028\u2029")
"""Unicode line separators, at which readers of broker.conf end a line, too."""
_MAX_SHOWN_CHARS = 100
CA_VALIDITY_RATIO: Final = 6
"""Least ratio of the lifetimes of a CA and of its certificates. A CA issues certificates for at most five sixths of its
lifetime, so none of them has to outlive it.
"""

Quantity = str | int
"""A Kubernetes quantity: `100m`, `256Mi`, `2`."""
Opaque = dict[str, Any]
"""Passed to Kubernetes unchanged."""


class ResourceRequirements(ApiStruct, frozen=True, kw_only=True):
    """Resource requests and limits of a container."""

    requests: dict[str, Quantity] = field(default_factory=dict)
    limits: dict[str, Quantity] = field(default_factory=dict)


class Storage(ApiStruct, frozen=True, kw_only=True):
    """Volume of each group."""

    size: str = "10Gi"
    storage_class_name: str | None = None
    """None: the cluster's default class."""
    delete_claim: bool = False


class NameServers(ApiStruct, frozen=True, kw_only=True):
    """NameServers: created by the operator, or addresses of existing ones."""

    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    addresses: tuple[str, ...] = ()
    """Addresses as host:port; if there are any, the operator creates no NameServers."""
    resources: ResourceRequirements = ResourceRequirements(requests={"cpu": "50m", "memory": "128Mi"})


class EnvVar(ApiStruct, frozen=True, kw_only=True):
    """An environment variable of the broker containers."""

    name: str
    value: str = ""


class PodTemplate(ApiStruct, frozen=True, kw_only=True):
    """Additions to the pods."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Opaque, ...] = ()
    affinity: Opaque | None = None
    topology_spread_constraints: tuple[Opaque, ...] = ()
    priority_class_name: str | None = None
    service_account_name: str | None = None
    """None: the operator creates one."""
    termination_grace_period_seconds: Annotated[int, Meta(ge=0, le=3600)] = 60
    env: tuple[EnvVar, ...] = ()


class External(ApiStruct, frozen=True, kw_only=True):
    """Access for clients outside the cluster."""

    type: Literal["NodePort", "LoadBalancer"]
    advertised_address: str | None = None
    """An IP address."""
    broker_node_port: Annotated[int, Meta(ge=30002, le=32767)] = 30911
    name_server_node_port: Annotated[int, Meta(ge=30000, le=32767)] = 30976
    annotations: dict[str, str] = field(default_factory=dict)
    """Annotations of the Services."""
    load_balancer_class: str | None = None

    def group_node_port(self, group: int) -> int:
        """Return the port of the broker of `group`, which is also its NodePort; the fast port is 2 below."""
        return self.broker_node_port + group * GROUP_NODE_PORT_DISTANCE


class NetworkPolicy(ApiStruct, frozen=True, kw_only=True):
    """Restrictions on connections to the pods."""

    enabled: bool | None = None
    """None: according to the Broker's version of the defaults (status.defaults)."""
    allow_from: tuple[Opaque, ...] = ()
    """NetworkPolicyPeers; empty: every pod of the namespace."""
    allow_metrics_from: tuple[Opaque, ...] = ()


class GeneratedCertificate(ApiStruct, frozen=True, kw_only=True):
    """A certificate that the operator issues, with a CA of the Broker."""

    validity_days: Annotated[int, Meta(ge=1, le=397)] = 90
    ca_validity_days: Annotated[int, Meta(ge=6, le=7300)] = 1825

    def __post_init__(self) -> None:
        if self.ca_validity_days < CA_VALIDITY_RATIO * self.validity_days:
            raise ValueError(f"caValidityDays must be at least {CA_VALIDITY_RATIO} times validityDays")


class Tls(ApiStruct, frozen=True, kw_only=True):
    """TLS on the ports of brokers and NameServers, with a certificate from exactly one source."""

    secret_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    """A Secret of type kubernetes.io/tls."""
    generate: GeneratedCertificate | None = None
    mode: Literal["permissive", "enforcing"] = "permissive"
    """Value of RocketMQ's tls.server.mode: whether plaintext connections are accepted."""

    def __post_init__(self) -> None:
        if (self.secret_name is None) == (self.generate is None):
            raise ValueError("set either secretName or generate")


class AccessControl(ApiStruct, frozen=True, kw_only=True):
    """Access control: requests to brokers must be signed. The rules come from Users, or from a Secret."""

    users: bool = False
    """Whether the accounts are those of Users."""
    secret_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    """Secret with plain_acl.yml, and with the accessKey and secretKey of an administrator for the operator."""
    name_servers: bool | None = None
    """Whether the Broker's NameServers require signatures; None: according to its version of the defaults."""
    metadata: Literal["Open", "Own"] = "Open"
    """Whether accounts see all topics and groups, or only their own; with Own, NameServers require signatures."""

    def __post_init__(self) -> None:
        if self.users is (self.secret_name is not None):
            raise ValueError("set either users or secretName")
        if self.metadata == "Own" and self.name_servers is False:
            raise ValueError("metadata Own requires signatures at the NameServers: remove nameServers, or set it true")


class Replication(ApiStruct, frozen=True, kw_only=True):
    """How the brokers of a group replicate messages."""

    mode: Literal["Async", "Sync"] = "Sync"
    min_in_sync: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1
    acknowledge: Literal["Appended", "Flushed"] = "Appended"
    failover: Literal["Automatic", "Manual"] = "Automatic"
    replace_lost_volumes_after_seconds: Annotated[int, Meta(ge=60, le=604_800)] | None = None
    """Time after which a volume of nodes that no longer exist is replaced; None: never."""


class BrokerSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state; crds/broker.yaml documents each field and what a change restarts."""

    size: Annotated[int, Meta(ge=1, le=MAX_SIZE)] = 1
    replicas_per_group: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1
    """Including the master."""
    replication: Replication = Replication()
    image: str | None = None
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[NameRef, ...] = ()
    flush: Literal["Async", "Sync"] = "Async"
    delay_level_config_ref: NameRef | None = None
    config: dict[str, str] = field(default_factory=dict)
    storage: Storage = Storage()
    name_servers: NameServers = NameServers()
    resources: ResourceRequirements = ResourceRequirements(requests={"cpu": "100m", "memory": "256Mi"})
    pod_template: PodTemplate = PodTemplate()
    external: External | None = None
    network_policy: NetworkPolicy = NetworkPolicy()
    tls: Tls | None = None
    """None: TLS clients receive a certificate that cannot be verified."""
    access_control: AccessControl | None = None
    """None: everyone who can connect may send any request."""
    analytics: AnalyticsSpec | None = None
    """None: no analytics."""
    paused: bool = False

    @property
    def flush_disk_type(self) -> str:
        """The value of RocketMQ's `flushDiskType`."""
        return f"{self.flush.upper()}_FLUSH"


class Broker(Resource, frozen=True, kw_only=True):
    """A Broker as stored by the API server."""

    spec: BrokerSpec = BrokerSpec()
    status: BrokerStatus = BrokerStatus()

    @property
    def enforces_tls(self) -> bool:
        """Whether brokers and NameServers accept TLS connections only."""
        return self.spec.tls is not None and self.spec.tls.mode == "enforcing"

    def with_tls_mode(self, *, enforcing: bool) -> Broker:
        """Return the Broker with another mode; spec.tls must be set."""
        if self.spec.tls is None:
            raise RuntimeError("there is no TLS mode without spec.tls")
        tls = structs.replace(self.spec.tls, mode="enforcing" if enforcing else "permissive")
        return structs.replace(self, spec=structs.replace(self.spec, tls=tls))

    @property
    def certificate_secret(self) -> str | None:
        """Name of the Secret with the certificate of brokers and NameServers; None without spec.tls."""
        tls = self.spec.tls
        return None if tls is None else tls.secret_name or certificate_secret(self.name)

    @property
    def rules_secret(self) -> str | None:
        """Name of the Secret with plain_acl.yml and the operator's account; None without access control."""
        control = self.spec.access_control
        return None if control is None else control.secret_name or users_secret(self.name)

    @property
    def has_users(self) -> bool:
        """Whether the accounts are those of Users."""
        return self.spec.access_control is not None and self.spec.access_control.users

    @property
    def hides_metadata(self) -> bool:
        """Whether brokers and NameServers show each account only its own topics and groups."""
        return self.spec.access_control is not None and self.spec.access_control.metadata == "Own"

    @property
    def restart_annotation(self) -> str:
        """Value of the annotation; a change restarts all pods."""
        return self.annotations.get(RESTART_ANNOTATION, "")

    @property
    def rotate_annotation(self) -> str:
        """Value of the annotation; a change requests new registration accounts."""
        return self.annotations.get(ROTATE_ANNOTATION, "")

    @property
    def analyze_annotation(self) -> str:
        """Value of the annotation; a change requests an analytics run."""
        return self.annotations.get(ANALYZE_ANNOTATION, "")

    @property
    def promote_annotation(self) -> str:
        """Value of the annotation, POD@EPOCH: the pod becomes master although messages may be lost."""
        return self.annotations.get(PROMOTE_ANNOTATION, "").strip()

    @property
    def force_scale_in(self) -> bool:
        """Whether groups may be removed although they contain messages."""
        return self.annotations.get(FORCE_SCALE_IN_ANNOTATION, "").strip() == str(self.spec.size)


def parse_broker(body: Mapping[str, Any]) -> Broker:
    """Return a Broker from its body. SpecError if its spec is invalid."""
    spec = spec_of("Broker", body, BrokerSpec)
    _check_config(spec.config)
    _check_metadata(spec)
    return Broker(spec=spec, status=status_of(body, BrokerStatus), **metadata_of("Broker", body))


def _check_metadata(spec: BrokerSpec) -> None:
    if spec.access_control is None or spec.access_control.metadata == "Open":
        return
    if spec.name_servers.addresses:
        raise SpecError(
            "spec.accessControl.metadata: Own requires NameServers with the accounts of this Broker: remove"
            " spec.nameServers.addresses, or set spec.config.aclMetadata to own, which restricts brokers only"
        )
    if "aclMetadata" in spec.config:
        raise SpecError("spec.config.aclMetadata is set by spec.accessControl.metadata: remove the key")


def _check_config(config: Mapping[str, str]) -> None:
    """Check keys and values. The CRD rejects these as well, but an older CRD must not permit line breaks in
    broker.conf.
    """
    for key, value in config.items():
        if key == "useTLS" or key.startswith("tls."):
            raise SpecError(
                f"spec.config.{key} is set by the operator: use spec.tls, which names the source of the certificate and"
                " the mode, and remove the key"
            )
        if key in OWNED_KEYS:
            raise SpecError(f"spec.config.{key} is set by the operator: {OWNED_KEYS[key]}; remove the key")
        if any((ord(letter) < 32 and letter != "\t") or letter in _LINE_ENDS for letter in key + value):
            shown = "".join(letter if letter.isprintable() else "?" for letter in key[:_MAX_SHOWN_CHARS])
            raise SpecError(f"spec.config.{shown} contains a line break or control character: use a single line")
