"""A tool is declared once: everything else that shows it is derived from its declaration."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from tools.docs import REFERENCE as TOOLS_PAGE
from tools.docs import RISKS as RISKS_PAGE
from tools.docs import SNAPSHOTS, generated

import quorate.tools
from quorate.cli.tools import explain_native
from quorate.config import Access
from quorate.operations import registry
from quorate.surfaces.tool_search import Finder
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

DECLARATION = '''
    """Weather above the cluster."""

    from quorate.operations.registry import Risk, operation
    from quorate.pve.cluster import Cluster


    @operation(toolset="weather", risk=Risk.READ, search_words="umbrella rain sunshine", example="city=Vienna")
    async def forecast_get(pve: Cluster, city: str, days: int = 1) -> dict[str, object]:
        """Forecast for the city that the cluster is in."""
        return {"city": city, "days": days, "cluster": pve.name}
'''


@pytest.fixture
def forecast_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[registry.Operation]:
    """An operation of a new toolset; its one file is all that was written for it."""
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "forecasts.py").write_text(dedent(DECLARATION).lstrip())
    monkeypatch.setattr(quorate.tools, "__path__", [*quorate.tools.__path__, str(folder)])
    monkeypatch.setitem(registry.EVERY, "weather", "forecasts")
    monkeypatch.setitem(registry.MODULES, "weather", "tools.forecasts")
    try:
        yield registry.operations(("weather",))["forecast_get"]
    finally:
        registry._operations.pop("forecast_get", None)
        registry._load.cache_clear()
        sys.modules.pop("quorate.tools.forecasts", None)
        vars(quorate.tools).pop("forecasts", None)


async def test_a_new_tool_is_listed_and_can_be_called(forecast_get, tmp_path):
    async with rig(tmp_path, toolsets=("weather",), access=Access.READ) as quorate:
        listed = {tool.name: tool for tool in (await quorate.client.list_tools()).tools}
        assert listed["forecast_get"].description == "Forecast for the city that the cluster is in."
        assert listed["forecast_get"].input_schema["required"] == ["city"]
        assert (await quorate.facts("forecast_get", city="Graz"))["days"] == 1


def test_a_new_tool_is_found_by_its_search_words(forecast_get):
    finder = Finder(registry.operations().values())
    assert finder.find("do I need an umbrella?")[0] is forecast_get


def test_the_help_of_a_new_tool_shows_its_example(forecast_get):
    assert explain_native(forecast_get).endswith("quorate call forecast_get city=Vienna")


def test_the_generated_pages_contain_a_new_tool(forecast_get):
    files = generated()
    assert "### forecast_get" in files[TOOLS_PAGE]
    assert "| `forecast_get` | read | read | Forecast" in files[RISKS_PAGE]
    assert SNAPSHOTS / "forecast_get.json" in files


FIND = "import sys; from quorate.operations.registry import find_operation"


def test_every_tool_is_found_by_its_name_in_a_process_that_has_imported_none():
    program = f"{FIND}; print(find_operation(sys.argv[1]).toolset)"
    for tool in (min(registry.operations([toolset])) for toolset in ("cluster", "tasks", "watch")):
        done = subprocess.run([sys.executable, "-c", program, tool], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == registry.operations()[tool].toolset


def test_finding_a_tool_imports_the_module_of_its_noun_and_no_other_of_its_toolset():
    program = f"{FIND}; find_operation('node_list'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {name.removeprefix("quorate.") for name in done.stdout.split()}
    assert imported & {*registry.MODULES["cluster"].split()} == {"tools.nodes"}
    assert not imported & {*registry.MODULES["hosts"].split(), *registry.MODULES["runs"].split()}


def test_a_tool_is_in_the_file_of_its_noun():
    """`guest_list` is in `guests`, `guest_exec` in `guest_commands`, `run_list` in the package `runs`."""
    for tool in registry.operations().values():
        words = set(re.split(r"[._]", tool.function.__module__.removeprefix("quorate.")))
        nouns = {form for word in tool.name.split("_") for form in (word, f"{word}s", f"{word}es")}
        assert words & nouns, f"{tool.name} is in {tool.function.__module__}"
