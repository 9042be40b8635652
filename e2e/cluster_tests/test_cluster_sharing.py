"""How the processes of a run share one cluster (e2e/kind/sharing.py)."""

import threading
from pathlib import Path

import pytest
from cluster.errors import ClusterError
from kind import sharing
from kind.sharing import Run

WAIT_S = 10.0
# Long enough for a thread that does not wait to come past the lock.
PAUSE_S = 0.5


@pytest.fixture(autouse=True)
def one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "this run")


def test_what_the_first_process_prepared_is_known_to_the_next_one() -> None:
    with Run().preparing() as facts:
        assert facts == {}
        facts["cluster"] = "lab"
    with Run().preparing() as facts:
        assert facts == {"cluster": "lab"}


def test_what_failed_is_prepared_again() -> None:
    def fail() -> None:
        with Run().preparing() as facts:
            facts["cluster"] = "lab"
            raise ClusterError("no node is ready")

    with pytest.raises(ClusterError):
        fail()
    with Run().preparing() as facts:
        assert facts == {}


def test_facts_of_another_run_and_of_a_run_that_ended_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run()
    with first.preparing() as facts:
        facts["cluster"] = "lab"
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "another run")
    with Run().preparing() as facts:
        assert facts == {}
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "this run")
    with first.preparing() as facts:
        facts["cluster"] = "lab"
    first.wait_for_others()
    with Run().preparing() as facts:
        assert facts == {}


def test_the_cluster_stays_until_the_last_process_has_left() -> None:
    ours, other = Run(), Run()
    waiting = threading.Thread(target=ours.wait_for_others)
    waiting.start()
    waiting.join(PAUSE_S)
    assert waiting.is_alive()
    other.leave()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def test_a_test_that_runs_alone_waits_for_others_and_others_for_it() -> None:
    beside = [sharing.turn(alone=False), sharing.turn(alone=False)]
    order = []

    def run_alone() -> None:
        with sharing.turn(alone=True):
            order.append("alone")
            later.start()
            later.join(PAUSE_S)
            order.append("alone ends")

    def run_beside() -> None:
        with sharing.turn(alone=False):
            order.append("beside")

    alone, later = threading.Thread(target=run_alone), threading.Thread(target=run_beside)
    alone.start()
    beside[0].close()
    alone.join(PAUSE_S)
    assert order == []
    beside[1].close()
    alone.join(WAIT_S)
    later.join(WAIT_S)
    assert order == ["alone", "alone ends", "beside"]
