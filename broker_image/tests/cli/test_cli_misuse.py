"""Misuse exits with code 2, whatever the command: unusable files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from delaymq.cli.commands import send
from delaymq.cli.errors import CommandError
from delaymq_testing.cli_running import called


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a file, an empty folder, and one that is a store."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "store/commitlog").mkdir(parents=True)
    (tmp_path / "file").write_text("x\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("store restore empty new", "empty contains no finished backup"),
        ("store restore nothing new", "nothing contains no finished backup"),
        ("store restore file new", "file contains no finished backup"),
        ("store clone empty new", "empty is not a store"),
        ("store clone store store", "store is not empty"),
        ("store clone store file", "file"),
        ("store backup empty new", "empty is not a store"),
        ("store backup store file", "file is not a folder"),
        ("store export store -o nothing/out", "No such file or directory"),
        ("store export store -o file", "already exists"),
        ("demo --keep empty", "specify a folder that does not exist yet"),
        ("demo --keep file/below", "specify a folder that does not exist yet"),
        ("--tls-ca nothing topic list --namesrv 127.0.0.1:1", "nothing cannot be read"),
        ("group delete TOOLS_CONSUMER --yes", "is a system group"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_unusable_file_or_folder_is_misuse(words: str, text: str) -> None:
    done = called(*words.split())
    assert text in done.err
    assert done.code == 2


def test_foreign_backup_folder_is_misuse(folder: Path) -> None:
    store = folder / "source"
    (store / "commitlog").mkdir(parents=True)
    done = called("store", "backup", str(store), str(folder))
    assert "contains other files" in done.err
    assert done.code == 2


def test_unwritable_contexts_are_misuse() -> None:
    known = {"DELAYMQ_CONFIG": "/proc/delaymq/contexts.toml"}
    done = called("context", "set", "dev", "--namesrv", "127.0.0.1:9876", environment=known)
    assert "cannot write" in done.err
    assert done.code == 2


def test_oversized_message_input_is_misuse(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "MAX_INPUT_BYTES", 0)
    with pytest.raises(CommandError, match="the maximum size of a message") as caught:
        list(send._lines(str(folder / "file")))
    assert caught.value.exit_code == 2
