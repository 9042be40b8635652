"""Fuzzed rule files yield rules or one short error that contains no secret."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delaymq.access.accounts import Account
from delaymq.access.errors import AccessError
from delaymq.access.files import FileState, load_file, read
from delaymq.access.plain_acl import parse, to_text
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

INPUTS = FUZZ_INPUTS // 8
NOW_MS = 1_700_000_000_000
SECRET = "not-to-be-told"
MAX_PROBLEM_CHARACTERS = 1_000

pytestmark = pytest.mark.timeout(120 + FUZZ_INPUTS // 100)

SCALARS: list[Any] = [
    *("", "x", "PUB", "SUB", "PUB|SUB", "DENY", "true", "10.0.0.*", "10.0.0.{1,2}", "a=b=c", "T=PUB", "=", "x" * 2_000),
    *(True, None, 0, -1, 2**64, 1.5, "é\u2028", "\u0000", "'", '"', "1:1:1", "0x7f", "!tag", "&a", "*a", "- a", "a: b"),
]
TOKENS = ["&a ", "*a", "!!binary ", "!x ", "? ", "- ", *"{[}]#\n\t\r'\"", ": ", "---\n"]


def account(chance: random.Random) -> dict[str, Any]:
    """An account, whole but for what a mutation does to it."""
    return {
        "accessKey": chance.choice(("orders-service", "operators", "another-one", "short")),
        "secretKey": SECRET,
        "whiteRemoteAddress": chance.choice(("", "10.0.0.7", "10.0.0.{7,9}")),
        "admin": chance.choice((True, False)),
        "defaultTopicPerm": chance.choice(("DENY", "PUB", "SUB", "PUB|SUB")),
        "topicPerms": ["Orders=PUB|SUB", f"T{chance.randrange(3)}=SUB"],
        "groupPerms": ["readers=SUB"],
    }


def changed(chance: random.Random, tree: Any) -> Any:
    """The tree with one node replaced, repeated, renamed, nested or omitted; secrets keep their places."""
    if isinstance(tree, dict) and tree and chance.randrange(6):
        key = chance.choice([key for key in tree if key != "secretKey"] or list(tree))
        match chance.randrange(8):
            case 0:
                del tree[key]
            case 1:
                tree[str(chance.choice(SCALARS))] = tree.pop(key)
            case _:
                tree[key] = changed(chance, tree[key])
        return tree
    if isinstance(tree, list) and tree and chance.randrange(6):
        at = chance.randrange(len(tree))
        return [*tree[:at], changed(chance, tree[at]), *tree[at:]]
    match chance.randrange(10):
        case 0:
            return [tree]
        case 1:
            return {"k": tree}
        case _:
            return chance.choice(SCALARS)


def text_of(chance: random.Random) -> str:
    """A rule file, in flow style (JSON is YAML) or in blocks, sometimes with its text damaged as well."""
    tree: Any = {
        "globalWhiteRemoteAddresses": ["10.10.103.*"],
        "accounts": [account(chance) for _ in range(chance.choice((1, 1, 2, 5)))],
        "dataVersion": [{"counter": 1, "timestamp": NOW_MS}],
    }
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        tree = changed(chance, tree)
    text = json.dumps(tree, ensure_ascii=False)
    if chance.randrange(2) and isinstance(tree, dict):
        text = "".join(f"{json.dumps(key)}:\n{_block(value)}" for key, value in tree.items())
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(TOKENS) + text[at + chance.choice((0, 0, 1, 30)) :]
    return text


def _block(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"- {json.dumps(each, ensure_ascii=False)}\n" for each in value)
    return f"  {json.dumps(value, ensure_ascii=False)}\n"


def test_random_rule_files_yield_rules_or_one_clear_error() -> None:
    chance = random.Random(f"{SEED} rules")
    outcomes = {"rules": 0, "refused": 0}
    for number in range(INPUTS):
        text = text_of(chance)
        try:
            check(text, outcomes)
        except Exception as error:
            raise AssertionError(f"input {number} of DELAYMQ_SEED={SEED}: {text!r}") from error
    assert min(outcomes.values()) > INPUTS // 20


def check(text: str, outcomes: dict[str, int]) -> None:
    """Reads one file, and what is written of it again."""
    whole = text.count(SECRET) == text.count(f'"secretKey": "{SECRET}"')
    problem = ""
    try:
        file = parse(text, NOW_MS)
    except AccessError as error:
        problem = str(error)
    assert len(problem) < MAX_PROBLEM_CHARACTERS
    assert not whole or SECRET not in problem
    outcomes["refused" if problem else "rules"] += 1
    if problem:
        return
    assert not whole or SECRET not in " ".join(file.notes)
    # The notes quote unknown names, and damage may make one of a secret key: the line above judges them.
    assert SECRET not in repr(replace(file, notes=()))
    again = parse(to_text(file), NOW_MS)
    assert [meaning(each) for each in again.accounts] == [meaning(each) for each in file.accounts]
    assert again.white_addresses == file.white_addresses


def meaning(each: Account) -> tuple[Any, ...]:
    """Who an account is and what it may do."""
    entry = each.entry
    who = entry.access_key, entry.secret_key, entry.white_remote_address, entry.others
    return *who, each.admin, each.topic_permission, each.group_permission, each.permissions


def test_invalid_bytes_keep_the_last_valid_rules(tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} bytes of rules")
    path = tmp_path / "plain_acl.yml"
    good = "accounts:\n- {accessKey: orders-service, secretKey: orders-secret}\n"
    path.write_text(good)
    known: FileState = load_file(path, None, NOW_MS)
    for number in range(INPUTS // 20):
        data = bytearray(good.encode() + text_of(chance).encode(errors="surrogatepass"))
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        state = read(path, known, NOW_MS)
        assert len(state.problem) < MAX_PROBLEM_CHARACTERS, f"input {number} of DELAYMQ_SEED={SEED}: {bytes(data)!r}"
        assert not state.problem or state.file is known.file
