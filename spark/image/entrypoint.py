#!/usr/bin/env python3.11
"""Entry point of the Spark image: starts Spark's driver or executor on Kubernetes, or the given command.

Spark starts its containers with the arguments `driver …` or `executor` and passes all other data in the environment.
The program replaces this process, so that it receives signals. Only the standard library is required.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

EXECUTOR_CLASS = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Option of the executor → variable in which Spark passes its value."""
JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
EXIT_USAGE = 2


class MissingError(Exception):
    """A variable that Spark sets is missing."""


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command line to execute. Raises MissingError."""
    if not arguments:
        return ["delaymq-spark", "--help"]
    if arguments[0] == "driver":
        return _driver(arguments[1:], environment)
    if arguments[0] == "executor":
        return _executor(environment)
    return list(arguments)


def _driver(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    address = _needed(environment, "SPARK_DRIVER_BIND_ADDRESS")
    settings = {"spark.driver.bindAddress": address, "spark.executorEnv.SPARK_DRIVER_POD_IP": address}
    words = [f"{_needed(environment, 'SPARK_HOME')}/bin/spark-submit"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    return [*words, "--deploy-mode", "client", *arguments]


def _executor(environment: Mapping[str, str]) -> list[str]:
    home = _needed(environment, "SPARK_HOME")
    numbered = [(int(found[1]), name) for name in environment if (found := JAVA_OPTION.fullmatch(name))]
    java_options = [environment[name] for _, name in sorted(numbered)]
    places = [
        environment.get("SPARK_CONF_DIR") or f"{home}/conf",
        environment.get("SPARK_CLASSPATH"),
        f"{home}/jars/*",
        environment.get("SPARK_EXTRA_CLASSPATH"),
    ]
    words = ["java", *java_options, f"-Xmx{_needed(environment, 'SPARK_EXECUTOR_MEMORY')}"]
    words += ["-cp", ":".join(place for place in places if place), EXECUTOR_CLASS]
    for option, variable in EXECUTOR_OPTIONS.items():
        words += [option, _needed(environment, variable)]
    return words


def _needed(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise MissingError(
            f"{name} is not set: only Spark on Kubernetes, which sets it, can use the arguments `driver` and `executor`"
        )
    return value


def main() -> int:
    """Replace this process with the program; return only if it cannot be started."""
    try:
        words = command(sys.argv[1:], os.environ)
        os.execvp(words[0], words)
    except MissingError as error:
        print(f"entrypoint: {error}", file=sys.stderr)
    except OSError as error:
        print(f"entrypoint: {words[0]} cannot be run: {error.strerror}", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
