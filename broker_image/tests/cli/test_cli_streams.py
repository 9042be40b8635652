"""Standard streams that are closed or full: one sentence or silence, no stack trace."""

import subprocess
import sys

import pytest

DELAYMQ = f"{sys.executable} -m delaymq"


def in_shell(line: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    return done


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_stream_is_silent(closed: str) -> None:
    done = in_shell(f"{DELAYMQ} config keys maxMessageSize {closed}")
    assert done.returncode == 0
    assert ("1024" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_unanswerable_prompt_means_no(tmp_path: object) -> None:
    contexts = f"DELAYMQ_CONFIG={tmp_path}/contexts.toml"
    assert in_shell(f"{contexts} {DELAYMQ} context set dev --http 127.0.0.1:8080").returncode == 0
    done = in_shell(f"{contexts} {DELAYMQ} context delete dev <&-")
    assert done.returncode == 2
    assert "--yes" in done.stderr


@pytest.mark.parametrize("form", ["", "--json"])
def test_full_disk_behind_the_output_is_reported(form: str) -> None:
    done = in_shell(f"{DELAYMQ} config keys {form} > /dev/full")
    assert done.returncode == 1
    assert "cannot write the output: No space left" in done.stderr
