"""Arguments of every shape that JSON has, where another one is wanted: refused in plain words, and nothing is sent."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pve_schema.schema import Endpoint
from quorate.operations.registry import HOMELAB, TOOLSETS, Operation, operations
from quorate.surfaces.compat import SYSTEMS
from tests.generators import examples
from tests.generators.population import CONTENT, populate
from tests.generators.read_arguments import read_arguments
from tests.rigs.homelab import house
from tests.rigs.mcp_session import Rig, rig, text_of
from tests.rigs.sweeps import sweep_size

pytestmark = pytest.mark.anyio

OUR_DEFECT = ("failed inside Quorate", "Traceback", "object at 0x", "internal error")
NUMBERS = [0, -1, 1, 10**9, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -0.0, 1e308, 2**64, 10**40]
TEXTS = [
    "",
    " ",
    "0",
    "-1",
    "1e999",
    "NaN",
    "null",
    "true",
    "None",
    "²",
    "\uff11\uff10\uff10",
    "1,2",
    "a=b,c",
    "../..",
    "%00",
    "'\"`$(id)",
]
TEXTS += [
    "\n",
    "\t100",
    "{}",
    "[]",
    "[" * 50,
    "é" * 200,
    "\u202e",
    "🦀",
    "x" * 300,
    "UPID:",
    "pve1/100",
    "100/100",
    ":",
    "=",
    ",",
    "9" * 5000,
    "9" * 400 + "G",
    "9" * 12 + "w",
    "vm:" + "9" * 5000,
    "9999-12-31T23:59-14:00",
]
LEAVES = st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.text(max_size=8))
SHAPES = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.sampled_from(["vmid", "0", "", "a b", "node", "size", "__class__"]), inside, max_size=3)
    ),
    max_leaves=5,
)
FEW = 1


@cache
def drawn() -> list[Any]:
    shapes: list[Any] = [[], {}, [[]], [{}], {"a": []}, [None], True, *NUMBERS, *TEXTS]

    @settings(
        max_examples=400,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(SHAPES)
    def collect(shape: Any) -> None:
        shapes.append(shape)

    collect()
    return shapes


def shapes(count: int, seed: int) -> list[Any]:
    """That many; always the same for a seed."""
    return random.Random(seed).sample(drawn(), count)


def wrong_kind(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether this is a list or an object where neither is wanted."""
    kinds = {schema.get("type"), *(choice.get("type") for choice in schema.get("anyOf", ()))}
    refs = "$ref" in schema or any("$ref" in choice for choice in schema.get("anyOf", ()))
    return (isinstance(value, list) and "array" not in kinds) or (
        isinstance(value, dict) and "object" not in kinds and not refs and kinds != {None}
    )


async def tried(quorate: Rig, tool: str, arguments: Mapping[str, Any], *, hopeless: bool = False) -> list[str]:
    """What is wrong with the answer to such a call."""
    mark = len(quorate.sim.requests)
    answer = await quorate.submit(tool, dict(arguments))
    sent = [request for request in quorate.requests_since(mark) if request[0] != "GET"]
    faults = [word for word in OUR_DEFECT if word in text_of(answer)]
    faults += ["accepted"] if hopeless and not answer.is_error else []
    faults += [f"sent {sent}"] if hopeless and sent else []
    return [f"{tool} {arguments}: {', '.join(faults)}: {text_of(answer)[:300]}"] if faults else []


def base_of(operation: Operation, quorate: Rig, image: Path) -> dict[str, Any]:
    """Arguments that are right."""
    if operation.changes:
        return next(examples(operation, quorate.sim.world, image))
    return read_arguments(operation, quorate.sim.world)[0]


async def every_operation(tmp_path: Path, width: int, *, part: slice = slice(None)) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        await populate(quorate)
        image = tmp_path / "tiny.iso"
        image.write_bytes(CONTENT)
        named = [
            operation
            for operation in operations(TOOLSETS).values()
            if operation.toolset != "inside" and operation.name != "api_call"
        ]
        await all_shapes(
            quorate,
            {operation.name: (operation, base_of(operation, quorate, image)) for operation in named[part]},
            width,
        )


async def every_operation_around(tmp_path: Path, width: int) -> None:
    """Those about hosts, with one host whose SSH server is real."""
    async with house(tmp_path) as home:
        usual = {"host": "nas", "hosts": ["nas"], "command": ["true"], "document": {"name": "x"}, "action": "start"}
        bases = {}
        for operation in operations(HOMELAB).values():
            needed = operation.schema().get("required", ())
            # Only planned: the host is this machine, and nothing may happen to it.
            planned = {"dry_run": True} if operation.changes else {}
            bases[operation.name] = operation, {**planned, **{name: usual.get(name, "x") for name in needed}}
        await all_shapes(home.quorate, bases, width)


async def all_shapes(quorate: Rig, bases: Mapping[str, tuple[Operation, dict[str, Any]]], width: int) -> None:
    faults: list[str] = []
    for number, (tool, (operation, base)) in enumerate(bases.items()):
        schema = operation.schema()["properties"]
        for place, name in enumerate(schema):
            for value in shapes(width, number * 1000 + place):
                arguments = {"wait": 0, **base, name: value} if operation.changes else {**base, name: value}
                faults += await tried(quorate, tool, arguments, hopeless=wrong_kind(schema[name], value))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("part", range(3))
async def test_no_operation_stumbles_over_an_argument_of_another_shape(tmp_path: Path, part: int) -> None:
    await every_operation(tmp_path, FEW, part=slice(part, None, 3))


@pytest.mark.thorough
async def test_no_operation_about_hosts_stumbles_over_an_argument_of_another_shape(tmp_path: Path) -> None:
    await every_operation_around(tmp_path, FEW)


@pytest.mark.parametrize("user", ["\n", "a\tb", "\u0627a", "x" * 2000])
async def test_a_user_name_of_any_shape_gets_a_plain_refusal(tmp_path: Path, user: str) -> None:
    async with house(tmp_path) as home:
        assert await tried(home.quorate, "host_discover", {"host": "nas", "user": user}, hopeless=True) == []


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
async def test_no_operation_stumbles_over_any_shape(tmp_path: Path, part: int) -> None:
    await every_operation(tmp_path, sweep_size(15, 60), part=slice(part, None, 4))


@pytest.mark.thorough
async def test_no_operation_about_hosts_stumbles_over_any_shape(tmp_path: Path) -> None:
    await every_operation_around(tmp_path, sweep_size(8, 30))


PLACES = {"node": "pve1", "storage": "local", "vmid": "108", "snapname": "before", "poolid": "production", "id": "x"}
PLACES |= {
    "userid": "bob@pve",
    "sid": "vm:108",
    "groupid": "family",
    "roleid": "Helper",
    "realm": "pve",
    "iface": "vmbr9",
}


def paths_of(endpoint: Endpoint) -> str:
    text = endpoint.template
    for name, value in PLACES.items():
        text = text.replace("{" + name + "}", value)
    return text


async def every_endpoint(tmp_path: Path, width: int, *, step: int = 1) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        facts = await next(iter(quorate.app.pipeline.sites)).cluster.facts()
        usable = [endpoint for endpoint in facts.endpoints() if "{" not in paths_of(endpoint)]
        faults: list[str] = []
        for number, endpoint in list(enumerate(usable))[::step]:
            names = [name for name in endpoint.parameters if "{" + name + "}" not in endpoint.template]
            for name in random.Random(number).sample(names, min(len(names), width)):
                for value in shapes(width, number):
                    params = {name: value}
                    request = {"method": endpoint.method, "path": paths_of(endpoint), "params": params}
                    waits = {} if endpoint.method == "GET" else {"wait": 0}
                    faults += await tried(quorate, "api_call", {**request, **waits})
        assert not faults, "\n".join(faults)


async def test_no_call_of_the_raw_api_stumbles_over_a_parameter_of_another_shape(tmp_path: Path) -> None:
    await every_endpoint(tmp_path, 2, step=5)


@pytest.mark.thorough
async def test_no_call_of_the_raw_api_stumbles_over_any_shape(tmp_path: Path) -> None:
    await every_endpoint(tmp_path, 8)


@pytest.mark.parametrize("vmid", [[700, 701], [100], {"a": 1}, True, 1.5, "²", 2**63 - 1, -1, "", None, [[]], {}])
@pytest.mark.parametrize(
    "path", ["/nodes/pve1/qemu", "/nodes/pve1/lxc", "/nodes/pve1/vzdump", "/nodes/pve1/qemu/108/clone"]
)
async def test_an_id_of_any_shape_is_judged_before_and_reported_after(tmp_path: Path, path: str, vmid: Any) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        name = "newid" if path.endswith("clone") else "vmid"
        call = {"method": "POST", "path": path, "params": {name: vmid}, "wait": 0}
        assert await tried(quorate, "api_call", call) == []


async def every_tool_of(tmp_path: Path, surface: str, width: int) -> None:
    async with rig(tmp_path, in_memory=True, more={"surfaces": (surface,)}) as quorate:
        usual = {"node": "pve1", "vmid": 108, "vm_id": 108, "storage": "local", "name": "x", "params": {}}
        faults: list[str] = []
        for number, tool in enumerate((await quorate.client.list_tools()).tools):
            properties = tool.input_schema["properties"]
            required = tool.input_schema.get("required", ())
            for place, name in enumerate(properties):
                for value in shapes(width, number * 100 + place):
                    arguments = {argument: usual.get(argument, "x") for argument in required}
                    hopeless = wrong_kind(properties[name], value) and surface != "lean"
                    faults += await tried(quorate, tool.name, {**arguments, name: value}, hopeless=hopeless)
        assert not faults, "\n".join(faults)


@pytest.mark.parametrize("surface", ["lean", *SYSTEMS])
async def test_no_tool_of_another_surface_stumbles_over_an_argument_of_another_shape(
    tmp_path: Path, surface: str
) -> None:
    await every_tool_of(tmp_path, surface, FEW)


@pytest.mark.thorough
@pytest.mark.parametrize("surface", ["lean", *SYSTEMS])
async def test_no_tool_of_another_surface_stumbles_over_any_shape(tmp_path: Path, surface: str) -> None:
    await every_tool_of(tmp_path, surface, sweep_size(10, 30))
