"""Certificates from the operator: verified by RocketMQ's client and ours, required, and renewed under load."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.errors import ClusterError
from kind import objects
from kind.certificates import CA_PATH, TLS, distribute_ca
from kind.clients import JAVA_POD, JavaClient
from kind.lab import Lab
from kind.space import Space
from kind.verdict import Sent
from kind.waiting import NotYetError, wait_until

pytestmark = pytest.mark.timeout(420)

BROKER, TOPIC = "broker.delaymq.io", "topic.delaymq.io"
JAVA_TLS = (
    "-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true",
    f"-Dtls.client.trustCertPath={CA_PATH}",
)  # fmt: skip
PYTHON_RATE, JAVA_RATE = 50, 20
JAVA_TIMEOUT_MS = 15_000
"""Time for a send with its retries. While other suites run, the client may get no processor for its default of 3 s."""
ROLL_TIMEOUT_S = 240.0
PROJECTED_S = 150.0
"""Kubelet updates a changed Secret when it next synchronises the pod, about once a minute."""


def test_clients_notice_neither_the_change_to_enforcing_nor_a_renewed_certificate(
    lab: Lab, spaces: Callable[..., Space], note: Callable[..., None], tmp_path: Path
) -> None:
    space = spaces("tls")
    space.apply(objects.client_pod(JAVA_POD, lab.java_client_image(), requests={"cpu": "50m", "memory": "192Mi"}))
    space.apply(objects.topic("python", queues=4), objects.topic("java", queues=4))
    name_servers = space.broker_ready(size=2, tls={"generate": {}})
    for topic in ("python", "java"):
        space.wait_condition(TOPIC, topic, "Ready", reason="InEveryGroup")
    space.wait_pod_ready(JAVA_POD)
    distribute_ca(space, space.client.name, JAVA_POD)
    plain = space.client.produce(topic="python", name_servers=name_servers, run="plain", count=5, rate=20)
    assert plain.result() == {"acknowledged": 5, "failed": 0}
    with JavaClient(space, tmp_path, options=JAVA_TLS) as java:
        python = space.client.produce(
            topic="python", name_servers=name_servers, run="tls", rate=PYTHON_RATE, levels="1,2", at_most_s=400, **TLS
        )
        sending = java.send(
            namesrv=name_servers, topic="java", threads=2, rate=JAVA_RATE, seconds=400, levels="1", retries=2,
            timeout_ms=JAVA_TIMEOUT_MS,
        )  # fmt: skip
        python.wait_lines("sent", PYTHON_RATE)
        began = time.monotonic()
        space.patch(BROKER, "demo", {"spec": {"tls": {"mode": "enforcing"}}})
        wait_until("all pods require TLS", lambda: _all_enforce(space), timeout_s=ROLL_TIMEOUT_S, every_s=1)
        space.wait_broker_ready()
        enforced_s = time.monotonic() - began
        pods, before = space.pod_uids(), _shown_certificates(space)
        # Each server shows another certificate while clients send, and open new connections.
        began = time.monotonic()
        space.patch(BROKER, "demo", {"spec": {"tls": {"generate": {"validityDays": 91}}}})
        wait_until(
            "the new certificate is shown",
            lambda: not before & _shown_certificates(space),
            timeout_s=PROJECTED_S,
            every_s=2,
        )
        renewed_s = time.monotonic() - began
        sent = _send(space, name_servers)
        python.wait_lines("sent", len(python.lines("sent")) + PYTHON_RATE)
        counts = python.stop()
        java.stop_sending()
        of_java = sending.result(60)
    assert counts["failed"] == 0, python.lines("failed")[:5]
    assert of_java["failed"] == 0, of_java["errors"]
    assert of_java["acknowledged"] > 0
    assert space.pod_uids() == pods
    # Plaintext is refused on every port, and the operator reaches brokers and NameServers.
    with pytest.raises(AssertionError, match="accepts only TLS"):
        space.client.ask("stats", "python", name_servers=name_servers)
    assert not _serves_plain_http(space)
    space.apply(objects.topic("later"))
    space.wait_condition(TOPIC, "later", "Ready", reason="InEveryGroup")
    space.patch(BROKER, "demo", {"spec": {"config": {"fileReservedTime": "50"}}})
    wait_until("the operator changes settings", lambda: _reserved(space) == "50", timeout_s=60)
    verdict = space.judge_when_done("python", plain.sends() + python.sends() + sent, groups=2)
    verdict.assert_clean()
    verdict.assert_no_send_failed()
    note(enforced_s=enforced_s, renewed_s=renewed_s, java=of_java["acknowledged"], **verdict.figures())


def _send(space: Space, name_servers: str) -> list[Sent]:
    """Return the sends of a new client, whose connections use the new certificate."""
    producer = space.client.produce(topic="python", name_servers=name_servers, run="new", count=10, rate=50, **TLS)
    assert producer.result() == {"acknowledged": 10, "failed": 0}
    return producer.sends()


def _all_enforce(space: Space) -> bool:
    pods = space.list("pods", "app.kubernetes.io/name=delaymq,app.kubernetes.io/component in (broker, namesrv)")
    schemes = [pod["metadata"].get("annotations", {}).get("delaymq.io/http-scheme") for pod in pods]
    return len(schemes) == 3 and set(schemes) == {"https"}


def _shown_certificates(space: Space) -> set[str]:
    """Return the certificates that the servers show."""
    program = "import ssl,sys;print(ssl.get_server_certificate((sys.argv[1],int(sys.argv[2])),timeout=10))"
    found = set()
    for pod, port in (("demo-broker-0-0", 10911), ("demo-broker-1-0", 10911), ("demo-namesrv-0", 9876)):
        try:
            shown = space.kubectl("exec", pod, "--", "python3.11", "-c", program, "127.0.0.1", str(port)).stdout
        except ClusterError as error:
            raise NotYetError(str(error)) from None
        found.add(ssl.PEM_cert_to_DER_cert(str(shown).strip()).hex())
    return found


def _serves_plain_http(space: Space) -> bool:
    program = (
        "import http.client as h;c=h.HTTPConnection('127.0.0.1',8080,timeout=10);c.request('GET','/livez');"
        "print(c.getresponse().status)"
    )
    try:
        found = space.kubectl("exec", "demo-broker-0-0", "--", "python3.11", "-c", program).stdout
    except ClusterError:
        return False
    return str(found).strip() == "200"


def _reserved(space: Space) -> str:
    return str(space.http("demo-broker-0-0", "/api/v1/broker")["settings"].get("fileReservedTime", ""))
