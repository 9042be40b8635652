"""Oversized and unreadable tables are never lost by accident."""

import errno
import json
from pathlib import Path

import pytest
from delaymq.store.disk.config_files import ConfigFiles
from delaymq.store.disk.files import Files
from delaymq.store.errors import UnreadableTableError
from delaymq.store.model import Correction

NAME = "consumerOffset.json"


@pytest.fixture
def corrections() -> list[Correction]:
    return []


@pytest.fixture
def files(tmp_path: Path, corrections: list[Correction]) -> ConfigFiles:
    (tmp_path / "config").mkdir()
    (tmp_path / "delaymq" / "aside").mkdir(parents=True)
    return ConfigFiles(Files(), f"{tmp_path}/config", str(tmp_path), corrections)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_table_that_a_start_would_reject_is_not_written_and_keeps_the_backup(
    files: ConfigFiles, tmp_path: Path
) -> None:
    files.save(NAME, b"[1]", max_bytes=10)
    files.save(NAME, b"[2]", max_bytes=10)
    before = contents(tmp_path / "config")
    with pytest.raises(OSError, match="would have 11 bytes; the limit is 10") as failure:
        files.save(NAME, b"[2345678,1]", max_bytes=10)
    assert failure.value.errno == errno.EFBIG
    assert contents(tmp_path / "config") == before
    assert files.load(NAME, json.loads, max_bytes=10) == [2]


def test_oversized_file_is_renamed_unread_and_its_backup_is_used(
    files: ConfigFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save(NAME, b"[1]")
    files.save(NAME, b"[2]")
    (tmp_path / "config" / NAME).write_bytes(b"[%b]" % (b"1," * 100))
    monkeypatch.setattr(Files, "read", lambda self, path: Path(path).read_bytes() if path.endswith(".bak") else 1 / 0)
    assert files.load(NAME, json.loads, max_bytes=10) == [1]
    monkeypatch.undo()
    files.save(NAME, b"[3]")
    assert contents(tmp_path / "config") == {
        NAME: b"[3]", f"{NAME}.bak": b"[1]", f"{NAME}.unreadable": b"[%b]" % (b"1," * 100)
    }  # fmt: skip


@pytest.mark.parametrize("damaged", [(NAME,), (f"{NAME}.bak",), (NAME, f"{NAME}.bak")])
def test_required_table_is_kept_at_each_start_until_a_valid_one_exists(
    files: ConfigFiles, tmp_path: Path, damaged: tuple[str, ...]
) -> None:
    config = tmp_path / "config"
    for name in damaged:
        (config / name).write_bytes(b"{")
    for _ in range(2):
        with pytest.raises(UnreadableTableError) as failure:
            files.load_or_keep(NAME, json.loads)
        assert sorted(failure.value.paths) == sorted(f"config/{name}.unreadable" for name in damaged)
        assert contents(config) == {f"{name}.unreadable": b"{" for name in damaged}
    (config / NAME).write_bytes(b"[]")
    assert files.load_or_keep(NAME, json.loads) == []
    (config / NAME).write_bytes(b"[")
    with pytest.raises(UnreadableTableError) as failure:
        files.load_or_keep(NAME, json.loads)
    number = ".2" if NAME in damaged else ""
    assert f"config/{NAME}.unreadable{number}" in failure.value.paths


def test_missing_table_leaves_nothing_to_keep(files: ConfigFiles) -> None:
    assert files.load_or_keep(NAME, json.loads) is None


def test_unrenamable_file_stays_in_place_at_each_start(
    files: ConfigFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Files, source: str, target: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    (tmp_path / "config" / NAME).write_bytes(b"{")
    monkeypatch.setattr(Files, "rename", refuse)
    for _ in range(2):
        with pytest.raises(UnreadableTableError) as failure:
            files.load_or_keep(NAME, json.loads)
        assert failure.value.paths == [f"config/{NAME}"]


def test_only_the_damaged_file_is_renamed_when_the_backup_is_valid(
    files: ConfigFiles, tmp_path: Path, corrections: list[Correction]
) -> None:
    config = tmp_path / "config"
    (config / NAME).write_bytes(b"{")
    (config / f"{NAME}.bak").write_bytes(b"[1]")
    assert files.load_or_keep(NAME, json.loads) == [1]
    assert [correction.what for correction in corrections] == ["config-damaged"]
    assert files.load_or_keep(NAME, json.loads) == [1]
    files.save(NAME, b"[2]")
    assert contents(config) == {NAME: b"[2]", f"{NAME}.bak": b"[1]", f"{NAME}.unreadable": b"{"}
