"""What is remembered between passes goes with what it is about."""

from delaymq_operator.reconcile.context import Key, Memory


class Note:
    """Something remembered."""


def test_what_is_remembered_of_something_that_is_gone_is_dropped_and_of_others_is_kept() -> None:
    memory = Memory()
    there, gone, never = (Key("Broker", "ns", name) for name in ("there", "gone", "never"))
    notes = {key: memory.of(key, Note) for key in (there, gone, never)}
    memory.of(gone, list)
    memory.forget_absent(lambda key: key == there)
    assert memory.of(there, Note) is notes[there]
    assert memory.of(gone, Note) is not notes[gone]
    assert memory.of(never, Note) is not notes[never]
    assert memory.of(gone, list) == []
