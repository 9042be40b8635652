"""Commands against a broker with access control: signing, errors, and `delaymq acl`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delaymq.access.plain_acl import parse
from delaymq.cli.commands import acl_usage
from delaymq.cli.errors import CommandError
from delaymq.cli.target.accounts import account_flags, account_from
from delaymq_testing.cli_running import SMALL, Done, Standalone, called

RULES = """
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true, requireSecondSignature: true}
- {accessKey: application, secretKey: application-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    path = tmp_path_factory.mktemp("broker")
    broker = Standalone(path)
    (path / "plain_acl.yml").write_text(RULES)  # in the folder of the file of -c
    broker.config_path.write_text(f"{SMALL}aclEnable=true\n")
    with broker.running():
        yield broker


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("operators-secret\n")
    return path


def test_command_without_an_account_says_how_to_name_one(standalone: Standalone) -> None:
    done = called("send", "T", "x", environment=standalone.environment)
    assert done.code == 1
    assert "requires a signature: specify an account" in done.err
    assert "--access-key KEY" in done.err


def test_account_comes_from_flags_variables_or_a_context(
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


def test_missing_permission_is_named(standalone: Standalone) -> None:
    variables = {"DELAYMQ_ACCESS_KEY": "application", "DELAYMQ_SECRET_KEY": "application-secret"}
    done = called("topic", "create", "Refused", environment=standalone.environment | variables)
    assert done.code == 1
    assert "Need admin permission for request code=17, but accessKey=application is not" in done.err
    wrong = variables | {"DELAYMQ_SECRET_KEY": "something-else"}
    done = called("send", "T", "x", environment=standalone.environment | wrong)
    assert "the secret key does not match the broker's secret key" in done.err
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
    assert (done.code, "--topic Orders: use NAME=PERM" in done.err) == (2, True)


def test_quotas_are_changed_and_listed_by_commands(standalone: Standalone, secret_file: Path, tmp_path: Path) -> None:
    environment = standalone.environment | {
        "DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(secret_file),
    }  # fmt: skip
    own = tmp_path / "own"
    own.write_text("capped1-secret")

    def quotas() -> Any:
        lines = map(json.loads, called("acl", "list", "--accounts", "--json", environment=environment).lines)
        return {line["accessKey"]: line["quotas"] for line in lines}["capped1"]

    put = ("acl", "put", "capped1")
    created = ("--secret-file", str(own), "--topic", "Orders=PUB", "--quota", "connections=5")
    assert called(*put, *created, environment=environment).code == 0
    assert quotas() == {"connections": 5}
    more = ("--quota", "sendBytesPerSecond=1000", "--quota", "heldPulls=unlimited", "--quota", "connections=default")
    assert called(*put, *more, environment=environment).code == 0
    assert quotas() == {"sendBytesPerSecond": 1000, "heldPulls": "unlimited"}
    account = {"DELAYMQ_ACCESS_KEY": "capped1", "DELAYMQ_SECRET_KEY_FILE": str(own)}
    assert called("send", "Orders", "x", environment=standalone.environment | account).code == 0
    shown = called("acl", "list", "--accounts", environment=environment).out
    assert "sendBytesPerSecond=1000" in shown
    assert "capped1-secret" not in shown
    refused = called("acl", "list", "--accounts", environment=standalone.environment | account)
    assert "only administrators can list accounts" in refused.err
    for words, said in (
        (("--quota", "sendBytes=1"), "'sendBytes=1' is not a quota"),
        (("--quota", "connections=0"), "use a whole number from 1"),
        (("--quota", "connections"), "use KEY=VALUE"),
        (("--topic", "Orders=SUB"), "--secret-file is missing"),
        (("--admin",), "--secret-file is missing"),
    ):
        done = called(*put, *words, environment=environment)
        assert done.code != 0
        assert said in done.err
    assert "there is no account" in called("acl", "put", "nobody", *more, environment=environment).err
    assert quotas() == {"sendBytesPerSecond": 1000, "heldPulls": "unlimited"}
    assert called("acl", "delete", "capped1", "--yes", environment=environment).code == 0


def test_roles_and_accounts_without_a_secret_key_are_set_by_commands(standalone: Standalone, secret_file: Path) -> None:
    environment = standalone.environment | {
        "DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(secret_file),
    }  # fmt: skip

    def put(*words: str) -> Done:
        return called("acl", "put", "certified1", *words, environment=environment)

    def account() -> dict[str, Any]:
        lines = map(json.loads, called("acl", "list", "--accounts", "--json", environment=environment).lines)
        return next(line for line in lines if line["accessKey"] == "certified1")

    assert "state a secret key or certificateOnly" in put("--role", "read").err
    assert put("--certificate-only", "--topic", "Orders=PUB").code == 0
    assert (account()["certificateOnly"], account()["role"], account()["admin"]) == (True, "", False)
    assert put("--role", "operate", "--admin").code == 0
    assert (account()["certificateOnly"], account()["role"], account()["admin"]) == (True, "operate", True)
    assert put("--role", "none", "--quota", "connections=3").code == 0
    assert (account()["role"], account()["admin"], account()["quotas"]) == ("", True, {"connections": 3})
    assert "use read, operate, administer or none" in put("--role", "owner").err
    # Without a secret key, nothing else could admit it.
    assert "certified1" in put("--no-certificate-only").err
    assert account()["certificateOnly"]
    shown = called("acl", "list", "--accounts", environment=environment).out
    assert ["certificate only" in shown, "certified1" in shown] == [True, True]
    assert called("acl", "delete", "certified1", "--yes", environment=environment).code == 0


def test_key_without_secret_and_secret_without_key_are_errors(secret_file: Path, tmp_path: Path) -> None:
    account_flags.clear()
    assert account_from({}, "", "") is None
    assert account_from({"DELAYMQ_SECRET_KEY": "left over"}, "", "") is None
    with pytest.raises(CommandError, match="no secret key for access key operators"):
        account_from({"DELAYMQ_ACCESS_KEY": "operators"}, "", "")
    with pytest.raises(CommandError, match="no secret"):  # a context's secret is for its own key
        account_from({"DELAYMQ_ACCESS_KEY": "operators"}, "others", str(secret_file))
    account = account_from({"DELAYMQ_ACCESS_KEY": "operators"}, "operators", str(secret_file))
    assert account is not None
    assert account.secret_key == "operators-secret"
    assert "operators-secret" not in repr(account)
    account_flags["secret-key-file"] = str(secret_file)
    try:
        with pytest.raises(CommandError, match="without an access key"):
            account_from({}, "", "")
    finally:
        account_flags.clear()
    for content in (b"", b"\xff\xfe", b"x" * 5_000, b"two\nlines"):
        path = tmp_path / "bad"
        path.write_bytes(content)
        with pytest.raises(CommandError, match="does not contain a secret key"):
            account_from({"DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(path)}, "", "")
    with pytest.raises(CommandError, match="cannot read"):
        account_from({"DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(tmp_path / "none")}, "", "")


def test_new_administrators_require_the_second_signature(
    standalone: Standalone, secret_file: Path, tmp_path: Path
) -> None:
    variables = {"DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(secret_file)}
    own = tmp_path / "own"
    own.write_text("administrator-secret\n")
    put = ("acl", "put", "second1", "--admin", "--secret-file", str(own))
    rules = standalone.config_path.with_name("plain_acl.yml")
    for more, required in (((), True), (("--no-second-signature",), False), ((), False)):
        assert called(*put, *more, environment=standalone.environment | variables).code == 0
        entry = rules.read_text().partition("second1")[2].partition("accessKey")[0]
        assert ("requireSecondSignature: true" in entry) is required
    done = called("acl", "delete", "second1", "--yes", environment=standalone.environment | variables)
    assert done.code == 0


def test_access_control_is_created_for_a_broker_without_it(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("# ours\nlistenPort=10911\n")
    done = called("acl", "init", "-c", str(config))
    assert done.code == 0, done.err
    assert config.read_text() == "# ours\nlistenPort=10911\naclEnable=true\n"
    assert "without a certificate" in done.out
    secret = (tmp_path / "operators.secret").read_text().strip()
    account = parse((tmp_path / "plain_acl.yml").read_text(), 0).account("operators")
    assert account is not None
    assert account.entry.admin
    assert account.entry.require_second_signature
    assert account.entry.secret_key == secret
    assert len(secret) > 40
    assert secret not in done.out + done.err
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "plain_acl.yml", tmp_path / "operators.secret")} == {
        0o600
    }
    again = called("acl", "init", "-c", str(config))
    assert (again.code, "already enables access control" in again.err) == (2, True)


def test_new_access_control_requires_tls_of_administrators_with_a_certificate(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("tls.server.certPath=/etc/cert.pem\n")
    assert called("acl", "init", "-c", str(config), "--key", "head.admin").code == 0
    assert config.read_text() == "tls.server.certPath=/etc/cert.pem\naclEnable=true\naclAdminNeedsTls=true\n"
    assert (tmp_path / "head.admin.secret").exists()


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("listenPort=10911\n")
    (tmp_path / "operators.secret").write_text("kept")
    done = called("acl", "init", "-c", str(config))
    assert (done.code, "already exists: move it away first" in done.err) == (2, True)
    assert not (tmp_path / "plain_acl.yml").exists()
    assert config.read_text() == "listenPort=10911\n"
    done = called("acl", "init", "-c", str(config), "--key", "no good")
    assert (done.code, "--key 'no good' is invalid: use 7 to 64" in done.err) == (2, True)
    done = called("acl", "init", "-c", str(tmp_path / "absent"))
    assert (done.code, "cannot read" in done.err) == (2, True)


def test_usage_of_accounts_is_shown_with_quotas_and_rates(standalone: Standalone, secret_file: Path) -> None:
    account = {"DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(secret_file)}
    environment = standalone.environment | account
    assert called("topic", "create", "Metered", environment=environment).code == 0
    done = called("acl", "usage", "--interval", "0.1", "--json", environment=environment)
    assert done.code == 0, done.err
    rows = {row["account"]: row for row in map(json.loads, done.out.splitlines())}
    assert {"operators", "application"} <= set(rows)
    assert rows["operators"]["requests"] > 0
    assert rows["operators"]["rates"]["sendBytesPerSecond"] == 0
    shown = called("acl", "usage", "--interval", "0.1", "--account", "limited", environment=environment)
    assert (shown.code, shown.out) == (0, "no account matches, or the brokers have no access control (aclEnable)\n")
    shown = called("acl", "usage", "--interval", "0.1", "--limited", environment=environment)
    assert "no quota limits these accounts: add `quotas` to a rule file" in shown.out


def test_table_of_usage_states_rates_limits_and_rejections() -> None:
    def answer(as_of_ms: int, sends: int) -> dict[str, Any]:
        rate: dict[str, Any] = {"quota": "sendRequestsPerSecond", "limit": 50, "used": None}
        number: dict[str, Any] = {"quota": "connections", "limit": None, "used": 2}
        quotas = [
            rate | {"delays": 3, "delayedSeconds": 0.26, "rejected": 1},
            number | {"delays": 0, "delayedSeconds": 0.0, "rejected": 4},
        ]
        totals = dict.fromkeys(("sendBytes", "pullBytes", "pulls", "heldPulls", "createdTopics", "createdGroups"), 0)
        used = {"sends": sends, "requests": sends, "eventLoopSeconds": sends / 1e3, "connections": 2}
        account = {**totals, **used, "account": "web", "quotas": quotas}
        return {"asOfMs": as_of_ms, "bootId": "a", "accounts": [account]}

    (web,) = acl_usage._with_rates(answer(1_000, 10), answer(3_000, 110))
    assert list(acl_usage._rows("broker-a", web, limited=False)) == [
        ("broker-a", "web", "sendRequestsPerSecond", "50.0", "50", "3", "0.3 s", "1"),
        ("broker-a", "web", "requestsPerSecond", "50.0", "", "", "", ""),
        ("broker-a", "web", "eventLoopPercent", "5.0", "", "", "", ""),
        ("broker-a", "web", "connections", "2", "", "0", "0.0 s", "4"),
    ]
    assert [row[2] for row in acl_usage._rows("broker-a", web, limited=True)] == ["sendRequestsPerSecond"]
    (restarted,) = acl_usage._with_rates(answer(1_000, 10), answer(3_000, 110) | {"bootId": "b"})
    assert restarted["rates"] is None
    assert next(acl_usage._rows("broker-a", restarted, limited=True))[3] == ""


def test_former_key_of_an_account_is_kept_and_dropped_by_commands(
    standalone: Standalone, secret_file: Path, tmp_path: Path
) -> None:
    variables = {"DELAYMQ_ACCESS_KEY": "operators", "DELAYMQ_SECRET_KEY_FILE": str(secret_file)}
    own = {}
    for name in ("first", "second"):
        own[name] = tmp_path / name
        own[name].write_text(f"{name}-own-secret\n")

    def sends(name: str) -> bool:
        account = {"DELAYMQ_ACCESS_KEY": "newcomer", "DELAYMQ_SECRET_KEY_FILE": str(own[name])}
        return called("send", "Orders", "x", environment=standalone.environment | account).code == 0

    def put(name: str, *more: str) -> None:
        words = ("acl", "put", "newcomer", "--secret-file", str(own[name]), "--topic", "Orders=PUB", *more)
        done = called(*words, environment=standalone.environment | variables)
        assert done.code == 0, done.err
        assert "own-secret" not in done.out + done.err

    put("first")
    put("second", "--keep-former-key")
    assert (sends("first"), sends("second")) == (True, True)
    put("second", "--drop-former-key")
    assert (sends("first"), sends("second")) == (False, True)
