"""Advice names calls that its reader can make: tools that are listed, in the form of the surface."""

import re
from typing import Any

import pytest
from mcp import Client

from quorate.config import Access, Approval
from quorate.hints import Advice, ToolHint, resolve, tools
from quorate.operations.registry import operations
from quorate.pipeline.caller import Caller, Scope
from quorate.surfaces.compat import SYSTEMS
from quorate.surfaces.server import Server
from tests.rigs.compat_session import surface
from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio

EVERYTHING = Advice("Do something", *(ToolHint(name) for name in operations()))
"""Advice that refers to every operation there is."""
MISSING: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("guest_get", {"guest": "nobody"}),
    "lean": ("pve_read", {"operation": "guest_get", "arguments": {"guest": "nobody"}}),
    "brynnjocelyn": ("get_vm_status", {"node": "pve1", "vmid": 999}),
    "bsahane": ("proxmox-vm-info", {"vmid": 999}),
    "gilby125": ("proxmox_get_vm_status", {"node": "pve1", "vmid": "999"}),
    "solomonneas": ("proxmox_get_resource", {"vmid": 999}),
    "washyu": ("get_proxmox_vm_status", {"node": "pve1", "vmid": 999}),
}
REACH = [
    (Access.READ, ("all",)),
    (Access.OPERATE, ("all",)),
    (Access.ADMIN, ("guests",)),
    (Access.ADMIN, ("cluster", "snapshots")),
]


def words(text):
    return set(re.findall(r"[\w-]+", text))


def rendered(served, caller=None):
    (only,) = served.app.surfaces()
    return resolve({"deep": [{"down": EVERYTHING}]}, only.naming(caller or Caller()))["deep"][0]["down"]


class Defective:
    """A surface with a defect in every call."""

    def __init__(self, surface):
        self.knows, self.tools, self.naming = surface.knows, surface.tools, surface.naming
        self.instructions = surface.instructions

    async def call(self, *_):
        raise ZeroDivisionError


async def listed(served):
    return {tool.name for tool in (await served.client.list_tools()).tools}


@pytest.mark.parametrize(("access", "toolsets"), REACH)
async def test_native_advice_names_exactly_the_tools_that_are_listed(tmp_path, access, toolsets):
    async with rig(tmp_path, access=access, toolsets=toolsets) as quorate:
        offered = await listed(quorate)
        named = words(rendered(quorate)) & set(operations())
        assert named <= offered
        assert all(operations()[name].risk_of for name in offered - named)  # it depends on their arguments


async def test_native_advice_follows_the_scope_of_a_token(tmp_path):
    async with rig(tmp_path, access=Access.ADMIN) as quorate:
        caller = Caller(subject="ci", scope=Scope(access=Access.READ, toolsets=frozenset({"tasks"})))
        assert words(rendered(quorate, caller)) & set(operations()) == {"task_get", "task_list", "task_wait"}


@pytest.mark.parametrize("access", Access)
async def test_lean_advice_is_a_call_of_a_tool_that_is_listed(tmp_path, access):
    async with rig(tmp_path, access=access, more={"surfaces": ("lean",)}) as quorate:
        text = rendered(quorate)
        runners = set(re.findall(r"(\w+) operation=", text))
        assert runners == await listed(quorate) - {"pve_find"}
        (only,) = quorate.app.surfaces()
        name = only.naming(Caller())
        assert name(tools.guest_list) == "pve_read operation=guest_list"
        power = 'pve_change operation=guest_power arguments={"guest":105,"action":"start"}'
        assert name(tools.guest_power(guest=105, action="start")) == (None if access is Access.READ else power)
        assert name(tools.guest_stop) == ("pve_destroy operation=guest_stop" if access is Access.ADMIN else None)


@pytest.mark.parametrize("name", SYSTEMS)
async def test_drop_in_advice_names_only_the_tools_of_that_system(tmp_path, name):
    async with surface(tmp_path, name) as served:
        text = rendered(served)
        offered = await listed(served)
        assert words(text) & offered
        assert not words(text) & (set(operations()) - offered)


@pytest.mark.parametrize("name", MISSING)
async def test_a_refusal_names_only_tools_that_are_listed(tmp_path, name):
    async with surface(tmp_path, name, access=Access.READ) as served:
        tool, arguments = MISSING[name]
        answer = await served.call(tool, **arguments)
        assert answer.is_error
        shown = words(re.sub(r"operation=\w+", "", text_of(answer)))
        assert not shown & (set(operations()) - await listed(served) - {tool})


@pytest.mark.parametrize("name", MISSING)
async def test_a_defect_is_reported_in_the_words_of_the_surface(tmp_path, name):
    async with surface(tmp_path, name) as served:
        (only,) = served.app.surfaces()
        async with Client(Server(served.app.pipeline, [Defective(only)])) as client:
            text = text_of(await client.call_tool(*MISSING[name]))
        assert "failed inside Quorate (ZeroDivisionError)" in text
        expected = only.naming(Caller())(tools.task_list)
        assert text.endswith(f"Check whether anything was changed: {expected}." if expected else "was changed.")


async def test_a_secret_in_the_arguments_of_advice_is_hidden(tmp_path):
    async with rig(tmp_path, access=Access.READ, approval=Approval.NONE) as quorate:
        await quorate.facts("cluster_status")
        secret = quorate.sim.token_secret
        advice = quorate.app.pipeline.sanitize({"next": Advice(f"Use {secret}", tools.task_wait(task=secret))})["next"]
        assert secret not in str(advice)
        assert str(advice) == "Use ***: task_wait task=***"
