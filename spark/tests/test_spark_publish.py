"""Publishing of results in a ConfigMap: requests, retries, limits and errors."""

from __future__ import annotations

import base64
import gzip
import json
import random
import socket
from pathlib import Path

import pytest
from delaymq_spark.command.publish import (
    MAX_OBJECT_BYTES,
    ApiServer,
    ConfigMapName,
    PublishError,
    in_cluster,
    pack,
    parse_target,
    publish,
)
from delaymq_spark_testing.api_server import TOKEN, FakeApiServer

pytestmark = pytest.mark.core

TARGET = ConfigMapName("shop", "orders-analytics-0-29500000")
NOT_FOUND = json.dumps({"kind": "Status", "message": 'configmaps "x" not found', "code": 404})


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_request_is_a_merge_patch_of_the_named_config_map_with_the_token_of_the_pod(tmp_path: Path, host: str) -> None:
    with FakeApiServer(tmp_path, host=host) as server:
        publish(server.address, TARGET, '{"messages": 3}', pack('{"a":"ä"}', "<h1>page</h1>"))
    (request,) = server.requests
    assert request.method == "PATCH"
    path = "/api/v1/namespaces/shop/configmaps/orders-analytics-0-29500000?fieldManager=delaymq-spark"
    assert request.path == path
    shown = f"[{host}]" if ":" in host else host
    assert request.headers["Host"] == f"{shown}:{server.address.port}"
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert request.patch.keys() == {"data", "binaryData"}
    assert request.patch["data"] == {"status.json": '{"messages": 3}'}
    assert unpacked(request.patch["binaryData"]["summary.json.gz"]) == '{"a":"ä"}'
    assert unpacked(request.patch["binaryData"]["report.html.gz"]) == "<h1>page</h1>"


def test_failure_removes_the_results_of_an_earlier_run(tmp_path: Path) -> None:
    with FakeApiServer(tmp_path) as server:
        publish(server.address, TARGET, '{"error": "no"}', None)
    assert server.requests[0].patch["binaryData"] == {"summary.json.gz": None, "report.html.gz": None}


def test_late_config_map_and_busy_server_are_retried(tmp_path: Path) -> None:
    answers = [(404, {}, NOT_FOUND), (429, {"Retry-After": "0"}, ""), (503, {}, "no"), (200, {}, "{}")]
    with FakeApiServer(tmp_path, answers) as server:
        publish(server.address, TARGET, "{}", None, pause_seconds=0.01)
    assert len(server.requests) == 4


def test_exhausted_patience_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with FakeApiServer(tmp_path, [(404, {}, NOT_FOUND)]) as server, pytest.raises(PublishError) as told:
        publish(server.address, TARGET, "{}", None, patience_seconds=0.05, pause_seconds=0.01)
    assert str(TARGET) in str(told.value)
    assert 'configmaps "x" not found' in str(told.value)
    assert TOKEN not in str(told.value)


def test_denied_request_is_reported_immediately_with_the_missing_permission(tmp_path: Path) -> None:
    forbidden = json.dumps({"message": "configmaps is forbidden"})
    with FakeApiServer(tmp_path, [(403, {}, forbidden)]) as server, pytest.raises(PublishError, match="verb patch"):
        publish(server.address, TARGET, "{}", None)
    assert len(server.requests) == 1


def test_server_with_an_untrusted_certificate_gets_no_token(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with FakeApiServer(tmp_path) as server, FakeApiServer(other) as stranger:
        with pytest.raises(PublishError, match="not trusted"):
            publish(ApiServer("127.0.0.1", stranger.address.port, tmp_path), TARGET, "{}", None)
        assert stranger.requests == []
        assert server.requests == []


def test_unreachable_server_is_retried_and_then_named(tmp_path: Path) -> None:
    with FakeApiServer(tmp_path), socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()
        with pytest.raises(PublishError, match=f"127.0.0.1:{port} did not respond"):
            publish(
                ApiServer("127.0.0.1", port, tmp_path), TARGET, "{}", None, patience_seconds=0.05, pause_seconds=0.01
            )


@pytest.mark.parametrize("token", ["", "two\nlines", "a b"])
def test_malformed_token_is_not_shown(tmp_path: Path, token: str) -> None:
    with FakeApiServer(tmp_path) as server:
        (tmp_path / "token").write_text(token)
        with pytest.raises(PublishError, match="bearer token is malformed") as told:
            publish(server.address, TARGET, "{}", None)
    assert not token or token not in str(told.value)


def noise(count: int) -> str:
    """Return random text, which gzip compresses only moderately."""
    return random.Random(1).randbytes(count // 2).hex()


def test_results_that_do_not_fit_are_omitted_report_first_with_a_notice() -> None:
    small = pack("{}", "<p>")
    assert small.omitted is None
    no_report = pack("{}", noise(2_000_000))
    assert no_report.binary["report.html.gz"] is None
    assert no_report.binary["summary.json.gz"] is not None
    assert "report" in str(no_report.omitted)
    assert "--out" in str(no_report.omitted)
    nothing = pack(noise(2_000_000), "<p>")
    assert set(nothing.binary.values()) == {None}
    assert "summary alone" in str(nothing.omitted)


def test_largest_request_stays_below_the_limit(tmp_path: Path) -> None:
    count = 1_250_000
    while (packed := pack("{}", noise(count))).omitted is not None:
        count -= 10_000
    with FakeApiServer(tmp_path) as server:
        publish(server.address, TARGET, "x" * (16 << 10), packed)
    assert MAX_OBJECT_BYTES * 0.9 < len(server.requests[0].body) < MAX_OBJECT_BYTES


@pytest.mark.parametrize(
    "text", ["", "shop/x", "secret/shop/x", "configmap/shop", "configmap/Shop/x", "configmap/shop/../../secrets/x",
             "configmap/shop/x?y", "configmap/shop/x\n"],
)  # fmt: skip
def test_target_other_than_a_config_map_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="configmap/NAMESPACE/NAME"):
        parse_target(text)


def test_target_consists_of_namespace_and_name() -> None:
    assert parse_target(f"configmap/{TARGET.namespace}/{TARGET.name}") == TARGET


def test_publishing_outside_a_pod_is_rejected_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="only in a pod"):
        in_cluster({}, tmp_path)
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(PublishError, match="token does not exist"):
        in_cluster(inside, tmp_path)
    (tmp_path / "token").write_text("t")
    assert in_cluster(inside, tmp_path) == ApiServer("fd00::1", 6443, tmp_path)
