"""Rule files: reading, errors and writing."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from delaymq.access import DENY, PUB, SUB, files
from delaymq.access.errors import AccessError
from delaymq.access.plain_acl import MAX_ACCOUNTS, AclFile, Version, parse, to_text
from delaymq.access.yaml_tree import MAX_DEPTH, read_yaml
from hypothesis import given
from hypothesis import strategies as st

NOW_MS = 1_700_000_000_000
ROCKETMQ = """
# As RocketMQ ships it.
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


def test_rocketmqs_own_file_is_accepted() -> None:
    file = parse(ROCKETMQ, NOW_MS)
    assert file.white_addresses == ("10.10.103.*", "192.168.0.*")
    assert file.notes == ()
    assert file.version == Version(counter=0, timestamp_ms=NOW_MS)
    first, second = file.accounts
    assert (first.entry.access_key, first.entry.secret_key, first.admin) == ("RocketMQ", "12345678", False)
    assert (first.topic_permission, first.group_permission) == (DENY, SUB)
    assert first.permissions == {
        "topicA": DENY, "topicB": PUB | SUB, "topicC": SUB,
        "%RETRY%groupA": DENY, "%RETRY%groupB": PUB | SUB, "%RETRY%groupC": SUB,
    }  # fmt: skip
    assert first.white_list is None
    assert second.admin
    assert second.permissions == {}
    assert second.white_list is not None
    assert (second.topic_permission, second.group_permission) == (DENY, DENY)


def test_written_file_reads_back_identically() -> None:
    file = parse(ROCKETMQ + "dataVersion:\n- counter: 4\n  timestamp: 5\nstranger: 7\n", NOW_MS)
    again = parse(to_text(file), NOW_MS + 1)
    assert [each.entry for each in again.accounts] == [each.entry for each in file.accounts]
    assert (again.white_addresses, again.version) == (file.white_addresses, Version(counter=4, timestamp_ms=5))
    assert again.others == (("stranger", 7),)


names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=20)
keys = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=7, max_size=20)


@given(keys, keys, names, st.booleans(), st.sampled_from(["PUB", "SUB", "PUB|SUB", "DENY"]))
def test_any_account_survives_a_write(key: str, secret: str, topic: str, admin: bool, permission: str) -> None:
    topic = topic.replace("=", "-").strip() or "T"
    tree = {"accessKey": key, "secretKey": secret, "admin": admin, "topicPerms": [f"{topic}={permission}"]}
    file = parse(json.dumps({"accounts": [tree]}, ensure_ascii=False), NOW_MS)
    again = parse(to_text(file), NOW_MS)
    assert [each.entry for each in again.accounts] == [each.entry for each in file.accounts]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accounts: [", "is not valid YAML.*line"),
        ("- a", "is not a rule file"),
        ("just words", "is not a rule file"),
        ("accounts: 5", "use a list"),
        ("accounts:\n- 5", "account 1"),
        ("accounts:\n- accessKey: short\n  secretKey: long-enough", "length should longer than 6"),
        ("accounts:\n- accessKey: long-enough\n  secretKey: short", "length should longer than 6"),
        ("accounts:\n- accessKey: long-enough", "length should longer than 6"),
        ("accounts:\n- accessKey: [a]\n  secretKey: long-enough", "accessKey: the value is not a string"),
        ("accounts:\n- accessKey: 1234567.5\n  secretKey: long-enough", "put it in quotes"),
        ("accounts:\n- accessKey: long-enough\n  secretKey: true", "put it in quotes"),
        ("accounts:\n- accessKey: long-enough\n  secretKey: long-enough\n  admin: perhaps", "true or false"),
        ("accounts:\n- accessKey: long-enough\n  secretKey: long-enough\n  topicPerms: T=PUB", "use a list"),
        ("accounts:\n- accessKey: long-enough\n  secretKey: long-enough\n  topicPerms: [T]", "topic:T"),
        ("accounts:\n- accessKey: long-enough\n  secretKey: long-enough\n  groupPerms: [G=SUB=PUB]", "group:G"),
        ("accounts:\n- accessKey: long-enough\n  secretKey: long-enough\n  whiteRemoteAddress: here", "Netaddress"),
        ("globalWhiteRemoteAddresses: [10.0.0]", "Netaddress"),
        ("accounts: []\naccounts: []", "duplicate key"),
        ("dataVersion: [{counter: x, timestamp: 1}]", "must be integers"),
        ("a: &x 1\nb: *x", "anchors and aliases"),
        ("a: !!python/object/apply:os.system ['true']", "tags"),
        ("a: !!binary aGVsbG8=", "tags"),
        ("? [a]\n: b", "a key must be a scalar"),
        ("[" * 100_000, f"deeper than {MAX_DEPTH}"),
        ("a: " + "{a: " * 50_000, f"deeper than {MAX_DEPTH}"),
        ("accounts:\n- accessKey: " + "9" * 9_000, "put it in quotes"),
        ("accounts:\n- accessKey: 0x" + "f" * 9_000, "put it in quotes"),
        ("accounts:\n- accessKey: 1" + ":1" * 200_000, "put it in quotes"),
        ("a: \x00", "is not valid YAML"),
    ],
)
def test_error_describes_the_fault_in_the_file(text: str, said: str) -> None:
    with pytest.raises(AccessError, match=rf"(?s){said}"):
        parse(text, NOW_MS)


def test_errors_never_contain_secrets() -> None:
    secret = "a-very-secret-word"
    entry = f"accessKey: long-enough\n  secretKey: {secret}"
    for text in (
        f"accounts:\n- {entry}\n  admin: perhaps",
        f"accounts:\n- {entry}\n  topicPerms: [T]",
        f"accounts:\n- {entry}\n bad indent",
        f"accounts:\n- accessKey: short\n  secretKey: {secret}",
        f"accounts:\n- accessKey: long-enough\n  secretKey: [{secret}]",
        f"accounts:\n- accessKey: long-enough\n  secretKey: &x {secret}",
        f"accounts:\n- accessKey: long-enough\n  secretKey: !{secret}",
        f"accounts:\n- {{accessKey: long-enough, secretKey:{secret}, secretKey:{secret}}}",
        f"accounts:\n- accessKey: long-enough\n  secretKey: '{secret}",
    ):
        with pytest.raises(AccessError) as caught:
            parse(text, NOW_MS)
        assert secret not in str(caught.value)
    file = parse(f"accounts:\n- {entry}", NOW_MS)
    assert secret not in repr(file)
    assert secret not in repr(parse(f"{{accounts: [], secretKey:{secret}}}", NOW_MS).notes)


def test_ambiguous_rules_are_warned_about() -> None:
    account = "accounts:\n- accessKey: long-enough\n  secretKey: long-enough\n"
    assert "means DENY" in parse(account + "  defaultTopicPerm: ANY", NOW_MS).notes[0]
    assert "means DENY" in parse(account + "  topicPerms: [T=READ]", NOW_MS).notes[0]
    file = parse(account + "  topicPerm: [T=PUB]", NOW_MS)
    assert "ignored keys without a meaning here: topicPerm" in file.notes[0]
    twice = account + "- accessKey: long-enough\n  secretKey: something-else\n"
    assert "the first one applies" in parse(twice, NOW_MS).notes[0]
    assert [each.entry.secret_key for each in parse(twice, NOW_MS).accounts] == ["long-enough"]


def test_number_of_accounts_is_limited() -> None:
    text = "accounts:\n" + "- {}\n" * (MAX_ACCOUNTS + 1)
    with pytest.raises(AccessError, match=f"at most {MAX_ACCOUNTS}"):
        parse(text, NOW_MS)


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(AccessError):
        read_yaml(text)
    with suppress(AccessError):
        parse(text, NOW_MS)


# Folders

ONE = "accounts:\n- accessKey: {key}\n  secretKey: secret-of-it\n"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.parent / "put.tmp"
    beside.write_text(text)
    beside.rename(path)


def keys_of(states: files.States) -> list[str]:
    return [account.entry.access_key for state in states.values() for account in state.file.accounts]


def test_folder_is_read_recursively_and_main_file_last(tmp_path: Path) -> None:
    main = tmp_path / "plain_acl.yml"
    put(main, ONE.format(key="main-file"))
    put(tmp_path / "acl" / "b.yaml", ONE.format(key="file-b-"))
    put(tmp_path / "acl" / "a" / "deep.yml", ONE.format(key="file-deep"))
    put(tmp_path / "acl" / "tools.yml", "accessKey: tools-key\nsecretKey: secret")
    put(tmp_path / "acl" / "notes.txt", "no rules")
    put(tmp_path / "acl" / "..2026" / "copy.yml", ONE.format(key="mounted-twice"))
    assert keys_of(files.load_changed(main, {}, NOW_MS)) == ["file-deep", "file-b-", "main-file"]


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    main = tmp_path / "plain_acl.yml"
    put(main, ONE.format(key="first-key"))
    before = files.load_changed(main, {}, NOW_MS)
    again = files.load_changed(main, before, NOW_MS)
    assert again[main] is before[main]
    put(main, ONE.format(key="other-key"))
    assert keys_of(files.load_changed(main, again, NOW_MS)) == ["other-key"]


def test_change_is_detected_with_equal_size_and_mtime(tmp_path: Path) -> None:
    main = tmp_path / "plain_acl.yml"
    put(main, ONE.format(key="first-key"))
    before, state = files.load_changed(main, {}, NOW_MS), main.stat()
    while main.stat().st_ctime_ns == state.st_ctime_ns:  # the clock of a file system may be coarse
        main.write_text(ONE.format(key="other-key"))
        os.utime(main, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (main.stat().st_size, main.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert keys_of(files.load_changed(main, before, NOW_MS)) == ["other-key"]


def test_broken_file_keeps_its_last_valid_rules(tmp_path: Path) -> None:
    main = tmp_path / "plain_acl.yml"
    put(main, ONE.format(key="first-key"))
    states = files.load_changed(main, {}, NOW_MS)
    for text in ("accounts: [", "", "\ufeff", "accounts:\n- accessKey: x\n", "x" * (files.MAX_FILE_BYTES + 1)):
        put(main, text)
        states = files.load_changed(main, states, NOW_MS)
        assert keys_of(states) == ["first-key"]
        assert states[main].problem
    main.write_bytes(b"accounts:\n- \xff\n")
    states = files.load_changed(main, states, NOW_MS)
    assert states[main].problem == "is not UTF-8 (line 2)"
    put(main, "accounts: []")
    states = files.load_changed(main, states, NOW_MS)
    assert (keys_of(states), states[main].problem) == ([], "")


def test_deleted_file_removes_its_accounts(tmp_path: Path) -> None:
    main = tmp_path / "plain_acl.yml"
    put(main, ONE.format(key="first-key"))
    states = files.load_changed(main, {}, NOW_MS)
    main.unlink()
    states = files.load_changed(main, states, NOW_MS)
    assert (keys_of(states), states[main].problem) == ([], "")


def test_folder_in_place_of_a_file_is_reported(tmp_path: Path) -> None:
    main = tmp_path / "plain_acl.yml"
    main.mkdir()
    assert "Is a directory" in files.load_changed(main, {}, NOW_MS)[main].problem


def test_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    main = tmp_path / "plain_acl.yml"
    os.mkfifo(main)
    assert files.load_changed(main, {}, NOW_MS)[main].problem == "is not a regular file"


def test_writing_keeps_mode_and_follows_links(tmp_path: Path) -> None:
    target, main = tmp_path / "elsewhere.yml", tmp_path / "plain_acl.yml"
    put(target, ONE.format(key="first-key"))
    os.chmod(target, 0o640)
    main.symlink_to(target)
    state = files.load_changed(main, {}, NOW_MS)[main]
    written = files.write(main, state.file.without_account("first-key", Version(counter=1, timestamp_ms=2)))
    assert main.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert files.load_changed(main, {main: written}, NOW_MS)[main] is written  # it need not be read again
    assert parse(target.read_text(), NOW_MS).version == Version(counter=1, timestamp_ms=2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere.yml", "plain_acl.yml"]


def test_new_file_is_readable_by_owner_only(tmp_path: Path) -> None:
    main = tmp_path / "plain_acl.yml"
    files.write(main, AclFile())
    assert main.stat().st_mode & 0o777 == 0o600


def test_failed_write_leaves_no_files(tmp_path: Path) -> None:
    main = tmp_path / "missing" / "plain_acl.yml"
    with pytest.raises(AccessError, match="cannot write"):
        files.write(main, AclFile())
    (tmp_path / "plain_acl.yml").mkdir()
    with pytest.raises(AccessError, match="cannot write"):
        files.write(tmp_path / "plain_acl.yml", AclFile())
    assert [each.name for each in tmp_path.iterdir()] == ["plain_acl.yml"]
