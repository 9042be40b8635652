"""Archives that never change are not read again before each task, but others are."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from zipimport import zipimporter

import pytest
from delaymq_spark.source.worker import skip_archive_rereads

pytestmark = pytest.mark.core


@pytest.fixture
def as_it_was() -> Iterator[None]:
    before = zipimporter.invalidate_caches
    yield
    zipimporter.invalidate_caches = before
    gc.unfreeze()


@pytest.mark.parametrize(("name", "is_found"), [("spark-core.jar", False), ("pyspark.zip", False), ("mine.zip", True)])
def test_module_added_to_an_archive_is_found_except_in_archives_of_spark(
    as_it_was: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_found: bool
) -> None:
    archive = tmp_path / name
    module = f"added_to_{name.partition('.')[0].replace('-', '_')}"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("there_before.py", "")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.util.find_spec("there_before") is not None
    skip_archive_rereads()
    skip_archive_rereads()
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr(f"{module}.py", "")
    importlib.invalidate_caches()
    assert (importlib.util.find_spec(module) is not None) == is_found
    assert sys.path_importer_cache[str(archive)] is not None
