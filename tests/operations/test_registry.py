"""A tool is declared once: everything else that shows it is derived from its declaration."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from tools.docs import REFERENCE as TOOLS_PAGE
from tools.docs import RISKS as RISKS_PAGE
from tools.docs import SNAPSHOTS, generated

import quorate.operations
from quorate.cli.tool_help import explain_native
from quorate.config import Access
from quorate.operations import registry
from quorate.surfaces.tool_search import Finder
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

DECLARATION = '''
    """Weather above the cluster."""

    from quorate.operations.registry import Risk, operation
    from quorate.pve.cluster import Cluster


    @operation(risk=Risk.READ, search_words="umbrella rain sunshine", example="city=Vienna")
    async def forecast_get(pve: Cluster, city: str, days: int = 1) -> dict[str, object]:
        """Forecast for the city that the cluster is in."""
        return {"city": city, "days": days, "cluster": pve.name}
'''


@pytest.fixture
def forecast_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[registry.Operation]:
    """An operation of a new toolset; its one file is all that was written for it."""
    folder = tmp_path / "operations"
    folder.mkdir()
    (folder / "weather.py").write_text(dedent(DECLARATION).lstrip())
    monkeypatch.setattr(quorate.operations, "__path__", [*quorate.operations.__path__, str(folder)])
    monkeypatch.setitem(registry.EVERY, "weather", "forecasts")
    try:
        yield registry.operations(("weather",))["forecast_get"]
    finally:
        registry._operations.pop("forecast_get", None)
        registry._load.cache_clear()
        sys.modules.pop("quorate.operations.weather", None)
        vars(quorate.operations).pop("weather", None)


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


def test_every_tool_is_found_in_the_source_of_its_own_module_alone():
    modules = [module for toolset in registry.EVERY for module in registry._modules(toolset)]
    for tool in registry.operations().values():
        declaring = [module for module in modules if registry._may_declare(module, tool.name)]
        assert declaring == [tool.function.__module__]
