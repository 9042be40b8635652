"""Cost of the operator: memory and API requests with 1 and with 50 idle Brokers, and the time to settle."""

import re
import time
from collections.abc import Callable

import pytest
from kind import objects
from kind.lab import Lab, Operator
from kind.space import Space, condition
from kind.waiting import NotYetError, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

MANY = 50
WATCHED_S = 60.0
SETTLING_S = 15.0


def test_idle_broker_costs_almost_nothing(
    lab: Lab, operator: Operator, spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("idle", client=False)
    began = time.monotonic()
    space.apply_broker()
    space.wait_broker_ready()
    note(apply_to_ready_s=time.monotonic() - began)
    note(**_at_rest(lab, operator, "with_1"))
    # As many more as two cores can run: small, and with the NameServer of the first.
    name_servers = {"addresses": [space.name_servers()]}
    began = time.monotonic()
    names = [f"many-{number}" for number in range(MANY - 1)]
    tiny = {"cpu": "1m", "memory": "32Mi"}
    space.apply(*(objects.broker(name, nameServers=name_servers, resources={"requests": tiny}) for name in names))

    def all_ready() -> bool:
        ready = [
            broker["metadata"]["name"]
            for broker in space.list("brokers.delaymq.io")
            if condition(broker, "Ready").get("status") == "True"
        ]
        if len(ready) == MANY:
            return True
        raise NotYetError(f"{len(ready)} of {MANY} are ready")

    wait_until("all Brokers are ready", all_ready, timeout_s=900, every_s=3)
    note(brokers=MANY, all_ready_s=time.monotonic() - began)
    note(**_at_rest(lab, operator, f"with_{MANY}"))


def _at_rest(lab: Lab, operator: Operator, name: str) -> dict[str, object]:
    """Return memory and requests of a minute in which nothing changes."""
    time.sleep(SETTLING_S)
    before, served_before = operator.metrics(), _served(lab)
    time.sleep(WATCHED_S)
    after, served_after = operator.metrics(), _served(lab)
    return {
        f"{name}_memory_mib": _value(after, "process_resident_memory_bytes") / (1 << 20),
        f"{name}_api_requests_per_min": _requests(after) - _requests(before),
        f"{name}_api_server_saw_at_most_per_min": served_after - served_before,
        f"{name}_cpu_percent": 100 * (_cpu_s(after) - _cpu_s(before)) / WATCHED_S,
        f"{name}_loop_lag_max_ms": 1000 * _value(after, "delaymq_operator_event_loop_lag_seconds"),
    }


def _served(lab: Lab) -> float:
    """Return requests of all service accounts to the API server, including the operator's watches and other add-ons."""
    text = str(lab.cluster.kubectl("get", "--raw", "/metrics"))
    lines = re.findall(r"^apiserver_flowcontrol_dispatched_requests_total\{(.*)\} ([\d.e+-]+)$", text, re.MULTILINE)
    found = [float(value) for labels, value in lines if 'flow_schema="service-accounts"' in labels]
    assert found, "the API server's metrics contain no request counts"
    return sum(found)


def _cpu_s(text: str) -> float:
    return _value(text, "process_cpu_seconds_total")


def _value(text: str, metric: str) -> float:
    found = re.search(rf"^{metric} ([\d.e+-]+)$", text, re.MULTILINE)
    assert found, f"no {metric} in /metrics"
    return float(found[1])


def _requests(text: str) -> float:
    counts = re.findall(r"^delaymq_operator_kube_requests_total(?:\{[^}]*\})? ([\d.e+-]+)$", text, re.MULTILINE)
    assert counts, "no count of API requests in /metrics"
    return sum(map(float, counts))
