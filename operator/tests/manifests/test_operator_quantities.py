"""Kubernetes resource quantities."""

import pytest
from delaymq_operator.manifests import parse_quantity, same_quantity
from delaymq_operator.manifests.quantities import canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [("1Gi", "1024Mi"), ("1", "1000m"), (2, "2"), ("0.5", "500m"), ("1k", "1000"), ("1e3", "1k"), ("1E", "1000P")],
)
def test_spellings_of_same_quantity_are_equal(one: int | str, other: str) -> None:
    assert same_quantity(one, other)
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(("one", "other"), [("1Gi", "1G"), ("1m", "1M"), ("1", "1Ki"), ("x", "y"), (None, "1")])
def test_different_quantities_are_not_equal(one: str | None, other: str) -> None:
    assert not same_quantity(one, other)


@pytest.mark.parametrize("text", ["", "ten", "1 Gi", "1Gb", "--1", "9" * 65])
def test_invalid_quantity_is_rejected_with_example(text: str) -> None:
    with pytest.raises(ValueError, match="use a value like"):
        parse_quantity(text)


def test_quantities_are_ordered_by_size() -> None:
    assert parse_quantity("900Mi") < parse_quantity("1Gi") < parse_quantity("1.1Gi")
