"""Rejected resources as users see them, and recovery from a mistake that only the broker can detect."""

import json
from collections.abc import Callable

import pytest
from cluster.errors import ClusterError
from kind import objects
from kind.figures import REPORTS_PATH
from kind.lab import Lab, Operator
from kind.space import Space, condition
from kind.waiting import stays

pytestmark = pytest.mark.timeout(180)

REFUSED = {
    "a key that belongs to the operator": (
        objects.broker(config={"namesrvAddr": "10.0.0.1:9876"}), "use spec.nameServers.addresses"
    ),
    "levels in broker.conf": (objects.broker(config={"messageDelayLevel": "1s"}), "use spec.delayLevelConfigRef"),
    "a volume too small for the log": (objects.broker(storage={"size": "1Mi"}), "two log segments"),
    "too many groups": (objects.broker(size=33), "less than or equal to 32"),
    "NodePort without an address": (
        objects.broker(external={"type": "NodePort"}),
        "requires advertisedAddress",
    ),
    "own and other NameServers": (
        objects.broker(nameServers={"replicas": 2, "addresses": ["a:9876"]}),
        "refers to existing NameServers",
    ),
    "a name that is too long": (objects.broker("b" * 41), "at most 40 characters"),
    "a system topic": (objects.topic("x", topicName="TBW102"), "is a system topic of the broker"),
    "a topic with a dot": (objects.topic("a.b"), "no dots"),
    "an invalid delay": (objects.levels("l", "1s", "soon"), "use a value like 30s"),
    "no delays": (objects.levels("l"), "spec.levels"),
}  # fmt: skip


def test_api_server_rejects_invalid_specs_with_helpful_messages(
    lab: Lab, spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("refused", client=False)
    said = {}
    for what, (manifest, sentence) in REFUSED.items():
        answer = space.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(manifest), check=False)
        text = answer.stdout + answer.stderr
        assert answer.exit_code != 0, f"{what} was accepted"
        assert sentence in text, f"{what}: {text}"
        said[what] = answer.stderr.strip()
    REPORTS_PATH.mkdir(parents=True, exist_ok=True)
    (REPORTS_PATH / "refused-specs.txt").write_text(
        "\n\n".join(f"# {what}\n{text}" for what, text in said.items()) + "\n"
    )
    note(refused=len(said))


def test_volumes_cannot_shrink_and_identities_cannot_change(operator: Operator, spaces: Callable[..., Space]) -> None:
    space = spaces("fixed", client=False)
    # Paused: only the API server's validation is tested.
    space.apply(objects.broker(paused=True), objects.topic("orders"))
    space.wait_broker(lambda broker: broker.get("status"), "the operator has seen it")
    bound = {"status": {"volumes": {"smallest": "128Mi", "storageClassName": "standard"}}}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps(bound))
    space.kubectl("patch", "broker.delaymq.io", "demo", *patch)
    for manifest, sentence in (
        (objects.broker(paused=True, storage={"size": "64Mi"}), "a volume cannot shrink"),
        (
            objects.broker(paused=True, storage={"size": "128Mi", "storageClassName": "other"}),
            "class of bound volumes",
        ),
        (objects.topic("orders", broker="another"), "cannot move to another Broker"),
        (objects.topic("orders", topicName="renamed"), "cannot be renamed"),
    ):
        with pytest.raises(ClusterError, match=sentence):
            space.apply(manifest)


def test_invalid_setting_affects_no_running_pod_and_is_cleared_by_a_valid_one(
    spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    before = space.pod_uids()
    # The API server does not know RocketMQ's keys; the operator parses them as the broker would.
    space.apply_broker(config={"maxMessageSize": "many"})
    state = space.wait_condition("broker.delaymq.io", "demo", "Degraded", reason="InvalidConfig")
    assert "maxMessageSize" in state["message"], state["message"]
    stays("no pod restarts", lambda: space.pod_uids() == before, for_s=3, every_s=0.5)
    space.apply_broker(config={"maxMessageSize": "1048576"})
    broker = space.wait_broker(
        lambda broker: (
            condition(broker, "Degraded").get("status") == "False"
            and condition(broker, "Progressing").get("status") == "False"
        ),
        "the good setting is in force",
    )
    assert condition(broker, "Ready")["status"] == "True"
    settings = space.http("demo-broker-0-0", "/api/v1/broker")["settings"]
    assert settings["maxMessageSize"] == "1048576"
    note(sentence=state["message"])
