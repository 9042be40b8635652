"""Reasons for failed applications, extracted from the Spark operator's messages."""

from __future__ import annotations

import pytest
from delaymq_operator.reconcile.broker.analytics.application_state import MAX_MESSAGE_CHARS, application_state

SUBMITTED = """failed to submit spark application: failed to run spark-submit: WARNING: Using incubator modules
26/11/21 10:40:02 INFO SparkKubernetesClientFactory: Auto-configuring K8S client using current context
"""
REFUSED = (
    'Exception in thread "main" io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at: '
    'https://10.96.0.1:443/api/v1/namespaces/shop/pods. Message: pods "demo-driver" is forbidden: error looking up '
    'service account shop/nobody: serviceaccount "nobody" not found. Received status: Status(apiVersion=v1, code=403, '
    "details=StatusDetails(causes=[], name=demo-driver)).\n"
    "\tat io.fabric8.kubernetes.client.Something.run(Some.java:1)\n"
)
WITHOUT_ANSWER = (
    'Exception in thread "main" org.apache.spark.SparkException: Please specify a file\n\tat org.apache.X.y(X.z:1)\n'
)


def failed(error: str) -> str | None:
    status = {"applicationState": {"state": "SUBMISSION_FAILED", "errorMessage": error}}
    found = application_state({"status": status}, None, 0, 0)
    assert found.state == "Failed"
    return found.message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            SUBMITTED + REFUSED,
            'pods "demo-driver" is forbidden: error looking up service account shop/nobody: serviceaccount "nobody" '
            "not found.",
        ),
        (SUBMITTED + WITHOUT_ANSWER, "org.apache.spark.SparkException: Please specify a file"),
        (
            "driver container failed with ExitCode: 2,\nReason: Error",
            "driver container failed with ExitCode: 2, Reason: Error",
        ),
        ("", "the Spark operator reports SUBMISSION_FAILED"),
    ],
)
def test_cause_is_extracted_from_spark_submit_output(error: str, message: str) -> None:
    assert failed(error) == message


def test_long_error_is_truncated() -> None:
    message = failed(('Exception in thread "main" ' + "x" * 500 + "\n") * 5_000)
    assert message is not None
    assert len(message) <= MAX_MESSAGE_CHARS
