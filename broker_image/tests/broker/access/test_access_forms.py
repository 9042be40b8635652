"""The form of administrative requests: exactly what RocketMQ's tools send is accepted."""

import re
from pathlib import Path

import pytest
from delaymq.broker.access.forms import FORMS, problem
from delaymq.broker.access.requirements import REQUIREMENTS
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq_testing.broker.guarded import Guarded

PAGE = Path(__file__).parents[4] / "docs" / "operations" / "access-control.md"
WITH_BODY = {25, 200}
NEWER = {17: ("attributes", "force"), 207: ("cleanOffset",), 222: ("queueId", "offset"), 323: ("topic",)}
"""Fields that RocketMQ 5.3's tools add to those of 4.9."""
COMMON = {
    "bname": "broker-a", "oway": "false", "ns": "space", "nsd": "true", "lo": "false", "OnsChannel": "ALIYUN",
    "SecurityToken": "dG9rZW4=",
}  # fmt: skip


def test_administrative_and_offset_requests_are_classified_administrative() -> None:
    administrators = {code for code, requirement in REQUIREMENTS.items() if requirement.admin}
    moving = {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.CLONE_GROUP_OFFSET}
    assert set(FORMS) == administrators | moving
    (stated,) = re.findall(r"^([\d, ]+) and (\d+) have a strict form", PAGE.read_text(), re.MULTILINE)
    assert {int(code) for code in re.findall(r"\d+", " ".join(stated))} == set(FORMS)


@pytest.mark.parametrize("code", FORMS)
def test_requests_of_rocketmqs_tools_are_accepted(code: int) -> None:
    form = FORMS[code]
    assert set(NEWER.get(code, ())) <= form.fields
    fields = dict.fromkeys(form.fields, "x-1") | COMMON | {"AccessKey": "operators", "Signature": "x"}
    assert problem(request_command(code, fields), form) is None
    assert (problem(request_command(code, fields, b"{}"), form) is None) is (code in WITH_BODY)
    for name in ("group_", "x", "_UNIQUE_KEY_QUERY", "\x1b[31m"):
        said = problem(request_command(code, fields | {name: "x"}), form)
        assert said is not None
        assert "\x1b" not in said


@pytest.mark.parametrize("value", ["{", '"', "a,b", "a b", "x" * 5_000, "ü", "a\n"])
def test_common_fields_contain_no_part_of_a_body(value: str) -> None:
    for name in COMMON:
        said = problem(request_command(306, {name: value}), FORMS[306])
        assert said is not None
        assert said.startswith(f"field {name} contains characters that are not allowed: use")


@pytest.mark.parametrize("key", ["", "{brokerId", "a key", "a/b-long", "schlüssel"])
def test_access_keys_in_requests_are_plain(guarded: Guarded, key: str) -> None:
    for code in (50, 51):
        fields = {"accessKey": key, "secretKey": "long-enough"} if code == 50 else {"accessKey": key}
        assert "an access key consists of" in guarded.refusal(code, fields, key="operators")


def test_unexpected_body_is_rejected_before_hashing(guarded: Guarded) -> None:
    said = guarded.refusal(215, {"topic": "Orders"}, b"x" * 100, key="operators", secret="not-the-secret")
    assert said == "request code=215 has no body: leave it out"
    assert guarded.access.refused["signature"] == 0
