"""One JVM for all tests, small in every respect."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from delaymq_testing.any_disk import any_disk  # noqa: F401
from pyspark.sql import SparkSession

JAVA_VERSION = 17


def why_no_java() -> str | None:
    """Return why Spark cannot run for lack of a suitable Java, or None."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    advice = f"install Java {JAVA_VERSION} (on Debian: apt-get install openjdk-{JAVA_VERSION}-jre-headless)"
    if java is None or not os.access(java, os.X_OK):
        return f"Spark requires Java, which was not found: {advice}"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_VERSION:
        return f"Spark requires Java {JAVA_VERSION} or newer, but {java} is older: {advice}"
    return None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    reason = why_no_java()
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("delaymq-spark tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.memory", "1g")
        # With small data, most of the time would be spent on compiling plans that run once.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()
