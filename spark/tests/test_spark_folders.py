"""Folder names given by users, and rejection of output folders inside a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from delaymq_spark.cli import run
from delaymq_spark.store.address import StorePathError, check_store_path
from delaymq_spark.store.folders import FolderError, folder_of, output_folder, store_around

pytestmark = pytest.mark.core


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("a/b", "a/b"),
        ("./a:b", "./a:b"),
        ("/a%20b", "/a%20b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("FILE://localhost/a/b", "/a/b"),
        ("file:///a%20b%2525%C3%A4", "/a b%25ä"),
    ],
)
def test_path_is_unchanged_and_file_uri_is_decoded(text: str, path: str) -> None:
    assert folder_of(text, "another") == path
    assert check_store_path(text) == path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3a://bucket/report", "the scheme s3a is not supported: give another"),
        ("hdfs:/report", "the scheme hdfs is not supported: give another (for a folder of this name, give ./hdfs:/rep"),
        ("a:b", "give ./a:b"),
        ("file://host/a", "names the host host: give file:///PATH, with three slashes"),
        ("file:a/b", "a file: URI must be absolute"),
        ("file:", "a file: URI must be absolute"),
        ("file:///a?b", "write %3F and %23"),
        ("file:///a#b", "write %3F and %23"),
        ("file:///100%", "write %25"),
        ("file:///a%00b", "is not a folder name"),
        ("/a\0b", "is not a folder name"),
    ],
)
def test_invalid_folder_is_rejected_with_a_suggestion(text: str, said: str) -> None:
    with pytest.raises(FolderError) as caught:
        folder_of(text, "another")
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    with pytest.raises(StorePathError):
        check_store_path(text)


def test_output_folder_is_absolute_with_links_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    monkeypatch.chdir(tmp_path)
    # Spark would remove `link/..` without resolving the link.
    assert output_folder("link/../report") == tmp_path / "real" / "report"
    assert output_folder(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert output_folder("./a:b") == tmp_path / "a:b"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a*", "interprets * as a wildcard"),
        ("a[1]", "interprets [ as a wildcard"),
        ("a{b}", "interprets { as a wildcard"),
        ("a\\b", "interprets \\ as a wildcard"),
        ("loop", "form a loop"),
        ("file", "is a file: give a folder"),
        (os.fsdecode(b"\xff"), "is not UTF-8"),
    ],
)
def test_output_folder_that_spark_cannot_use_is_rejected(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError) as caught:
        output_folder(str(tmp_path / name))
    assert said in str(caught.value)


def test_results_next_to_a_store_are_not_inside_it(store: Path, tmp_path: Path) -> None:
    assert store_around(tmp_path / "report", str(store)) is None
    assert store_around(tmp_path / "storefront", str(store)) is None


def test_linked_folder_of_a_store_counts_as_inside_the_store(store: Path, tmp_path: Path) -> None:
    (tmp_path / "disk2").mkdir()
    (store / "consumequeue").symlink_to(tmp_path / "disk2")
    assert store_around(tmp_path / "disk2" / "report", str(store)) == str(store)
    assert store_around(tmp_path / "disk2", None) is None


@pytest.mark.parametrize(
    "out",
    ["{}", "{}/report", "file://{}/report", "file:{}/report", "file://localhost{}/deep/../report", "{}/../store/report",
     "file://{}/../other/../%73tore", "{}/../link/report", "../store/report", "commitlog/report"],
)  # fmt: skip
def test_output_inside_the_store_is_rejected_in_every_notation(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    (tmp_path / "link").symlink_to(store)
    monkeypatch.chdir(store)
    assert run(["report", "--store", str(store), "--out", out.format(store)]) == 2
    told = capsys.readouterr().err
    assert f"is inside the store {store}, which is read-only" in told
    assert told.count("\n") == 1
    assert [path.name for path in store.rglob("*")] == ["commitlog"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "store"]


@pytest.mark.parametrize("out", ["s3a://bucket/report", "hdfs://names/report", "http://host/report", "S3A:report"])
def test_output_with_an_unsupported_scheme_is_rejected_before_work_starts(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["report", "--store", str(store), "--out", out]) == 2
    told = capsys.readouterr().err
    assert f"--out {out}: the scheme" in told
    assert "give a folder that this machine and all executors share" in told
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
