"""Settings from flags and variables, log formats, probes."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import fields

import pytest
from delaymq_operator.health import serve_health
from delaymq_operator.logs import JsonFormatter, KopfRetries, TextFormatter
from delaymq_operator.main import main
from delaymq_operator.settings import OperatorSettings, SettingsError, flag_of, read_settings, variable_of


def test_flag_overrides_variable_and_variable_overrides_default() -> None:
    environment = {"DELAYMQ_OPERATOR_HTTP_PORT": "9000", "DELAYMQ_OPERATOR_NAMESPACES": " a, b,,", "PATH": "/bin"}
    settings = read_settings(["--http-port=9001", "--lease", "off"], environment)
    assert (settings.http_port, settings.namespaces, settings.lease) == (9001, ("a", "b"), False)
    assert read_settings([], {}) == OperatorSettings()


def test_every_setting_has_flag_and_variable() -> None:
    for one in fields(OperatorSettings):
        text = {"tuple[str, ...]": "a", "bool": "true", "str": "info"}.get(str(one.type), "5")
        text = {"log_format": "json", "analytics_role_kind": "Role"}.get(one.name, text)
        by_flag = read_settings([flag_of(one.name), text], {})
        assert by_flag == read_settings([], {variable_of(one.name): text}), one.name


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"DELAYMQ_OPERATOR_HTTP_PROT": "1"}, "did you mean DELAYMQ_OPERATOR_HTTP_PORT?"),
        ({"DELAYMQ_OPERATOR_HTTP_PORT": "x"}, "DELAYMQ_OPERATOR_HTTP_PORT must be a number, not 'x'"),
        ({"DELAYMQ_OPERATOR_HTTP_PORT": "70000"}, "at most 65535"),
        ({"DELAYMQ_OPERATOR_WORKERS": "0"}, "--workers must be at least 1, not 0"),
        ({"DELAYMQ_OPERATOR_QUIET_S": "-1"}, "--quiet-s must be from 0 to 86400 seconds, not -1"),
        ({"DELAYMQ_OPERATOR_DRAIN_LEASE_S": "601"}, "--drain-lease-s must be at most 600, not 601"),
        ({"DELAYMQ_OPERATOR_POLL_INTERVAL_S": "nan"}, "--poll-interval-s"),
        ({"DELAYMQ_OPERATOR_LEASE": "perhaps"}, "must be true or false, not 'perhaps'"),
        ({"DELAYMQ_OPERATOR_LOG_FORMAT": "xml"}, "--log-format must be text or json, not 'xml'"),
    ],
)
def test_invalid_setting_is_rejected_with_one_sentence(
    environment: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings([], environment)
    assert complaint in str(caught.value)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    assert main([]) == 2
    assert capsys.readouterr().err == f"delaymq-operator: {caught.value}\n"


def test_service_variables_of_kubernetes_are_ignored() -> None:
    links = {
        "DELAYMQ_OPERATOR_PORT": "tcp://10.96.0.7:8080",
        "DELAYMQ_OPERATOR_PORT_8080_TCP_ADDR": "10.96.0.7",
        "DELAYMQ_OPERATOR_SERVICE_HOST": "10.96.0.7",
        "DELAYMQ_OPERATOR_METRICS_SERVICE_PORT_HTTP": "8080",
    }
    assert read_settings([], links) == OperatorSettings()


def test_log_line_is_text_or_json() -> None:
    record = logging.LogRecord("delaymq_operator.controller.sync", logging.WARNING, "", 0, "a %s", ("ü",), None)
    assert TextFormatter().format(record).endswith("Z WARNING controller.sync: a ü")
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["logger"], line["message"]) == ("warning", "delaymq_operator.controller.sync", "a ü")


def test_repeated_kopf_attempts_are_logged_once() -> None:
    shown = []
    retries = KopfRetries()
    for attempt in range(1, 50):
        text = f"Request attempt #{attempt} failed; will retry: GET https://x/pods -> ClientConnectorError()"
        record = logging.LogRecord("kopf._cogs.clients.api", logging.ERROR, "", 0, text, (), None)
        if retries.filter(record):
            shown.append((record.levelname, record.getMessage()))
    assert len(shown) == 1
    assert shown[0][0] == "WARNING"
    assert "watch request to the API server failed" in shown[0][1]


def test_probe_returns_503_with_problems() -> None:
    import aiohttp

    async def scenario() -> None:
        problems: list[str] = []
        server = await serve_health(
            "127.0.0.1",
            0,
            alive=lambda: problems,
            ready=list,
            metrics=lambda: b"x 1\n",
            content_type="text/plain",
        )
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            for status, found in ((200, []), (503, ["the loop is blocked"])):
                problems[:] = found
                async with session.get("/livez") as answer:
                    assert answer.status == status
                    assert (await answer.json())["problems"] == found
            async with session.get("/metrics") as answer:
                assert await answer.text() == "x 1\n"
        await server.stop()

    asyncio.run(scenario())
