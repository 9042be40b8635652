"""A user's first minutes: install the chart, apply a Broker, receive a delayed message; and kubectl's output."""

import time
from collections.abc import Callable

import pytest
from cluster import images
from kind import objects
from kind.evidence import EVIDENCE_PATH, collect
from kind.figures import REPORTS_PATH
from kind.lab import Lab, Operator
from kind.space import Space

BROKER = "broker.delaymq.io"
SHOWN_PATH = REPORTS_PATH / "kubectl"
LEVEL_1S = objects.LEVEL_OF["1s"]

pytestmark = pytest.mark.timeout(300)


def test_chart_and_one_broker_deliver_the_first_delayed_message(
    operator: Operator, spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("first")
    space.wait_client()
    began = time.monotonic()
    space.apply(objects.broker(), objects.topic("orders", queues=4))
    space.wait_broker_ready()
    ready_s = time.monotonic() - began
    space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
    name_servers = space.name_servers()
    consumer = space.client.consume(topic="orders", group="first", name_servers=name_servers, count=5, at_most_s=60)
    producer = space.client.produce(
        topic="orders", name_servers=name_servers, run="first", count=5, rate=10, levels=LEVEL_1S
    )
    assert producer.result() == {"acknowledged": 5, "failed": 0}
    assert consumer.result()["messages"] == 5
    arrivals = consumer.lines("got")
    early = [line for line in arrivals if line[6] < line[4]]
    assert not early, early
    verdict = space.judge("orders", producer.sends())
    verdict.assert_clean()
    note(apply_to_ready_s=ready_s, install_to_ready_s=operator.installed_in_s, **verdict.figures())
    assert "PGO and LTO" in space.kubectl("logs", "demo-broker-0-0").stdout, "the image's interpreter is not optimised"
    version = space.kubectl("exec", "demo-broker-0-0", "--", "delaymq", "--version").stdout
    # Reported when the images were built: without the crates, there are no kernels.
    assert "kernels: delaymq-kernels " in version or images.kernels() == "0", version
    # Pending messages, for the documents; a change of the spec makes the operator report them immediately.
    space.client.produce(
        topic="orders", name_servers=name_servers, run="later", count=120, rate=200, levels=objects.LEVEL_OF["30m"]
    ).result()
    space.patch(BROKER, "demo", {"spec": {"config": {"deleteWhen": "03"}}})
    space.wait_broker(lambda broker: broker["status"].get("pending") == 120, "the status tells of 120 pending messages")
    _keep_what_kubectl_shows(space)


def _keep_what_kubectl_shows(space: Space) -> None:
    """Save real output of a working Broker for the documents."""
    SHOWN_PATH.mkdir(parents=True, exist_ok=True)
    for file, arguments in {
        "get-brokers.txt": ["get", "brokers"],
        "get-brokers-wide.txt": ["get", "brokers", "-o", "wide"],
        "describe-broker.txt": ["describe", "broker", "demo"],
        "get-broker.yaml": ["get", "broker", "demo", "-o", "yaml"],
        "get-topics.txt": ["get", "topics", "-o", "wide"],
        "describe-topic.txt": ["describe", "topic", "orders"],
        "get-delaymq.txt": ["get", "delaymq"],
        "get-all.txt": ["get", "statefulsets,pods,services,configmaps,pvc,pdb,secrets,serviceaccounts"],
        "explain-broker-spec.txt": ["explain", "broker.spec", "--api-version=delaymq.io/v1alpha1"],
        "explain-broker-status-groups.txt": ["explain", "broker.status.groups", "--api-version=delaymq.io/v1alpha1"],
        "events.txt": ["get", "events", "--sort-by=.lastTimestamp"],
    }.items():
        text = space.kubectl(*arguments).stdout
        assert text.strip(), f"kubectl {' '.join(arguments)} shows nothing"
        (SHOWN_PATH / file).write_text(text)
    described = (SHOWN_PATH / "describe-broker.txt").read_text()
    assert "AllGroupsReady" in described
    assert "Scheduler" in described


def test_brokers_with_one_name_in_two_namespaces_are_independent(
    spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    both = [spare(), spare()]
    producers = [
        space.client.produce(
            topic="orders", name_servers=space.name_servers(), run=space.name, count=50, rate=100, levels=LEVEL_1S
        )
        for space in both
    ]
    for space, producer in zip(both, producers, strict=True):
        assert producer.result() == {"acknowledged": 50, "failed": 0}
        # Messages of the other Broker would be counted as `unknown`.
        verdict = space.judge_when_done("orders", producer.sends())
        verdict.assert_clean()
        assert verdict.acknowledged == 50
        brokers = space.client.ask("brokers", name_servers=space.name_servers())
        assert list(brokers) == ["demo-0"], brokers
    stores = [space.broker()["status"]["groups"][0]["storeId"] for space in both]
    assert stores[0] != stores[1]
    note(messages_each=50, lost=0, mixed=0)


def test_evidence_of_a_failure_is_readable(lab: Lab, operator: Operator, spaces: Callable[..., Space]) -> None:
    space = spaces("evidence")
    folder = collect(lab.cluster, "evidence of nothing", [space.name], [operator.namespace])
    assert folder.parent == EVIDENCE_PATH
    logs = [path for path in folder.iterdir() if path.name.startswith(operator.namespace) and path.suffix == ".log"]
    assert logs, "the operator's log is missing"
    assert any(path.read_text() for path in logs)
