"""Commands of docs/operations/analytics.md, run against a real API server."""

from __future__ import annotations

import base64
import gzip
import re
import shlex

import pytest
import yaml
from delaymq_operator.api import names, parse_broker
from delaymq_operator.api.analytics_names import (
    RESULT_REPORT_KEY,
    RESULT_SUMMARY_KEY,
    analytics_application,
    demanded_token,
)
from delaymq_operator_testing.api_server import ApiServer
from delaymq_operator_testing.crd_files import EXAMPLES_PATH, REPOSITORY_PATH
from delaymq_operator_testing.crd_requests import collection

PAGE = (REPOSITORY_PATH / "docs" / "operations" / "analytics.md").read_text()
EXAMPLE = EXAMPLES_PATH / "broker-with-analytics.yaml"


def commands(beginning: str) -> list[list[str]]:
    """Return the arguments of the page's kubectl commands with this beginning, up to the first pipe."""
    lines = [line for line in PAGE.splitlines() if line.startswith(f"kubectl -n shop {beginning}")]
    assert lines
    return [shlex.split(line.partition(" | ")[0], comments=True)[3:] for line in lines]


@pytest.mark.parametrize("key", [RESULT_REPORT_KEY, RESULT_SUMMARY_KEY])
def test_documented_command_extracts_result_from_config_map(api_server: ApiServer, namespace: str, key: str) -> None:
    escaped = key.replace(".", r"\.")
    [command] = [found for found in commands("get configmap") if escaped in found[-1]]
    data = {key: base64.b64encode(gzip.compress(b"what was found")).decode()}
    api_server.create(
        f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": command[2]}, "binaryData": data}
    )
    shown = api_server.kubectl("-n", namespace, *command)
    assert gzip.decompress(base64.b64decode(shown)) == b"what was found"


def test_documented_config_maps_are_named_after_runs_of_example() -> None:
    example = yaml.safe_load(EXAMPLE.read_text())["metadata"]["name"]
    token = re.compile(r"\d{8}")
    for command in commands("get configmap"):
        [found] = token.findall(command[2])
        assert command[2] == analytics_application(example, 0, found)
        assert len(found) == len(demanded_token("x"))


def test_documented_annotation_starts_run_of_example(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("-n", namespace, "create", "-f", str(EXAMPLE))
    [command] = commands("annotate dmqb")
    assert f"{names.ANALYZE_ANNOTATION}=$(date)" in command
    api_server.kubectl("-n", namespace, *[word.replace("$(date)", "today") for word in command])
    broker = parse_broker(api_server.request("GET", f"{collection(namespace, 'Broker')}/orders"))
    assert broker.analyze_annotation == "today"
    assert broker.spec.analytics is not None
