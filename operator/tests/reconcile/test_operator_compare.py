"""Comparison of an observed object with the desired one."""

import pytest
from delaymq_operator.reconcile.broker.apply.compare import covers
from delaymq_operator.reconcile.ports import Manifest


@pytest.mark.parametrize(
    ("live", "desired"),
    [
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"requests": {"memory": "1Gi"}}, {"requests": {"memory": "1024Mi"}}),
        ({"limits": {"cpu": "500m"}}, {"limits": {"cpu": 0.5}}),
        ({"emptyDir": {"sizeLimit": "64Mi"}}, {"emptyDir": {"sizeLimit": "65536Ki"}}),
        ({}, {"emptyDir": {}, "list": [], "text": "", "none": None}),
        ({"env": [{"name": "b", "value": "2"}, {"name": "a", "value": "1"}]}, {"env": [{"name": "a", "value": "1"}]}),
        ({"args": ["x", "y"]}, {"args": ["x", "y"]}),
        ({"tolerations": [{"key": "k", "operator": "Equal"}]}, {"tolerations": [{"key": "k"}]}),
    ],
)
def test_additional_fields_and_equivalent_values_are_ignored(live: Manifest, desired: Manifest) -> None:
    assert covers(live, desired)


@pytest.mark.parametrize(
    ("live", "desired"),
    [
        ({"a": 1}, {"a": 2}),
        ({}, {"a": False}),
        ({"a": 0}, {"a": False}),
        ({"a": "1"}, {"a": 1}),
        ({"labels": {"x": "1Gi"}}, {"labels": {"x": "1024Mi"}}),
        ({"args": ["x", "y"]}, {"args": ["y", "x"]}),
        ({"args": ["x", "y"]}, {"args": ["x"]}),
        ({"env": [{"name": "a", "value": "2"}]}, {"env": [{"name": "a", "value": "1"}]}),
        ({"env": []}, {"env": [{"name": "a"}]}),
        ({"a": "text"}, {"a": {"b": 1}}),
        (None, {"a": 1}),
    ],
)
def test_difference_is_detected(live: Manifest | None, desired: Manifest) -> None:
    assert not covers(live, desired)
