import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from cluster.api import ApiReader, NotFoundError, resources_by_name
from cluster.errors import ClusterError

CONTEXT = "kind-delaymq-e2e-one"


def group(name: str, version: str, *resources: tuple[str, str, str, list[str]], namespaced: bool = True) -> Any:
    scope = "Namespaced" if namespaced else "Cluster"
    found = [
        {
            "resource": plural,
            "singularResource": one,
            "shortNames": short,
            "scope": scope,
            "responseKind": {"kind": kind},
        }
        for plural, one, kind, short in resources
    ]
    return {"metadata": {"name": name} if name else {}, "versions": [{"version": version, "resources": found}]}


CORE = group("", "v1", ("pods", "pod", "Pod", ["po"]), ("events", "event", "Event", ["ev"]))
NODES = group("", "v1", ("nodes", "node", "Node", ["no"]), namespaced=False)
APPS = group("apps", "v1", ("statefulsets", "statefulset", "StatefulSet", ["sts"]))
EVENTS = group("events.k8s.io", "v1", ("events", "event", "Event", ["ev"]))
OURS = group("delaymq.io", "v1alpha1", ("brokers", "broker", "Broker", []))


@pytest.mark.parametrize("name", ["statefulsets", "statefulset", "sts", "statefulsets.apps", "statefulset.apps"])
def test_resource_is_found_by_each_name_that_kubectl_accepts(name: str) -> None:
    found = resources_by_name([CORE, APPS])[name]
    assert found.path_of("demo", "shop") == "/apis/apps/v1/namespaces/shop/statefulsets/demo"
    assert (found.version, found.kind) == ("apps/v1", "StatefulSet")


def test_first_group_wins_if_two_groups_have_a_resource_of_the_same_name() -> None:
    found = resources_by_name([CORE, EVENTS])
    assert found["events"].path_of(None, "shop") == "/api/v1/namespaces/shop/events"
    assert found["events.events.k8s.io"].path_of(None, "shop") == "/apis/events.k8s.io/v1/namespaces/shop/events"


def test_path_without_namespace_covers_all_namespaces_and_cluster_scoped_resources() -> None:
    found = resources_by_name([CORE, NODES])
    assert found["pods"].path_of(None, None) == "/api/v1/pods"
    assert found["node"].path_of("worker", "shop") == "/api/v1/nodes/worker"


class FakeApiServer(BaseHTTPRequestHandler):
    """Responses by path, and the requests received."""

    groups: ClassVar[list[Any]] = []
    answers: ClassVar[dict[str, Any]] = {}
    asked: ClassVar[list[tuple[str, dict[str, list[str]]]]] = []

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.asked.append((url.path, parse_qs(url.query)))
        lists = {"/api": {"items": [CORE]}, "/apis": {"items": self.groups}}
        found = (lists | self.answers).get(url.path)
        body = json.dumps(found or {"message": f"{url.path} not found"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[type[FakeApiServer], ApiReader]]:
    handler = type("Handler", (FakeApiServer,), {"groups": [], "answers": {}, "asked": []})
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{listening.server_port}"}}],
        "users": [{"name": "one", "user": {}}],
        # The current context is another one, which must not be used.
        "contexts": [
            {"name": CONTEXT, "context": {"cluster": "one", "user": "one"}},
            {"name": "production", "context": {"cluster": "nowhere", "user": "one"}},
        ],
        "current-context": "production",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(configuration))
    try:
        yield handler, ApiReader(path, CONTEXT)
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def test_list_items_get_kind_and_api_version_and_selector_is_passed_on(
    server: tuple[type[FakeApiServer], ApiReader],
) -> None:
    handler, reader = server
    handler.answers["/api/v1/namespaces/shop/pods"] = {"items": [{"metadata": {"name": "one"}}]}
    (item,) = reader.get("po", None, "shop", "app=demo,tier!=x")["items"]
    assert (item["apiVersion"], item["kind"]) == ("v1", "Pod")
    assert handler.asked[-1] == ("/api/v1/namespaces/shop/pods", {"labelSelector": ["app=demo,tier!=x"]})


def test_unknown_kind_triggers_new_discovery_and_known_kinds_are_cached(
    server: tuple[type[FakeApiServer], ApiReader],
) -> None:
    handler, reader = server
    with pytest.raises(ClusterError, match="does not have a resource type 'broker'"):
        reader.get("broker", "demo", "shop", None)
    handler.groups.append(OURS)
    path = "/apis/delaymq.io/v1alpha1/namespaces/shop/brokers/demo"
    handler.answers[path] = {"kind": "Broker"}
    handler.asked.clear()
    for _ in range(2):
        assert reader.get("broker.delaymq.io", "demo", "shop", None) == {"kind": "Broker"}
    assert [asked for asked, _ in handler.asked] == ["/api", "/apis", path, path]


def test_missing_object_raises_not_found_error_with_message_of_server(
    server: tuple[type[FakeApiServer], ApiReader],
) -> None:
    _, reader = server
    with pytest.raises(NotFoundError, match=r"404 .*pods/gone not found"):
        reader.get("pod", "gone", "shop", None)


def test_unreachable_server_raises_cluster_error(tmp_path: Path) -> None:
    configuration = {
        "clusters": [{"name": "one", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "one", "user": {}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": "one", "user": "one"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(configuration))
    with pytest.raises(ClusterError, match="GET /api"):
        ApiReader(path, CONTEXT).get("pods", None, None, None)
