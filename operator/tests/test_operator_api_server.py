"""The real API server of the operator's tests: behaviour, controllers, clean-up."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq_operator_testing.api_server import ApiError, ApiServer, MissingProgramsError, Programs, find_programs
from harness.errors import HarnessError
from harness.processes import ServerProcess

BOUND_S = 30.0


def test_missing_programs_are_reported_with_build_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path))
    with pytest.raises(MissingProgramsError, match="make cluster"):
        find_programs()


def test_kubectl_and_requests_return_same_objects(api_server: ApiServer, namespace: str) -> None:
    api_server.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "a"}, "data": {"k": "v"}})
    shown = json.loads(api_server.kubectl("-n", namespace, "get", "configmap", "a", "-o", "json"))
    assert shown["data"] == {"k": "v"}
    with pytest.raises(HarnessError, match="NotFound"):
        api_server.kubectl("-n", namespace, "get", "configmap", "b")


def test_schema_violation_is_rejected(api_server: ApiServer, namespace: str) -> None:
    with pytest.raises(ApiError) as refused:
        api_server.create(f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": "No_Name"}, "spec": {}})
    assert refused.value.status == 422


def test_controllers_create_and_delete_pods_of_stateful_set(
    api_server_with_controllers: ApiServer, controlled_namespace: str
) -> None:
    server, core = api_server_with_controllers, f"/api/v1/namespaces/{controlled_namespace}"
    sets = f"/apis/apps/v1/namespaces/{controlled_namespace}/statefulsets"
    server.create(sets, _stateful_set())
    _until(server, lambda: len(server.request("GET", f"{core}/pods")["items"]) == 1)
    server.request("DELETE", f"{sets}/s")
    _until(server, lambda: not server.request("GET", f"{core}/pods")["items"])


def test_processes_and_files_are_removed_at_exit(kubernetes_programs: Programs) -> None:
    with ApiServer(kubernetes_programs) as server:
        folder = server.folder
        processes = [process.pid for process in _processes(server)]
        assert len(processes) == 2
    assert not folder.exists()
    assert not [pid for pid in processes if os.path.exists(f"/proc/{pid}")]


def test_failing_program_is_reported_with_its_log_and_cleaned_up(
    kubernetes_programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ApiServer._server_arguments
    monkeypatch.setattr(ApiServer, "_server_arguments", lambda *a: [*arguments(*a), "--no-such-flag"])
    server = ApiServer(kubernetes_programs)
    with pytest.raises(HarnessError, match="no-such-flag"), server:
        pass
    assert not server.folder.exists()
    assert not _processes(server)


def _processes(server: ApiServer) -> list[ServerProcess]:
    return server._processes


def _until(server: ApiServer, is_so: Callable[[], bool]) -> None:
    _processes(server)[-1].wait_until(is_so, timeout_s=BOUND_S)


def _stateful_set() -> dict[str, object]:
    labels = {"app": "s"}
    container = {"name": "c", "image": "none"}
    return {
        "metadata": {"name": "s"},
        "spec": {
            "serviceName": "s",
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
