"""The operator's memory between reconciliations."""

from delaymq_operator.reconcile.context import Key, Memory


class Note:
    """A remembered value."""


def test_memory_of_absent_objects_is_dropped_and_of_others_kept() -> None:
    memory = Memory()
    there, gone, never = (Key("Broker", "ns", name) for name in ("there", "gone", "never"))
    notes = {key: memory.of(key, Note) for key in (there, gone, never)}
    memory.of(gone, list)
    memory.forget_absent(lambda key: key == there)
    assert memory.of(there, Note) is notes[there]
    assert memory.of(gone, Note) is not notes[gone]
    assert memory.of(never, Note) is not notes[never]
    assert memory.of(gone, list) == []
