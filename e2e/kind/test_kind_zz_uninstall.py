"""Installation and removal of operators, including one limited to its own namespace. Runs last, since other tests
need theirs.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from kind import objects
from kind.lab import Lab, Operator
from kind.space import Space
from kind.waiting import stays

pytestmark = pytest.mark.timeout(300)

BROKER = "broker.delaymq.io"
OWN_NAMESPACE = "delaymq-own"


@pytest.fixture
def without_operator(lab: Lab, operator: Operator) -> Iterator[Operator]:
    """Remove the cluster-wide operator, and restore it afterwards."""
    operator.uninstall()
    yield operator
    operator.install()


def test_uninstalled_chart_leaves_brokers_and_messages(
    lab: Lab, operator: Operator, spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    name_servers = space.name_servers()
    before = space.pod_uids()
    producer = space.client.produce(
        topic="orders", name_servers=name_servers, run="left", count=600, rate=100, levels=objects.LEVEL_OF["5s"]
    )
    producer.wait_lines("sent", 100)
    operator.uninstall()
    try:
        assert not lab.cluster.get("pods", namespace=operator.namespace)["items"] or not operator_pods_run(operator)
        assert space.broker()["metadata"]["name"] == "demo"
        producer.result()
        verdict = space.judge_when_done("orders", producer.sends())
        verdict.assert_clean()
        verdict.assert_no_send_failed()
        # A broker that dies now is restarted by Kubernetes alone.
        uid = space.pod("demo-broker-0-0")["metadata"]["uid"]
        space.kubectl("delete", "pod", "demo-broker-0-0", "--wait=false")
        space.wait_pod_ready("demo-broker-0-0", other_than_uid=uid)
        before = space.pod_uids()
    finally:
        operator.install()
    space.wait_broker_ready()
    stays("the new operator restarts nothing", lambda: space.pod_uids() == before, for_s=5, every_s=0.5)
    note(restarts=0, **verdict.figures())


def operator_pods_run(operator: Operator) -> bool:
    pods = operator.cluster.get("pods", namespace=operator.namespace)["items"]
    return any("deletionTimestamp" not in pod["metadata"] for pod in pods)


def test_operator_limited_to_one_namespace_needs_only_roles_and_ignores_other_namespaces(
    lab: Lab, without_operator: Operator, note: Callable[..., None]
) -> None:
    own = lab.space("own", client=False)
    other = lab.space("other", client=False)
    scoped = Operator(lab, release="scoped", namespace=own.name)
    try:
        began = time.monotonic()
        scoped.install("--skip-crds", watchNamespaces=[own.name])
        own.apply(objects.broker(), objects.topic("orders"))
        other.apply(objects.broker())
        own.wait_broker_ready()
        own.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
        ready_s = time.monotonic() - began
        assert not lab.cluster.get("clusterroles", selector="app.kubernetes.io/instance=scoped")["items"]
        assert not lab.cluster.get("clusterrolebindings", selector="app.kubernetes.io/instance=scoped")["items"]
        assert own.list("roles", "app.kubernetes.io/instance=scoped")
        stays("another namespace is left alone", lambda: not other.list("statefulsets"), for_s=3)
        log = own.kubectl("logs", scoped.pods()[0]["metadata"]["name"], "--tail=2000").stdout
        assert "orbidden" not in log, [line for line in log.splitlines() if "orbidden" in line][:3]
        note(install_to_ready_s=ready_s, cluster_roles=0)
        own.kubectl("delete", "topic.delaymq.io", "orders", "--timeout=30s")
    finally:
        scoped.uninstall()
        lab.remove(own)
        lab.remove(other)
