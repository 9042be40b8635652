"""All names that the operator assigns or reads: API group, objects, labels, annotations, ports, broker.conf keys.

Names used by analytics are in analytics_names.py.

Object names are derived from the Broker's name. They must not change, since a change would leave the old objects
behind.
"""

from __future__ import annotations

from typing import Final, Literal

GROUP: Final = "delaymq.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
BROKER_KIND: Final = "Broker"
TOPIC_KIND: Final = "Topic"
DELAY_LEVEL_CONFIG_KIND: Final = "DelayLevelConfig"
USER_KIND: Final = "User"
PLURALS: Final = {
    BROKER_KIND: "brokers",
    TOPIC_KIND: "topics",
    DELAY_LEVEL_CONFIG_KIND: "delaylevelconfigs",
    USER_KIND: "users",
}

MAX_BROKER_NAME_CHARS: Final = 40
"""`<broker>-broker-31-` and a controller revision's hash must fit the 63 characters of a label."""
MAX_SIZE: Final = 32
MAX_REPLICAS: Final = 5
"""Maximum number of brokers in a group."""

ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"
"""Keys of Secrets that contain an account, as in RocketMQ's tools.yml."""
OPERATOR_ACCESS_KEY: Final = "delaymq-operator"
"""Access key of the operator's account on Brokers with accessControl.users."""
MIN_ACCESS_KEY_CHARS: Final = 7

FIELD_MANAGER: Final = "delaymq-operator"
FINALIZER: Final = f"{GROUP}/operator"
"""Finalizer of Topic and DelayLevelConfig; a Broker has none."""

# Annotations that a user sets on a Broker:
RESTART_ANNOTATION: Final = f"{GROUP}/restart"
FORCE_SCALE_IN_ANNOTATION: Final = f"{GROUP}/force-scale-in"
ANALYZE_ANNOTATION: Final = f"{GROUP}/analyze"
DRY_RUN_ANNOTATION: Final = f"{GROUP}/dry-run"
ROTATE_ANNOTATION: Final = f"{GROUP}/rotate-registration"
PROMOTE_ANNOTATION: Final = f"{GROUP}/promote"
# Annotations that the operator keeps:
INPUTS_ANNOTATION: Final = f"{GROUP}/inputs"
APPLIED_ANNOTATION: Final = f"{GROUP}/applied"
ADVERTISED_IP_ANNOTATION: Final = f"{GROUP}/advertised-ip"
HTTP_SCHEME_ANNOTATION: Final = f"{GROUP}/http-scheme"
"""Of a pod: `https` if its HTTP port requires TLS, for Prometheus."""
MEMBERS_ANNOTATION: Final = f"{GROUP}/members"
"""Of a volume claim: number of brokers in its group. A store that was replicated is opened only as a member."""
EPOCH_ANNOTATION: Final = f"{GROUP}/epoch"
"""Of an EndpointSlice: epoch of the master that wrote its address."""
REGISTER_ANNOTATION: Final = f"{GROUP}/register"
"""Of a Lease: the record of the register, which only brokers write."""

NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
GROUP_LABEL: Final = f"{GROUP}/group"
NAME_VALUE: Final = "delaymq"
MANAGED_BY_VALUE: Final = "delaymq-operator"
OWN_LABELS: Final = (NAME_LABEL, INSTANCE_LABEL, COMPONENT_LABEL, MANAGED_BY_LABEL, GROUP_LABEL)
Component = Literal["broker", "namesrv", "namesrv-trial", "analytics"]

DEFAULT_CLUSTER_DOMAIN: Final = "svc"
"""Suffix after the namespace in DNS names: pods resolve the rest, whatever the cluster domain is."""

NAMESRV_PORT: Final = 9876
NAMESRV_HTTP_PORT: Final = 8081
BROKER_PORT: Final = 10911
FAST_PORT_DISTANCE: Final = 2
"""Difference between a broker's port and its fast port, as expected by RocketMQ's clients."""
BROKER_HTTP_PORT: Final = 8080
GROUP_NODE_PORT_DISTANCE: Final = 10
"""Difference between the NodePorts of successive groups."""

STORE_VOLUME: Final = "store"
TOKEN_KEY: Final = "token"
CERTIFICATE_KEY: Final = "tls.crt"
PRIVATE_KEY_KEY: Final = "tls.key"
CA_KEY: Final = "ca.crt"
BROKER_CONF_KEY: Final = "broker.conf"

OWNED_KEYS: Final = {
    "brokerName": "it is derived from the Broker's name and the group",
    "brokerClusterName": "it is the Broker's name",
    "brokerId": "the brokers of a group agree on their master",
    "brokerRole": "use spec.replicasPerGroup and spec.replication.mode",
    "listenPort": "use spec.external.brokerNodePort for clients outside the cluster",
    "haListenPort": "the brokers of a group use the broker port",
    "brokerIP1": "use spec.external.advertisedAddress for clients outside the cluster",
    "brokerIP2": "the brokers of a group use the broker port",
    "listenHost": "use spec.networkPolicy to control who may connect",
    "httpHost": "use spec.networkPolicy.allowMetricsFrom to control who may connect",
    "httpPort": "the probes and the operator require 8080",
    "httpTls": "use spec.tls.mode",
    "httpToken": "it is in the Secret <broker>-http-token",
    "namesrvAddr": "use spec.nameServers.addresses",
    "storePathRootDir": "use spec.storage",
    "storePathCommitLog": "use spec.storage",
    "storePathConsumeQueue": "use spec.storage",
    "storePathIndex": "use spec.storage",
    "readOnlyCommitLogStorePaths": "use spec.storage",
    "messageDelayLevel": "use spec.delayLevelConfigRef and the levels of a DelayLevelConfig",
    "delayLevelOverflow": "use spec.delayLevelConfigRef and the overflow of a DelayLevelConfig",
    "flushDiskType": "use spec.flush",
    "aclEnable": "use spec.accessControl with Users, or with a Secret that contains the rules",
    "aclConfigPath": "use spec.accessControl with Users, or with a Secret that contains the rules",
    "namesrvAccountFile": "use spec.accessControl: the account is in the Secret <broker>-registration",
    "haMemberName": "it is the name of the pod",
    "haMembers": "use spec.replicasPerGroup",
    "haSecretFile": "it is in the Secret <broker>-replication",
    "minInSyncReplicas": "use spec.replication.minInSync",
    "replicaAcknowledge": "use spec.replication.acknowledge",
    "replicaFailover": "use spec.replication.failover",
    "replicaRegister": "the register is a Lease of the group",
    "replicaRegisterAccountPath": "the register is a Lease of the group",
    "replicaRegisterPasswordFile": "the register is a Lease of the group",
    "replicaRegisterPrefix": "the register is a Lease of the group",
    "replicaRegisterUser": "the register is a Lease of the group",
    "replicaEndpoint": "it follows the Services of the group",
    "replicaEndpointAddress": "it is the address of the pod",
    "brokerPermission": "the operator changes it to redirect writes before a restart",
}
"""broker.conf keys that the operator sets itself, and what a user writes instead."""


def rocketmq_broker_name(broker: str, group: int) -> str:
    """Return RocketMQ's brokerName of a group: demo-0. The brokerClusterName is the Broker's name."""
    return f"{broker}-{group}"


def group_object(broker: str, group: int) -> str:
    """Return the name of the StatefulSet and Service of a group: demo-broker-0."""
    return f"{broker}-broker-{group}"


def group_pod(broker: str, group: int, ordinal: int = 0) -> str:
    """Return a pod of a group, which is also the name of the member: demo-broker-0-0."""
    return f"{group_object(broker, group)}-{ordinal}"


def group_claim(broker: str, group: int, ordinal: int = 0) -> str:
    """Return the volume claim of a pod of a group: store-demo-broker-0-0."""
    return f"{STORE_VOLUME}-{group_pod(broker, group, ordinal)}"


def group_pod_host(broker: str, namespace: str, group: int, ordinal: int, domain: str) -> str:
    """Return the DNS name of a pod of a group; `domain` is the suffix after the namespace."""
    return f"{group_pod(broker, group, ordinal)}.{broker_pods_service(broker)}.{namespace}.{domain}"


def group_register(broker: str, group: int) -> str:
    """Return the Lease in which a group with replicas agrees on its master, and the Role and RoleBinding for it:
    demo-broker-0-register.
    """
    return f"{group_object(broker, group)}-register"


def master_slice(service: str) -> str:
    """Return the EndpointSlice with the address of the master, for a Service: demo-broker-0-master."""
    return f"{service}-master"


def replication_secret(broker: str) -> str:
    """Return the Secret by which the brokers of a group recognise each other: demo-replication."""
    return f"{broker}-replication"


def group_external_service(broker: str, group: int) -> str:
    """Return the NodePort or LoadBalancer Service of a group: demo-broker-0-external."""
    return f"{group_object(broker, group)}-external"


def broker_pods_service(broker: str) -> str:
    """Return the headless Service of all broker pods: demo-broker-pods."""
    return f"{broker}-broker-pods"


def broker_config_map(broker: str) -> str:
    """Return the ConfigMap with broker.conf: demo-broker-conf."""
    return f"{broker}-broker-conf"


def broker_objects(broker: str) -> str:
    """Return the name of the brokers' ServiceAccount, PodDisruptionBudget and NetworkPolicy: demo-broker."""
    return f"{broker}-broker"


def token_secret(broker: str) -> str:
    """Return the Secret with the HTTP token: demo-http-token."""
    return f"{broker}-http-token"


def registration_secret(broker: str) -> str:
    """Return the Secret with the accounts of registrations and the NameServers' rules: demo-registration."""
    return f"{broker}-registration"


def authority_objects(broker: str) -> str:
    """Return the Secret with the Broker's CA, and the ConfigMap with its certificates: demo-ca."""
    return f"{broker}-ca"


def certificate_secret(broker: str) -> str:
    """Return the Secret with the certificate that the operator issues: demo-tls."""
    return f"{broker}-tls"


def users_secret(broker: str) -> str:
    """Return the Secret with the rules that result from Users: demo-users."""
    return f"{broker}-users"


def credentials_secret(user: str) -> str:
    """Return the Secret with the account of a User: orders-service-credentials."""
    return f"{user}-credentials"


def namesrv_objects(broker: str) -> str:
    """Return the name of the NameServers' StatefulSet, client Service, budget and NetworkPolicy: demo-namesrv."""
    return f"{broker}-namesrv"


def namesrv_pods_service(broker: str) -> str:
    """Return the headless Service of the NameServer pods: demo-namesrv-pods."""
    return f"{broker}-namesrv-pods"


def namesrv_pod(broker: str, ordinal: int) -> str:
    """Return a NameServer pod: demo-namesrv-0."""
    return f"{namesrv_objects(broker)}-{ordinal}"


def namesrv_trial(broker: str) -> str:
    """Return the StatefulSet of a trial NameServer: demo-namesrv-trial."""
    return f"{namesrv_objects(broker)}-trial"


def namesrv_trial_pod(broker: str) -> str:
    """Return the pod of a trial NameServer: demo-namesrv-trial-0."""
    return f"{namesrv_trial(broker)}-0"


def namesrv_external_service(broker: str) -> str:
    """Return the NodePort or LoadBalancer Service of the NameServers: demo-namesrv-external."""
    return f"{broker}-namesrv-external"


def namesrv_pod_addresses(broker: str, namespace: str, replicas: int, domain: str) -> tuple[str, ...]:
    """Return the addresses of all NameServer pods, host:port; `domain` is the suffix after the namespace."""
    return tuple(
        f"{namesrv_pod(broker, ordinal)}.{namesrv_pods_service(broker)}.{namespace}.{domain}:{NAMESRV_PORT}"
        for ordinal in range(replicas)
    )


def namesrv_client_address(broker: str, namespace: str) -> str:
    """Return the NameServer address for clients in the cluster: demo-namesrv.default:9876."""
    return f"{namesrv_objects(broker)}.{namespace}:{NAMESRV_PORT}"


def labels(broker: str, component: Component | None = None, group: int | None = None) -> dict[str, str]:
    """Return the labels of an object, including pods and volume claims; without a component, those of the whole
    Broker.
    """
    found = {NAME_LABEL: NAME_VALUE, INSTANCE_LABEL: broker, MANAGED_BY_LABEL: MANAGED_BY_VALUE}
    if component is not None:
        found[COMPONENT_LABEL] = component
    if group is not None:
        found[GROUP_LABEL] = str(group)
    return found


def selector_text(selected: dict[str, str]) -> str:
    """Return labels as a selector string, as in status.selector."""
    return ",".join(f"{key}={value}" for key, value in sorted(selected.items()))
