"""Commands against a broker with access control: who signs, how that is said, and `delaymq acl`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_running import SMALL, Standalone, called
from delaymq.cli.accounts import account_flags, account_of
from delaymq.cli.errors import CommandError

RULES = """
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- {accessKey: application, secretKey: application-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    path = tmp_path_factory.mktemp("broker")
    broker = Standalone(path)
    (path / "plain_acl.yml").write_text(RULES)  # beside the file of -c
    broker.config_path.write_text(f"{SMALL}aclEnable=true\n")
    with broker.running():
        yield broker


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("operators-secret\n")
    return path


def test_without_an_account_a_command_says_how_to_name_one(standalone: Standalone) -> None:
    done = called("send", "T", "x", environment=standalone.environment)
    assert done.code == 1
    assert "has access control: name an account" in done.err
    assert "--access-key KEY" in done.err


def test_an_account_comes_from_flags_variables_or_a_context(
    standalone: Standalone, secret_file: Path, tmp_path: Path
) -> None:
    flags = ("--access-key", "operators", "--secret-key-file", str(secret_file))
    assert called(*flags, "topic", "create", "ByFlags", environment=standalone.environment).code == 0
    variables = {"DELAYMQ_ACCESS_KEY": "application", "DELAYMQ_SECRET_KEY": "application-secret"}
    assert called("send", "ByFlags", "x", environment=standalone.environment | variables).code == 0
    variables = {"DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(secret_file)}
    assert called("group", "create", "Readers", environment=standalone.environment | variables).code == 0
    home = standalone.environment | {"DELAYMQ_CONFIG": str(tmp_path / "contexts.toml")}
    named = ("--access-key", "operators", "--secret-key-file", str(secret_file))
    namesrv = standalone.environment["DELAYMQ_NAMESRV"]
    assert called("context", "set", "guarded", "--namesrv", namesrv, *named, environment=home).code == 0
    assert called("topic", "create", "ByContext", "--context", "guarded", environment=home).code == 0
    shown = called("context", "show", "guarded", "--json", environment=home).out
    assert json.loads(shown)["accessKey"] == "operators"
    assert "operators-secret" not in shown + (tmp_path / "contexts.toml").read_text()


def test_an_account_that_may_not_is_told_what_it_lacks(standalone: Standalone) -> None:
    variables = {"DELAYMQ_ACCESS_KEY": "application", "DELAYMQ_SECRET_KEY": "application-secret"}
    done = called("topic", "create", "Refused", environment=standalone.environment | variables)
    assert done.code == 1
    assert "Need admin permission for request code=17, but accessKey=application is not" in done.err
    wrong = variables | {"DELAYMQ_SECRET_KEY": "something-else"}
    done = called("send", "T", "x", environment=standalone.environment | wrong)
    assert "the secret key is not the one that the broker knows" in done.err
    assert "something-else" not in done.err + done.out


def test_accounts_and_white_lists_are_changed_by_commands(
    standalone: Standalone, secret_file: Path, tmp_path: Path
) -> None:
    environment = standalone.environment | {
        "DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(secret_file),
    }  # fmt: skip
    own = tmp_path / "own"
    own.write_text("newcomer-secret")
    [before] = called("acl", "list", "--json", environment=environment).lines
    words = ("--secret-file", str(own), "--topic", "Orders=PUB", "--group", "billing=SUB")
    done = called("acl", "put", "newcomer", *words, environment=environment)
    assert (done.code, "account newcomer is set on broker-a" in done.out) == (0, True), done.err
    account = {"DELAYMQ_ACCESS_KEY": "newcomer", "DELAYMQ_SECRET_KEY_FILE": str(own)}
    assert called("send", "Orders", "x", environment=standalone.environment | account).code == 0
    assert called("send", "Other", "x", environment=standalone.environment | account).code == 1
    assert called("acl", "delete", "newcomer", "--yes", environment=environment).code == 0
    done = called("send", "Orders", "x", environment=standalone.environment | account)
    assert "No acl config for newcomer" in done.err
    assert called("acl", "whitelist", "10.9.9.*", "10.9.8.{1,2}", "--yes", environment=environment).code == 0
    [after] = called("acl", "list", "--json", environment=environment).lines
    assert json.loads(after)["counter"] == json.loads(before)["counter"] + 3
    assert "10.9.8.{1,2}" in Path(json.loads(after)["file"]).read_text()
    done = called("acl", "put", "newcomer", "--secret-file", str(own), "--topic", "Orders", environment=environment)
    assert (done.code, "--topic Orders: write NAME=PUB" in done.err) == (2, True)


def test_a_key_without_a_secret_and_a_secret_without_a_key_are_told(secret_file: Path, tmp_path: Path) -> None:
    account_flags.clear()
    assert account_of({}, "", "") is None
    assert account_of({"DELAYMQ_SECRET_KEY": "left over"}, "", "") is None
    with pytest.raises(CommandError, match="access key operators has no secret"):
        account_of({"DELAYMQ_ACCESS_KEY": "operators"}, "", "")
    with pytest.raises(CommandError, match="no secret"):  # a context's secret is for its own key
        account_of({"DELAYMQ_ACCESS_KEY": "operators"}, "others", str(secret_file))
    account = account_of({"DELAYMQ_ACCESS_KEY": "operators"}, "operators", str(secret_file))
    assert account is not None
    assert account.secret_key == "operators-secret"
    assert "operators-secret" not in repr(account)
    account_flags["secret-key-file"] = str(secret_file)
    try:
        with pytest.raises(CommandError, match="no access key"):
            account_of({}, "", "")
    finally:
        account_flags.clear()
    for content in (b"", b"\xff\xfe", b"x" * 5_000, b"two\nlines"):
        path = tmp_path / "bad"
        path.write_bytes(content)
        with pytest.raises(CommandError, match="holds no secret key"):
            account_of({"DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(path)}, "", "")
    with pytest.raises(CommandError, match="cannot be read"):
        account_of({"DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(tmp_path / "none")}, "", "")
