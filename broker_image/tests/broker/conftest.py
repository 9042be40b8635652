from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delaymq.store.message_store import MessageStore
from delaymq_testing.broker.guarded import RULES, Guarded
from delaymq_testing.broker.harness import Harness
from delaymq_testing.broker.transactions import Transacting


@pytest.fixture(autouse=True)
def unhurried_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of deliveries ends when its budget is used up, however slow the test machine is."""
    monkeypatch.setattr("delaymq.broker.delivery.hand_over._LONGEST_STEP_S", 600.0)


@pytest.fixture
def open_harness(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    """Opens a broker with changed settings; closed at the end."""
    opened: list[Harness] = []

    def open_one(**changes: Any) -> Harness:
        harness = Harness(tmp_path / str(len(opened)), **changes)
        opened.append(harness)
        return harness

    yield open_one
    for harness in opened:
        harness.broker.close()


@pytest.fixture
def harness(open_harness: Callable[..., Harness]) -> Harness:
    """A broker with default settings and small files."""
    return open_harness()


@pytest.fixture
def open_transacting(tmp_path: Path) -> Iterator[Callable[..., Transacting]]:
    """The same with producers of transactions; closed at the end."""
    opened: list[Transacting] = []

    def open_one(**changes: Any) -> Transacting:
        opened.append(Transacting(tmp_path / str(len(opened)), **changes))
        return opened[-1]

    yield open_one
    for harness in opened:
        harness.broker.close()


@pytest.fixture
def guarded(open_harness: Callable[..., Harness], tmp_path: Path) -> Guarded:
    """A broker with the accounts of RULES."""
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(RULES)
    return Guarded(open_harness(acl_enable=True, acl_config_path=str(path)), path)


@pytest.fixture
def closed_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Releases all stores that a test has opened, also through brokers."""
    opened: list[MessageStore] = []
    open_store = MessageStore.open

    def open_one(*given: Any, **named: Any) -> MessageStore:
        opened.append(open_store(*given, **named))
        return opened[-1]

    monkeypatch.setattr(MessageStore, "open", open_one)
    yield
    for store in opened:
        store.abandon()
