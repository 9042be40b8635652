"""Commands that the entry point of the Spark image runs, by arguments and environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import entrypoint
import pytest

pytestmark = pytest.mark.core

DRIVER = {"SPARK_HOME": "/opt/spark", "SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3"}
EXECUTOR = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.4",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "some-exec-3",
}


def test_driver_is_submitted_in_its_own_container_and_binds_to_the_pod_address() -> None:
    given = ["--properties-file", "/p", "--class", "C", "local:///x.py", "--out", "a b"]
    words = entrypoint.command(["driver", *given], DRIVER)
    assert words[0] == "/opt/spark/bin/spark-submit"
    assert "spark.driver.bindAddress=10.1.2.3" in words
    assert words[-9:] == ["--deploy-mode", "client", *given]


def test_executor_gets_its_java_options_unsplit_and_in_numeric_order() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Done=a b {number}" for number in (10, 2, 0)}
    words = entrypoint.command(["executor"], EXECUTOR | options | {"SPARK_JAVA_OPT_X": "-no"})
    assert words[:5] == ["java", "-Done=a b 0", "-Done=a b 2", "-Done=a b 10", "-Xmx512m"]
    assert words[words.index("--hostname") + 1] == "10.1.2.4"
    assert words[words.index("--podName") + 1] == "some-exec-3"


def test_extra_class_path_of_users_follows_spark_jars() -> None:
    more = {"SPARK_CONF_DIR": "/conf", "SPARK_CLASSPATH": "/first/*", "SPARK_EXTRA_CLASSPATH": "/last/*"}
    words = entrypoint.command(["executor"], EXECUTOR | more)
    assert words[words.index("-cp") + 1] == "/conf:/first/*:/opt/spark/jars/*:/last/*"
    plain = entrypoint.command(["executor"], EXECUTOR)
    assert plain[plain.index("-cp") + 1] == "/opt/spark/conf:/opt/spark/jars/*"


@pytest.mark.parametrize("missing", sorted(EXECUTOR))
def test_missing_variable_is_named(missing: str) -> None:
    with pytest.raises(entrypoint.MissingError, match=missing):
        entrypoint.command(["executor"], {name: value for name, value in EXECUTOR.items() if name != missing})


def test_other_commands_run_unchanged_and_no_command_prints_help() -> None:
    given = ["delaymq-spark", "report", "--store", "/s"]
    assert entrypoint.command(given, {}) == given
    assert entrypoint.command([], {}) == ["delaymq-spark", "--help"]


def test_signals_reach_the_program_because_it_replaces_the_process() -> None:
    script = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = [sys.executable, entrypoint.__file__, sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM


def test_command_that_cannot_run_is_reported_in_one_line(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    for given, said in (["executor"], "SPARK_HOME is not set"), ([str(tmp_path / "none")], "cannot be run: No such"):
        command = [sys.executable, entrypoint.__file__, *given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)
        assert done.returncode == entrypoint.EXIT_USAGE
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
