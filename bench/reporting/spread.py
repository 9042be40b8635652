"""Statistics of the samples of a row: median and range, their text, and the ratios of pairs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

NO_VALUE = "–"
DASH = "–"
"""The separator of a range. Figures are not negative."""

Figure = Callable[[float], str]
"""A function that returns a value as text."""


@dataclass(frozen=True)
class Spread:
    """Median of samples, and their smallest and largest value; without a range if there is only one sample."""

    median: float
    range: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Collection[float]) -> Spread | None:
        """Return the spread of these samples; None if there are none."""
        if not values:
            return None
        return cls(statistics.median(values), (min(values), max(values)) if len(values) > 1 else None)

    @property
    def excludes_one(self) -> bool:
        """Whether all samples, at least two, are above 1 or all are below 1."""
        return self.range is not None and (self.range[0] > 1 or self.range[1] < 1)


def ratios(values: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Return the values divided by those of the base, for each pair with both; both map pairs to values."""
    return [values[pair] / base[pair] for pair in sorted(values.keys() & base.keys()) if base[pair]]


def number(value: float) -> str:
    """Return a measured value with about three digits. The text of the value that `value_of` returns is the same."""
    if round(abs(value), 1) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if round(abs(value), 2) >= 10 else f"{value:.2f}"


def ratio(value: float) -> str:
    return f"{value:.2f}"


def cells(spread: Spread | None, figure: Figure) -> list[str]:
    """Return the cells of the median and of the range."""
    if spread is None:
        return [NO_VALUE, ""]
    return [figure(spread.median), DASH.join(map(figure, spread.range)) if spread.range else ""]


def value_of(text: str) -> float:
    """Return the value of a text of `number` or `ratio`; ValueError if it is neither."""
    return float(text.replace(",", ""))


def spread_of(median: str, range_text: str) -> Spread | None:
    """Return the spread of two texts of `cells`; ValueError if they have another form."""
    if median == NO_VALUE:
        return None
    if not range_text:
        return Spread(value_of(median))
    low, high = range_text.split(DASH)
    return Spread(value_of(median), (value_of(low), value_of(high)))
