"""The Broker resource: its spec. Its status is in broker_status.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from delaymq_operator.api.analytics import AnalyticsSpec
from delaymq_operator.api.broker_status import BrokerStatus
from delaymq_operator.api.errors import SpecError
from delaymq_operator.api.names import (
    ANALYZE_ANNOTATION,
    FORCE_SCALE_IN_ANNOTATION,
    GROUP_NODE_PORT_DISTANCE,
    MAX_SIZE,
    OWNED_KEYS,
    RESTART_ANNOTATION,
    ROTATE_ANNOTATION,
)
from delaymq_operator.api.resource import ApiStruct, NameRef, Resource, metadata_of, spec_of, status_of

# Unicode's own: readers of broker.conf end a line there too.
_LINE_ENDS = frozenset("\x85\u2028\u2029")
_MAX_SHOWN_CHARS = 100

Quantity = str | int
"""As Kubernetes writes amounts: `100m`, `256Mi`, `2`."""
Opaque = dict[str, Any]
"""Handed on to Kubernetes as it is."""


class ResourceRequirements(ApiStruct, frozen=True, kw_only=True):
    """What a container asks for and may use."""

    requests: dict[str, Quantity] = field(default_factory=dict)
    limits: dict[str, Quantity] = field(default_factory=dict)


class Storage(ApiStruct, frozen=True, kw_only=True):
    """The volume of each group."""

    size: str = "10Gi"
    storage_class_name: str | None = None
    """None: the cluster's default class."""
    delete_claim: bool = False


class NameServers(ApiStruct, frozen=True, kw_only=True):
    """The NameServers: own ones, or addresses of others."""

    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    addresses: tuple[str, ...] = ()
    """host:port each; when there are some, none are made."""
    resources: ResourceRequirements = ResourceRequirements(requests={"cpu": "50m", "memory": "128Mi"})


class EnvVar(ApiStruct, frozen=True, kw_only=True):
    """An environment variable of the broker containers."""

    name: str
    value: str = ""


class PodTemplate(ApiStruct, frozen=True, kw_only=True):
    """What is added to the pods."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Opaque, ...] = ()
    affinity: Opaque | None = None
    topology_spread_constraints: tuple[Opaque, ...] = ()
    priority_class_name: str | None = None
    service_account_name: str | None = None
    """None: one is made."""
    termination_grace_period_seconds: Annotated[int, Meta(ge=0, le=3600)] = 60
    env: tuple[EnvVar, ...] = ()


class External(ApiStruct, frozen=True, kw_only=True):
    """How clients outside the cluster get in."""

    type: Literal["NodePort", "LoadBalancer"]
    advertised_address: str | None = None
    """An IP address."""
    broker_node_port: Annotated[int, Meta(ge=30002, le=32767)] = 30911
    name_server_node_port: Annotated[int, Meta(ge=30000, le=32767)] = 30976
    annotations: dict[str, str] = field(default_factory=dict)
    """Of the Services."""
    load_balancer_class: str | None = None

    def group_node_port(self, group: int) -> int:
        """The port on which the broker of `group` listens and which every node opens; the fast port is 2 below."""
        return self.broker_node_port + group * GROUP_NODE_PORT_DISTANCE


class NetworkPolicy(ApiStruct, frozen=True, kw_only=True):
    """Who may connect to the pods."""

    enabled: bool | None = None
    """None: as the defaults say that the Broker was made with (status.defaults)."""
    allow_from: tuple[Opaque, ...] = ()
    """NetworkPolicyPeers; none: every pod of the namespace."""
    allow_metrics_from: tuple[Opaque, ...] = ()


class Tls(ApiStruct, frozen=True, kw_only=True):
    """TLS beside plain connections, on the same ports."""

    secret_name: Annotated[str, Meta(min_length=1, max_length=253)]
    """A Secret of type kubernetes.io/tls."""


class AccessControl(ApiStruct, frozen=True, kw_only=True):
    """Requests to brokers must be signed."""

    secret_name: Annotated[str, Meta(min_length=1, max_length=253)]
    """A Secret with plain_acl.yml, and the accessKey and secretKey of an administrator for the operator."""
    name_servers: bool | None = None
    """Whether own NameServers ask for signatures too; None: as the defaults say that the Broker was made with."""


class BrokerSpec(ApiStruct, frozen=True, kw_only=True):
    """What a user writes; crds/broker.yaml says what each field does, and what a change restarts."""

    size: Annotated[int, Meta(ge=1, le=MAX_SIZE)] = 1
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
    """None: clients with TLS get a certificate that nobody can verify."""
    access_control: AccessControl | None = None
    """None: whoever reaches the ports may ask for everything."""
    analytics: AnalyticsSpec | None = None
    """None: no analytics."""
    paused: bool = False

    @property
    def flush_disk_type(self) -> str:
        """The value of RocketMQ's `flushDiskType`."""
        return f"{self.flush.upper()}_FLUSH"


class Broker(Resource, frozen=True, kw_only=True):
    """A Broker as the API server has it."""

    spec: BrokerSpec = BrokerSpec()
    status: BrokerStatus = BrokerStatus()

    @property
    def restart_annotation(self) -> str:
        """What the user wrote there; a change restarts all pods."""
        return self.annotations.get(RESTART_ANNOTATION, "")

    @property
    def rotate_annotation(self) -> str:
        """What the user wrote there; a new text asks for new accounts of registrations."""
        return self.annotations.get(ROTATE_ANNOTATION, "")

    @property
    def analyze_annotation(self) -> str:
        """What the user wrote there; a new text asks for a run of the analytics."""
        return self.annotations.get(ANALYZE_ANNOTATION, "")

    @property
    def force_scale_in(self) -> bool:
        """Whether groups may go although messages remain in them."""
        return self.annotations.get(FORCE_SCALE_IN_ANNOTATION, "").strip() == str(self.spec.size)


def parse_broker(body: Mapping[str, Any]) -> Broker:
    """A Broker from its body; SpecError when its spec cannot be used."""
    spec = spec_of("Broker", body, BrokerSpec)
    _check_config(spec.config)
    return Broker(spec=spec, status=status_of(body, BrokerStatus), **metadata_of("Broker", body))


def _check_config(config: Mapping[str, str]) -> None:
    """The CRD refuses these too; an older CRD must not let a value write lines of its own into broker.conf."""
    for key, value in config.items():
        if key == "useTLS" or key.startswith("tls."):
            raise SpecError(
                f"spec.config.{key} is set by the operator: certificates come from spec.tls.secretName, and plaintext"
                " connections are always accepted, since the operator and NameServers use them. Remove the key."
            )
        if key in OWNED_KEYS:
            raise SpecError(f"spec.config.{key} is set by the operator: {OWNED_KEYS[key]}. Remove the key.")
        if any((ord(letter) < 32 and letter != "\t") or letter in _LINE_ENDS for letter in key + value):
            shown = "".join(letter if letter.isprintable() else "?" for letter in key[:_MAX_SHOWN_CHARS])
            raise SpecError(f"spec.config.{shown} contains a line break or control character: use a single line.")
