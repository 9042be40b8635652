import fcntl
import time
from pathlib import Path

import pytest
from cluster import Cluster, ClusterError, commands, machine
from cluster.daemon import Daemon
from cluster.expander import growth
from cluster.kind import kubeconfig_path


@pytest.fixture(autouse=True)
def run_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path))
    path = tmp_path / "cluster" / "run"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def unmade(run_path: Path) -> Cluster:
    """Return an object for a cluster that does not exist: only rejections can be tested with it."""
    with (run_path / "lock").open("w") as lock:
        return Cluster("one", Daemon({"PATH": "/nonexistent"}, own=False), [], lambda _: None, lock)


@pytest.mark.parametrize("name", ["", "Upper", "-a", "a-", "a b", "../x", "a" * 33, "a.b"])
def test_invalid_cluster_name_is_rejected(name: str) -> None:
    with pytest.raises(ClusterError, match="name"):
        kubeconfig_path(name)


def test_each_cluster_has_name_prefix_and_own_kubeconfig_outside_home_folder(unmade: Cluster) -> None:
    assert unmade.kind_name == "delaymq-e2e-one"
    command = unmade.kubectl_command()
    assert command[command.index("--kubeconfig") + 1] == str(unmade.kubeconfig)
    assert unmade.kubeconfig.name == "delaymq-e2e-one.kubeconfig"
    assert command[command.index("--context") + 1] == "kind-delaymq-e2e-one"
    assert unmade.environment()["KUBECONFIG"] == str(unmade.kubeconfig)


@pytest.mark.parametrize(
    "words",
    [
        ("get", "pods", "--context", "production"),
        ("get", "pods", "--context=production"),
        ("--kubeconfig=/home/user/.kube/config", "get", "pods"),
        ("get", "pods", "-s", "https://elsewhere"),
        ("get", "pods", "--server=https://elsewhere"),
    ],
)
def test_kubectl_cannot_be_directed_to_another_cluster(unmade: Cluster, words: tuple[str, ...]) -> None:
    with pytest.raises(ClusterError, match="delaymq-e2e-one only"):
        unmade.kubectl(*words)


def test_helm_cannot_be_directed_to_another_cluster(unmade: Cluster) -> None:
    with pytest.raises(ClusterError, match="delaymq-e2e-one only"):
        unmade.helm("list", "--kube-context", "production")


def test_options_of_a_program_in_a_pod_are_passed_through(unmade: Cluster) -> None:
    with pytest.raises(ClusterError, match="cannot be found"):  # kubectl is missing, but was about to be started
        unmade.kubectl("exec", "pod", "--", "program", "--server=x", "-s", "y")


@pytest.mark.parametrize("node", ["kind-control-plane", "delaymq-e2e-other-worker", "delaymq-e2e-one", ""])
def test_containers_other_than_nodes_of_this_cluster_are_rejected(unmade: Cluster, node: str) -> None:
    for use in (unmade.node_stop, unmade.node_start, lambda name: unmade.node_exec(name, "true")):
        with pytest.raises(ClusterError, match="is not a node of"):
            use(node)


@pytest.mark.parametrize("workers", [-1, 9])
def test_number_of_workers_out_of_range_is_rejected(workers: int) -> None:
    with pytest.raises(ClusterError, match="workers must be 0 to 8"):
        Cluster.create("one", workers=workers)


def test_cluster_in_use_by_another_run_is_left_alone(run_path: Path) -> None:
    with kubeconfig_path("one").with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match="another run uses the cluster delaymq-e2e-one"):
            Cluster.create("one")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ns|data-0|expandable|pv-1|2Gi|1Gi", ("ns", "data-0", "pv-1", "2Gi")),
        ("ns|data-0|expandable|pv-1|1Gi|1Gi", None),
        ("ns|data-0|standard|pv-1|2Gi|1Gi", None),
        ("ns|data-0|expandable|||", None),
        ("ns|data-0|expandable||2Gi|", None),
        ("ns|data-0||pv-1|2Gi|1Gi", None),
        ("", None),
        ("error: the server is gone", None),
    ],
)
def test_only_bound_claims_of_the_expandable_class_that_request_more_grow(
    line: str, expected: tuple[str, str, str, str] | None
) -> None:
    assert growth(line + "\n") == expected


def test_program_that_exceeds_its_timeout_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = f"sleep 600 & echo $! > {child}; wait"
    with pytest.raises(ClusterError, match="timed out after 1 s"):
        commands.run(["sh", "-c", script], timeout_s=1)
    deadline = time.monotonic() + 10
    while machine.running(int(child.read_text())):
        assert time.monotonic() < deadline, "the child is still running"
        time.sleep(0.01)


def test_failure_includes_exit_code_and_output_of_program() -> None:
    with pytest.raises(ClusterError, match=r"(?s)exit code 3 of: sh -c .*the disk is full"):
        commands.run(["sh", "-c", "echo the disk is full >&2; exit 3"], timeout_s=10)
