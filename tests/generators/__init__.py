"""Arguments for every operation that changes something, drawn from a simulated world by hypothesis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pve_simulator.world import World
from quorate.operations.registry import Operation
from tests.generators.combined_arguments import combined_arguments
from tests.generators.values import Strategy, by_name, by_type

EXAMPLES = 12
EXAMPLES_PER_PARAMETER = 5
MOST_EXTRAS = 2
"""Further optional arguments per example; the more, the likelier that two exclude each other."""

ONLY_TOGETHER = {("sdn_change", "options"), ("sdn_change", "remove")}
"""Free-form options that depend on other arguments: they come with matching ones."""


def examples(operation: Operation, world: World, image: Path) -> Iterator[dict[str, Any]]:
    """Valid-looking arguments: the required ones, with each optional one in turn and a few others."""
    values = _Values(world, image)
    schema = operation.schema()
    optional = [name for name in schema["properties"] if (operation.name, name) not in ONLY_TOGETHER]
    optional = [name for name in optional if name not in ("dry_run", "wait", "safely")]
    yield from values.bases(operation)
    yield from _draw(_arguments(operation, values, None, optional), EXAMPLES)
    for name in optional:
        yield from _draw(_arguments(operation, values, name, optional), EXAMPLES_PER_PARAMETER)


def _draw(strategy: Strategy, count: int) -> list[dict[str, Any]]:
    drawn: list[dict[str, Any]] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(arguments: dict[str, Any]) -> None:
        if arguments not in drawn:
            drawn.append(arguments)

    collect()
    return drawn


@st.composite
def _arguments(draw: st.DrawFn, operation: Operation, values: _Values, about: str | None, optional: list[str]) -> Any:
    base = draw(values.base(operation))
    extras = draw(st.lists(st.sampled_from(optional), max_size=MOST_EXTRAS, unique=True)) if optional else []
    chosen = [name for name in {*extras, *([about] if about else [])} if name not in base]
    return {**base, **{name: draw(values.of(operation, name)) for name in sorted(chosen)}}


class _Values:
    """Strategies by operation and by the name of the parameter."""

    def __init__(self, world: World, image: Path) -> None:
        self._named = by_name(world, image)
        self._bases = combined_arguments(world, image)

    def bases(self, operation: Operation) -> list[dict[str, Any]]:
        return self._bases.get(operation.name, [])

    def base(self, operation: Operation) -> Strategy:
        """Consistent required arguments of an operation."""
        if operation.name in self._bases:
            return st.sampled_from(self._bases[operation.name])
        required = operation.schema().get("required", [])
        return st.fixed_dictionaries({name: self.of(operation, name) for name in required})

    def of(self, operation: Operation, name: str) -> Strategy:
        for key in (f"{operation.name}.{name}", name):
            if key in self._named:
                return self._named[key]
        return by_type(operation.schema()["properties"][name])
