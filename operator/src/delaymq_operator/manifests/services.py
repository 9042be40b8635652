"""Services of groups (whose address the broker advertises), pods, NameServers, and for external clients."""

from __future__ import annotations

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker, BrokerSpec, External
from delaymq_operator.manifests.metadata import Manifest, new_object, selector


def listen_port(spec: BrokerSpec, group: int) -> int:
    """Return the port on which a group's broker listens. RocketMQ's clients use one port, so it is the external one."""
    external = spec.external
    if external is None:
        return names.BROKER_PORT
    if external.type == "NodePort":
        return external.group_node_port(group)
    # Groups need distinct ports only if they share one address.
    return names.BROKER_PORT + (group * names.GROUP_NODE_PORT_DISTANCE if external.advertised_address else 0)


def group_service(
    broker: Broker, group: int, cluster_ip: str | None, running_port: int | None = None, *, selects: bool = True
) -> Manifest:
    """Return the Service whose ClusterIP the group's broker advertises; `cluster_ip` requests the previous one.

    `running_port` is the port on which its pod currently listens: clients use it until the pod is restarted.
    `selects`: it selects the only pod; with replicas, it follows the master without a selector.
    """
    found = new_object(broker, "Service", names.group_object(broker.name, group), "broker", group)
    port = listen_port(broker.spec, group)
    found["spec"] = {
        "type": "ClusterIP",
        "publishNotReadyAddresses": True,
        "selector": selector(broker, "broker", group),
        "ports": [*_broker_ports(port), _port("http", names.BROKER_HTTP_PORT), *_former_ports(port, running_port)],
    }
    if cluster_ip is not None:
        found["spec"]["clusterIP"] = cluster_ip
    if not selects:
        del found["spec"]["selector"]
    return found


def group_external_service(broker: Broker, group: int, *, selects: bool = True) -> Manifest | None:
    """Return the Service through which external clients reach the group's broker; its HTTP port is not exposed."""
    external = broker.spec.external
    if external is None:
        return None
    found = new_object(broker, "Service", names.group_external_service(broker.name, group), "broker", group)
    ports = _broker_ports(listen_port(broker.spec, group))
    if external.type == "NodePort":
        for port in ports:
            port["nodePort"] = port["port"]
    found["spec"] = _external_spec(external) | {
        "publishNotReadyAddresses": True,
        "selector": selector(broker, "broker", group),
        "ports": ports,
    }
    if not selects:
        del found["spec"]["selector"]
    _annotate(found, external)
    return found


def broker_pods_service(broker: Broker) -> Manifest:
    """Return the headless Service of all broker pods, for their DNS names and for scraping metrics."""
    found = new_object(broker, "Service", names.broker_pods_service(broker.name), "broker")
    found["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(broker, "broker"),
        "ports": [_port("http", names.BROKER_HTTP_PORT)],
    }
    return found


def name_server_services(broker: Broker) -> list[Manifest]:
    """Return the headless Service of the NameServer pods, and the Service for clients."""
    pods = new_object(broker, "Service", names.namesrv_pods_service(broker.name), "namesrv")
    pods["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(broker, "namesrv"),
        "ports": [_port("namesrv", names.NAMESRV_PORT), _port("http", names.NAMESRV_HTTP_PORT)],
    }
    clients = new_object(broker, "Service", names.namesrv_objects(broker.name), "namesrv")
    clients["spec"] = {
        "type": "ClusterIP",
        "selector": selector(broker, "namesrv"),
        "ports": [_port("namesrv", names.NAMESRV_PORT)],
    }
    return [pods, clients]


def name_server_external_service(broker: Broker) -> Manifest | None:
    """Return the Service through which external clients reach the NameServers."""
    external = broker.spec.external
    if external is None or broker.spec.name_servers.addresses:
        return None
    found = new_object(broker, "Service", names.namesrv_external_service(broker.name), "namesrv")
    port = _port("namesrv", names.NAMESRV_PORT)
    if external.type == "NodePort":
        port["nodePort"] = external.name_server_node_port
    found["spec"] = _external_spec(external) | {"selector": selector(broker, "namesrv"), "ports": [port]}
    _annotate(found, external)
    return found


def _external_spec(external: External) -> Manifest:
    found: Manifest = {"type": external.type}
    if external.type == "LoadBalancer" and external.load_balancer_class is not None:
        found["loadBalancerClass"] = external.load_balancer_class
    return found


def _annotate(service: Manifest, external: External) -> None:
    if external.annotations:
        service["metadata"]["annotations"] = dict(sorted(external.annotations.items()))


def _broker_ports(port: int) -> list[Manifest]:
    return [_port("broker", port), _port("fast", port - names.FAST_PORT_DISTANCE)]


def _former_ports(port: int, running_port: int | None) -> list[Manifest]:
    taken = {each["port"] for each in _broker_ports(port)}
    former = _broker_ports(running_port) if running_port is not None else []
    return [each | {"name": f"{each['name']}-before"} for each in former if each["port"] not in taken]


def _port(name: str, port: int) -> Manifest:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
