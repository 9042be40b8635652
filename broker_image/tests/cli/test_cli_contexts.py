"""Contexts: selected addresses, the contexts file, and where tokens may be sent."""

import json
import stat
from pathlib import Path

import pytest
from delaymq.cli.errors import CommandError
from delaymq.cli.target.contexts import Context, Contexts, load, path_of_file, save, target
from delaymq_testing.cli_running import called


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"DELAYMQ_CONFIG": str(tmp_path / "folder" / "contexts.toml")}


def write(environment: dict[str, str], text: str) -> None:
    path = Path(environment["DELAYMQ_CONFIG"])
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


DEV = 'current = "dev"\n[contexts.dev]\nnamesrv = "10.0.0.5:9876"\nhttp = "http://10.0.0.5:8080"\n'


def test_default_is_this_machine(environment: dict[str, str]) -> None:
    found = target(environment=environment)
    assert (found.namesrv, found.http, found.token, found.context) == (
        "127.0.0.1:9876", "http://127.0.0.1:8080", "", "",
    )  # fmt: skip


def test_flag_overrides_environment_and_environment_overrides_context(environment: dict[str, str]) -> None:
    write(environment, DEV)
    assert target(environment=environment).namesrv == "10.0.0.5:9876"
    said = {**environment, "DELAYMQ_NAMESRV": "b:1", "DELAYMQ_HTTP": "http://b:2"}
    assert (target(environment=said).namesrv, target(environment=said).http) == ("b:1", "http://b:2")
    assert target("c:1", environment=said).namesrv == "c:1"
    assert target(http="http://c:2", environment=said).http == "http://c:2"


def test_context_named_by_a_flag_overrides_the_environment(environment: dict[str, str]) -> None:
    write(environment, DEV + '[contexts.prod]\nnamesrv = "10.9.9.9:9876"\n')
    said = {**environment, "DELAYMQ_NAMESRV": "b:1", "DELAYMQ_CONTEXT": "dev"}
    assert target(context="prod", environment=said).namesrv == "10.9.9.9:9876"
    # What the context does not say is the default, never another context's.
    assert target(context="prod", environment=said).http == "http://127.0.0.1:8080"
    named = {**environment, "DELAYMQ_CONTEXT": "prod"}
    assert target(environment=named).context == "prod"


def test_context_token_is_sent_to_its_own_address_only(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    write(environment, DEV + f'token-file = "{tmp_path}/token"\n')
    assert target(environment=environment).token == "s3cret"
    assert target(http="http://elsewhere:8080", environment=environment).token == ""
    said = {**environment, "DELAYMQ_HTTP_TOKEN": "other"}
    assert target(http="http://elsewhere:8080", environment=said).token == "other"
    assert "s3cret" not in repr(target(environment=environment))


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff\xfe", b"x" * 5_000], ids=len)
def test_invalid_token_is_not_sent(content: bytes, tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(CommandError, match="does not contain a token"):
        target(token_file=str(tmp_path / "token"), environment=environment)
    with pytest.raises(CommandError, match="cannot read"):
        target(token_file=str(tmp_path / "missing"), environment=environment)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("current = \n", "is not TOML: Invalid value (at line 1"),
        ("\n\ncolour = 1\n", "line 3: 'colour' is unknown"),
        ("current = 5\n", 'line 1: use current = "NAME"'),
        ("[contexts.dev]\nnamesrv = 5\n", 'line 2: use namesrv = "…"'),
        ("[contexts.dev]\ntoken = 'x'\n", "line 2: 'token' is not a key of a context; the keys are namesrv, http"),
        ("[contexts.'a b']\n", "line 1: 'a b' is not a context name"),
        ("contexts = 1\n", "line 1: use a section"),
        ("[contexts]\ndev = 1\n", "line 2: use a section [contexts.dev]"),
        ("current = 'gone'\n", "no context gone in"),
        ("a = " + "[" * 100_000, "is not TOML"),
        ("#" * 300_000, "so it is not a contexts file"),
    ],
    ids=lambda value: value[:24],
)
def test_invalid_file_is_reported_with_its_line(text: str, told: str, environment: dict[str, str]) -> None:
    write(environment, text)
    done = called("topic", "list", environment=environment)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert environment["DELAYMQ_CONFIG"] in done.err


def test_saved_contexts_are_read_back_and_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "contexts.toml"
    contexts = Contexts("a", {"a": Context('q"uo\\te', "http://ü", "~/t"), "b-1": Context(), "c": Context("x:1")})
    for _ in range(2):
        save(path, contexts)
        assert load(path) == contexts
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["contexts.toml"]


def test_file_is_in_the_users_configuration_folder() -> None:
    assert path_of_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/delaymq/contexts.toml")
    assert path_of_file({}).parts[-3:] == (".config", "delaymq", "contexts.toml")


def test_contexts_are_set_used_shown_and_deleted(environment: dict[str, str]) -> None:
    assert "no contexts in" in called("context", "list", environment=environment).out
    first = called("context", "set", "dev", "--namesrv", "10.0.0.5:9876", environment=environment)
    assert (first.code, "and is the current context" in first.out) == (0, True)
    called("context", "set", "prod", "--namesrv", "10.9.9.9:9876;10.9.9.8:9876", environment=environment)
    called("context", "set", "prod", "--http", "http://10.9.9.9:8080", "--token-file", "/t", environment=environment)
    rows = [json.loads(line) for line in called("context", "list", "--json", environment=environment).lines]
    assert rows == [
        {"name": "dev", "current": True, "namesrv": "10.0.0.5:9876", "http": None, "tokenFile": None},
        {
            "name": "prod", "current": False, "namesrv": "10.9.9.9:9876;10.9.9.8:9876",
            "http": "http://10.9.9.9:8080", "tokenFile": "/t",
        },
    ]  # fmt: skip
    assert "* " in called("context", "list", environment=environment).out
    assert called("context", "use", "prod", environment=environment).code == 0
    # Its token's file is missing: that is reported, not ignored.
    assert "cannot read the token file /t" in called("context", "show", environment=environment).err
    assert json.loads(called("context", "show", "prod", "--json", environment=environment).out)["current"]
    assert called("context", "delete", "prod", environment=environment).code == 2
    assert called("context", "delete", "prod", "--yes", environment=environment).code == 0
    now = json.loads(called("context", "show", "--json", environment=environment).out)
    assert (now["name"], now["namesrv"], now["hasToken"]) == (None, "127.0.0.1:9876", False)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("set", "a b", "--http", "x"), 2, "is not a context name"),
        (("set", "dev"), 2, "give at least one of"),
        (("set", "dev", "--namesrv", "nowhere"), 2, "use host:port"),
        (("set", "dev", "--http", "ftp://x"), 2, "is not an HTTP address"),
        (("set", "dev", "--token-file", "a\nb"), 2, "unprintable characters"),
        (("use", "gone"), 2, "no context gone; known contexts"),
        (("show", "gone"), 2, "no context gone; known contexts"),
        (("delete", "gone", "--yes"), 2, "no context gone; known contexts"),
    ],
)
def test_invalid_context_is_reported(words: tuple[str, ...], code: int, told: str, environment: dict[str, str]) -> None:
    done = called("context", *words, environment=environment)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
