"""Active rules: files that change while the broker runs, and requests 50 to 53, which change them."""

import logging
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.access import AccessError
from delaymq.config import to_properties_text
from delaymq.protocol.command import Command
from delaymq_testing.broker.guarded import MISSING, RULES, Guarded
from delaymq_testing.broker.harness import FakeSession, Harness, send_fields


def changed(guarded: Guarded, text: str) -> None:
    beside = guarded.path.with_name("new.tmp")
    beside.write_text(text)
    beside.rename(guarded.path)
    guarded.reload()


def test_valid_changes_apply_and_invalid_ones_do_not(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    changed(guarded, RULES.replace("Read=SUB", "Read=PUB"))
    assert guarded.refusal(310, send_fields("Read")) == ""
    changed(guarded, RULES.replace("accounts:", "accounts: ["))
    assert guarded.refusal(310, send_fields("Read")) == ""
    assert len(guarded.access.rules.problems) == 1
    assert "last valid rules stay in force" in caplog.text
    caplog.clear()
    guarded.reload()
    assert caplog.text == ""  # said once
    changed(guarded, RULES)
    assert guarded.refusal(310, send_fields("Read")) == MISSING + "topic:Read"
    assert guarded.access.rules.problems == []


def test_loss_of_the_last_administrator_is_warned_once(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    changed(guarded, RULES.replace(", admin: true", ""))
    assert "no administrator account is left" in caplog.text
    caplog.clear()
    changed(guarded, RULES.replace(", admin: true", "") + "# changed\n")
    assert "administrator" not in caplog.text


def test_reload_overtaken_by_an_administrator_changes_nothing(guarded: Guarded) -> None:
    guarded.path.write_text(RULES + "# changed\n")
    task = guarded.access.rules.reload_task()
    task.run()
    answer = guarded.ask(50, {"accessKey": "made-meanwhile", "secretKey": "made-meanwhile-secret"}, key="operators")
    assert answer.code == 0
    task.finish()
    assert guarded.refusal(26, key="made-meanwhile") == ""


def test_broker_refuses_to_start_with_unreadable_rules(open_harness: Any, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts: [")
    with pytest.raises(AccessError, match=r"access control \(aclEnable=true\).*plain_acl.yml: is not valid YAML"):
        open_harness(acl_enable=True, acl_config_path=str(path))


def test_missing_file_denies_all_until_it_exists(
    open_harness: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plain_acl.yml"
    harness = open_harness(acl_enable=True, acl_config_path=str(path))
    assert "every request is rejected until" in caplog.text
    guarded = Guarded(harness, path)
    assert guarded.refusal(26) == "No acl config for application"
    changed(guarded, RULES)
    assert guarded.refusal(26) == ""


def put(guarded: Guarded, key: str, **fields: Any) -> Command:
    stated = {"accessKey": key, "secretKey": f"{key}-secret", "admin": "false"} | fields
    answer: Command = guarded.ask(50, stated, key="operators")
    return answer


def test_account_is_created_changed_and_deleted(guarded: Guarded, open_harness: Any) -> None:
    assert put(guarded, "newcomers", topicPerms="Orders=PUB,Read=SUB", defaultGroupPerm="SUB").code == 0
    assert guarded.refusal(310, send_fields("Orders"), key="newcomers") == ""
    assert put(guarded, "newcomers", topicPerms="Read=SUB").code == 0
    assert guarded.refusal(310, send_fields("Orders"), key="newcomers") == MISSING + "topic:Orders"
    assert guarded.refusal(38, {"consumerGroup": "any"}, key="newcomers") == ""  # what is not named stays
    again = Guarded(open_harness(acl_enable=True, acl_config_path=str(guarded.path)), guarded.path)
    assert again.refusal(38, {"consumerGroup": "any"}, key="newcomers") == ""
    assert guarded.ask(51, {"accessKey": "newcomers"}, key="operators").code == 0
    assert guarded.refusal(26, key="newcomers") == "No acl config for newcomers"
    assert len(again.access.rules.accounts) == 6
    again.reload()
    assert len(again.access.rules.accounts) == 5


def test_account_is_changed_in_its_own_file(guarded: Guarded) -> None:
    other = guarded.path.parent / "acl" / "team.yml"
    other.parent.mkdir()
    other.write_text("accounts:\n- {accessKey: team-key, secretKey: team-secret}\n")
    guarded.reload()
    before = guarded.path.read_text()
    assert put(guarded, "team-key", secretKey="other-secret").code == 0
    assert "other-secret" in other.read_text()
    assert guarded.path.read_text() == before
    versions = guarded.ask(52, key="operators").fields
    assert versions["version"].startswith('{"counter":0,')
    assert f'"{other}":{{"counter":1,' in versions["allAclFileVersion"]
    assert f'"{guarded.path}":{{"counter":0,' in versions["allAclFileVersion"]


@pytest.mark.parametrize(
    ("code", "fields", "refused", "said"),
    [
        (50, {"accessKey": "short", "secretKey": "long-enough"}, 209, "length should longer than 6"),
        (50, {"accessKey": "long-enough"}, 209, "length should longer than 6"),
        (50, {"accessKey": "long-enough", "secretKey": "long\nenough"}, 209, "printable"),
        (50, {"accessKey": "x" * 2_000, "secretKey": "long-enough"}, 209, "at most"),
        (50, {"accessKey": "long-enough", "secretKey": "long-enough", "topicPerms": "T"}, 209, "Res=Perm"),
        (50, {"accessKey": "long-enough", "secretKey": "long-enough", "topicPerms": "T=READ"}, 209, "'PUB|SUB'"),
        (50, {"accessKey": "long-enough", "secretKey": "long-enough", "defaultTopicPerm": "ALL"}, 209, "permissions"),
        (50, {"accessKey": "long-enough", "secretKey": "long-enough", "whiteRemoteAddress": "x"}, 209, "Netaddress"),
        (51, {"accessKey": "nobody-here"}, 210, "corresponding to accessConfig has been deleted failed"),
        (53, {"globalWhiteAddrs": "x"}, 211, "Netaddress"),
        (53, {"globalWhiteAddrs": " , "}, 211, "at least one address"),
        (53, {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/passwd"}, 211, "is not a rule file of this broker"),
        (
            53,
            {"globalWhiteAddrs": "*", "aclFileFullPath": "../plain_acl.yml"},
            211,
            "is not a rule file of this broker",
        ),
    ],
)
def test_invalid_change_has_no_effect(
    guarded: Guarded, code: int, fields: dict[str, str], refused: int, said: str
) -> None:
    before = guarded.path.read_text()
    answer = guarded.ask(code, fields, key="operators")
    assert (answer.code, said in answer.remark) == (refused, True), answer.remark
    assert guarded.path.read_text() == before
    assert len(guarded.access.rules.accounts) == 5


def test_broken_or_unwritable_file_stays_unchanged(guarded: Guarded) -> None:
    guarded.path.write_text("accounts: [")
    answer = put(guarded, "newcomers")
    assert (answer.code, "correct the file first" in str(answer.remark)) == (209, True)
    assert guarded.path.read_text() == "accounts: ["
    guarded.path.write_text(RULES)
    guarded.path.with_name(".plain_acl.yml.new").mkdir()
    answer = put(guarded, "newcomers")
    assert (answer.code, "cannot write" in str(answer.remark)) == (209, True)
    assert guarded.refusal(26, key="newcomers") == "No acl config for newcomers"


def test_concurrent_edit_of_the_file_is_kept(guarded: Guarded) -> None:
    guarded.path.write_text(RULES + "- {accessKey: by-hand, secretKey: by-hand-secret}\n")
    assert put(guarded, "newcomers").code == 0
    assert guarded.refusal(26, key="by-hand") == ""
    assert "by-hand-secret" in guarded.path.read_text()


def test_white_list_is_replaced(guarded: Guarded) -> None:
    assert guarded.ask(53, {"globalWhiteAddrs": "10.3.0.{1,2},10.4.*.*"}, key="operators").code == 0
    for address, unsigned in (("10.1.0.9", False), ("10.3.0.2", True), ("10.3.0.3", False), ("10.4.5.6", True)):
        said = guarded.refusal(26, key=None, session=FakeSession(address=address))
        assert (said == "") is unsigned


def test_requests_without_access_control_explain_how_to_enable_it(harness: Harness) -> None:
    for code, refused in ((50, 209), (51, 210), (52, 1), (53, 211)):
        answer = harness.answer(code, {"accessKey": "x", "globalWhiteAddrs": "x"})
        assert (answer.code, "aclEnable=true" in str(answer.remark)) == (refused, True)


def test_logs_responses_and_configuration_contain_no_secret(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [put(guarded, "newcomers"), put(guarded, "newcomers", topicPerms="T"), guarded.ask(52, key="operators")]
    answers += [guarded.ask(26, key="operators"), guarded.ask(310, send_fields("Orders"), secret="wrong-secret")]
    guarded.path.write_text(RULES + "- accessKey: x\n  secretKey: newcomers-secret\n")
    guarded.reload()
    shown = caplog.text + repr(answers) + to_properties_text(guarded.broker.config) + repr(vars(guarded.access))
    shown += repr(vars(guarded.access.rules))
    for secret in ("operators-secret", "application-secret", "newcomers-secret", "wrong-secret"):
        assert secret not in shown


def test_held_requests_are_authorized_again_by_current_rules(guarded: Guarded) -> None:
    pull = Command(11, fields={"topic": "Orders", "consumerGroup": "mine", "AccessKey": "application"})
    session = guarded.harness.session
    before = guarded.access.signer_of(session, pull)

    def refusal(from_address: FakeSession = session) -> str:
        return str(guarded.access.still_refusal(from_address, pull, before))

    assert refusal() == "None"
    changed(guarded, RULES.replace("groupPerms: [mine=SUB]", "groupPerms: [mine=DENY]"))
    assert "No default permission for group:mine" in refusal()
    changed(guarded, RULES.replace("accessKey: application", "accessKey: replacement"))
    assert "No acl config for application" in refusal()
    assert refusal(FakeSession(address="10.1.0.9")) == "None"  # a white address
