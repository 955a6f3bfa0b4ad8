"""Every row of five other Proxmox servers has a native call here that does the same, looked at beside the product."""

from importlib import import_module

import pytest

from tests.coverage.rows import NOT_ASKED_FOR, SYSTEMS, run, seed_rows
from tests.driving import rig

TABLE = {system: import_module(f"tests.coverage.{system}") for system in SYSTEMS}
MAPPED = [(system, row) for system, part in TABLE.items() for row in part.ROWS]
PARAMS = {
    (row["system"], row["tool"]): {name: required for name, (_, required, _) in row["params"].items()}
    for row in seed_rows()
}

COUNTS = {"brynnjocelyn": 29, "bsahane": 53, "gilby125": 55, "solomonneas": 42, "washyu": 49}


def test_no_row_is_missing_and_none_is_there_twice():
    for system, part in TABLE.items():
        covered = [row.tool for row in part.ROWS]
        assert len(covered) == len(set(covered)), system
        assert set(covered) == {tool for name, tool in PARAMS if name == system}, system


def test_every_row_of_every_system_is_counted():
    assert {system: len(part.ROWS) for system, part in TABLE.items()} == COUNTS


@pytest.mark.parametrize(("system", "row"), MAPPED, ids=[f"{system}-{row.tool}" for system, row in MAPPED])
def test_every_parameter_of_a_row_is_used_or_explained(system, row):
    params = PARAMS[system, row.tool]
    assert set(row.given) <= set(params)
    assert {name for name, required in params.items() if required} <= set(row.given)
    used = row.uses if callable(row.calls) else {name for call in row.calls for name in call.uses}
    assert set(params) - used - set(NOT_ASKED_FOR) - set(row.without) == set()
    assert used <= set(params)
    assert set(row.without) <= set(params) - used


# The same rows are tried by those systems' own tools in tests/compat; here it is every one of them by hand.
@pytest.mark.anyio
@pytest.mark.thorough
@pytest.mark.parametrize(("system", "row"), MAPPED, ids=[f"{system}-{row.tool}" for system, row in MAPPED])
async def test_a_native_call_does_what_the_row_promises(tmp_path, system, row):
    if row.home is not None:
        async with row.home(tmp_path) as home:
            return await run(home.quorate, row, home)
    async with rig(tmp_path) as quorate:
        return await run(quorate, row)
