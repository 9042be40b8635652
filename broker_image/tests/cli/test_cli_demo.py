"""`delaymq demo`, as a person tries it first."""

import json
from pathlib import Path

from cli_running import called


def test_the_demo_ends_well_and_leaves_its_store_where_it_was_told(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = called("demo", "--keep", str(kept))
    assert "kill -9" in done.out
    assert "12 sent, 12 arrived, 0 lost, 0 twice, 0 early" in done.out, done.out + done.err
    # On a machine that others use too the broker may be back late, and the demo tells.
    said = "everything arrived once and on time: " if done.code == 0 else " more than 1000 ms late"
    assert said in done.out, done.out + done.err
    inspected = json.loads(called("store", "inspect", str(kept / "store"), "--json").out)
    assert inspected["topics"]["Reminders"] == {"delivered copy": 12}
    again = called("demo", "--keep", str(kept))
    assert again.code == 1
    assert "give a folder that is not there yet" in again.err
