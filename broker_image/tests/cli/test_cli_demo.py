"""`delaymq demo`, with the commands of README."""

import json
import re
import subprocess
from pathlib import Path

from delaymq_testing.cli_running import called

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()


def test_makefile_has_the_readmes_targets_and_demo_runs_the_command() -> None:
    targets = sorted(set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE)))
    assert {"demo", "setup", "test"} <= set(targets)
    for target in targets:
        planned = subprocess.run(
            ["make", "--no-print-directory", "--dry-run", target],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert planned.returncode == 0, planned.stderr
        assert target != "demo" or planned.stdout.splitlines()[-1] == ".venv/bin/delaymq demo"


def test_demo_succeeds_and_leaves_its_store_in_the_given_folder(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    command = ["demo", "--keep", str(kept)]
    done = called(*command)
    assert "kill -9" in done.out
    assert "12 sent, 12 arrived, 0 lost, 0 twice, 0 early" in done.out, done.out + done.err
    # On a machine that others use too the broker may be back late, and the demo tells.
    said = "all messages arrived once and on time: " if done.code == 0 else " more than 1000 ms late"
    assert said in done.out, done.out + done.err
    inspected = json.loads(called("store", "inspect", str(kept / "store"), "--json").out)
    assert inspected["topics"]["Reminders"] == {"timed copy": 12}
    again = called(*command)
    assert again.code == 2
    assert "specify a folder that does not exist yet" in again.err
