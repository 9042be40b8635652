import re
import subprocess
from pathlib import Path

import pytest
from cluster.dockerfiles import digest_of, read_stages, sources_of
from cluster.errors import ClusterError
from cluster.paths import REPOSITORY_PATH

TEXT = """
ARG BASE_IMAGE=python:3.11
FROM ${BASE_IMAGE} AS build
COPY --chown=1:1 requirements/a.txt \\
     requirements/
FROM build AS build-broker
COPY broker broker
FROM build AS build-operator
COPY operator/pyproject.toml operator/src operator/
# COPY nothing at-all
FROM ${BASE_IMAGE} as broker
COPY --from=build-broker /opt /opt
FROM ${BASE_IMAGE} AS operator
COPY --from=build-operator /opt /opt
"""


def test_image_sources_are_exactly_those_copied_by_stages_that_it_uses() -> None:
    assert sources_of(TEXT, "broker") == ["broker", "requirements/a.txt"]
    assert sources_of(TEXT, "operator") == ["operator/pyproject.toml", "operator/src", "requirements/a.txt"]


def test_stages_keep_their_order_and_bases() -> None:
    assert [(name, stage.base) for name, stage in read_stages(TEXT).items()][:2] == [
        ("build", "${BASE_IMAGE}"),
        ("build-broker", "build"),
    ]


def test_unknown_target_is_reported_with_available_targets() -> None:
    with pytest.raises(ClusterError, match="no target spark; it has build, build-broker"):
        sources_of(TEXT, "spark")


def test_image_sources_exist_and_only_the_operator_image_contains_operator_code() -> None:
    text = (REPOSITORY_PATH / "Dockerfile").read_text()
    broker, operator = sources_of(text, "broker"), sources_of(text, "operator")
    assert "broker_image/src" in broker
    assert "operator/src" in operator
    assert "operator/src" not in broker
    assert digest_of(REPOSITORY_PATH, broker) != digest_of(REPOSITORY_PATH, operator)


def test_library_stages_do_not_depend_on_source_code() -> None:
    text = (REPOSITORY_PATH / "Dockerfile").read_text()
    libraries = [name for name in read_stages(text) if name.endswith("-libraries")]
    assert libraries == ["broker-libraries", "operator-libraries", "spark-libraries"]
    for name in libraries:
        assert not [path for path in sources_of(text, name) if "/src" in path], name


def test_spark_image_is_built_from_analytics_and_broker_package() -> None:
    text = (REPOSITORY_PATH / "Dockerfile").read_text()
    spark = sources_of(text, "spark")
    assert {"spark/src", "spark/image/entrypoint.py", "spark/image/leave-out.sh", "broker_image/src"} <= set(spark)
    assert "requirements/spark-image.txt" in spark
    assert not {"operator/src", "requirements/operator.txt"} & set(spark)
    assert digest_of(REPOSITORY_PATH, spark)


def test_dockerignore_admits_exactly_the_files_that_the_dockerfile_copies() -> None:
    text = (REPOSITORY_PATH / "Dockerfile").read_text()
    copied = {path for target in ("broker", "operator", "spark") for path in sources_of(text, target)}
    lines = (REPOSITORY_PATH / ".dockerignore").read_text().splitlines()
    let_through = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert {
        path for path in copied if not any(path == each or path.startswith(f"{each}/") for each in let_through)
    } == set()
    assert {
        each for each in let_through if not any(path == each or path.startswith(f"{each}/") for path in copied)
    } == set()


@pytest.mark.parametrize(
    ("exit_code", "allowed", "expected"), [(0, "0", 0), (1, "0", 1), (1, "", 1), (127, "0", 1), (1, "1", 0)]
)
def test_image_build_rejects_interpreter_without_pgo_unless_allowed(
    tmp_path: Path, exit_code: int, allowed: str, expected: int
) -> None:
    stage = (REPOSITORY_PATH / "Dockerfile").read_text().split(" AS runtime\n")[1].split("\nFROM ")[0]
    assert "\nCOPY broker_image/src/delaymq/interpreter.py /tmp/interpreter.py\n" in stage
    check = re.search(r'\[ "\$ALLOW_UNOPTIMIZED_PYTHON".*?\};', stage.replace("\\\n", ""), re.DOTALL)
    assert check is not None
    python = tmp_path / "python3.11"
    python.write_text(f'#!/bin/sh\necho "$@"\nexit {exit_code}\n')
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ALLOW_UNOPTIMIZED_PYTHON": allowed}
    run = subprocess.run(
        ["/bin/sh", "-ec", check[0]], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == expected
    assert run.stdout == ("" if allowed == "1" else "-I -B /tmp/interpreter.py --require-optimized\n")
    assert ("--build-arg ALLOW_UNOPTIMIZED_PYTHON=1" in run.stderr) == (expected == 1)


def test_bytecode_files_do_not_change_image_tags(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    before = digest_of(tmp_path, ["src"])
    (tmp_path / "src" / "__pycache__").mkdir()
    (tmp_path / "src" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"x")
    assert digest_of(tmp_path, ["src"]) == before
    (tmp_path / "src" / "a.py").write_text("2")
    assert digest_of(tmp_path, ["src"]) != before


def test_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="nowhere"):
        digest_of(tmp_path, ["nowhere"])
