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

# system: rows, rows with a native call, rows that belong to a later issue
COUNTS = {
    "brynnjocelyn": (29, 29, 0),
    "bsahane": (53, 53, 0),
    "gilby125": (55, 55, 0),
    "solomonneas": (42, 42, 0),
    "washyu": (49, 49, 0),
}


def test_no_row_is_missing_and_none_is_there_twice():
    for system, part in TABLE.items():
        covered = [row.tool for row in part.ROWS] + list(part.LATER)
        assert len(covered) == len(set(covered)), system
        assert set(covered) == {tool for name, tool in PARAMS if name == system}, system


def test_the_rows_that_belong_to_a_later_issue_are_counted():
    assert {
        system: (len(part.ROWS) + len(part.LATER), len(part.ROWS), len(part.LATER)) for system, part in TABLE.items()
    } == COUNTS


@pytest.mark.parametrize(("system", "row"), MAPPED, ids=[f"{system}-{row.tool}" for system, row in MAPPED])
def test_every_parameter_of_a_row_is_used_or_explained(system, row):
    params = PARAMS[system, row.tool]
    assert set(row.given) <= set(params)
    assert {name for name, required in params.items() if required} <= set(row.given)
    used = row.uses if callable(row.calls) else {name for call in row.calls for name in call.uses}
    assert set(params) - used - set(NOT_ASKED_FOR) - set(row.without) == set()
    assert used <= set(params)
    assert set(row.without) <= set(params) - used


@pytest.mark.anyio
@pytest.mark.parametrize(("system", "row"), MAPPED, ids=[f"{system}-{row.tool}" for system, row in MAPPED])
async def test_a_native_call_does_what_the_row_promises(tmp_path, system, row):
    if row.home is not None:
        async with row.home(tmp_path) as home:
            return await run(home.quorate, row, home)
    async with rig(tmp_path) as quorate:
        return await run(quorate, row)
