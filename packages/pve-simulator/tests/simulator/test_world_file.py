"""Worlds from YAML and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from pve_simulator import world_file
from pve_simulator.api_client import Api, simulated_api
from pve_simulator.clock import ManualClock
from pve_simulator.simulator import SimulatedCluster
from simulator.guest_steps import CT, create_vm

NODE = "nodes: [{name: pve1}]\n"
STOCK = world_file.load("stock")


@pytest.mark.api(build=STOCK.build)
async def test_the_cloud_image_of_the_stock_world_boots(api: Api) -> None:
    image = "local:import/debian-13-genericcloud-amd64.qcow2"
    assert await create_vm(api, scsi0=f"local-lvm:0,import-from={image}", agent=1, start=1) == "OK"
    await api.clock.advance(30)
    system = (await api.get("/nodes/pve1/qemu/500/agent/get-osinfo")).data["result"]
    assert system["id"] == "debian"


@pytest.mark.api(build=STOCK.build)
async def test_the_container_templates_of_the_stock_world_run(api: Api) -> None:
    templates = [row["volid"] for row in (await api.get("/nodes/pve1/storage/local/content", content="vztmpl")).data]
    assert len(templates) == 2
    for vmid, template in enumerate(templates, 500):
        made = await api.post(CT, vmid=vmid, ostemplate=template, storage="local-lvm", features="nesting=1", start=1)
        assert await api.finish_task(made) == "OK"
        assert (await api.get(f"{CT}/{vmid}/status/current")).data["status"] == "running"


@pytest.mark.parametrize("build", [None, STOCK.build])
async def test_a_dump_builds_the_same_world(build: object) -> None:
    options = {} if build is None else {"build": build}
    async with simulated_api(**options) as api:
        text = msgspec.json.encode(world_file.dump(api.cluster.world)).decode()
    async with simulated_api(build=world_file.parse(text).build) as api:
        assert msgspec.json.encode(world_file.dump(api.cluster.world)).decode() == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nodes: [{name: pve1, ram: 5}]", "unknown field `ram`"),
        ("nodes: [{name: pve1, memory: much}]", r"Expected `int`, got `str` - at `\$.nodes\[0\].memory`"),
        (NODE + "guests: [{vmid: 5, type: qemu, node: pve1}]", ">= 100"),
        (NODE + "guests: [{vmid: 500, type: qemu, node: pve1}]", "guest 500: there is no storage local-lvm"),
        (NODE + "guests: [{vmid: 500, type: lxc, node: pve1, config: {bios: ovmf}}]", "lxc guest has no option bios"),
        (NODE + "storages: [{id: s, type: dir, content: [iso], nodes: [pve9]}]", "storage s: there is no node pve9"),
        (
            NODE + "storages: [{id: s, type: dir, content: [iso], total: 1, volumes: "
            "[{name: iso/a.iso, content: iso, format: iso, size: 99999999999}]}]",
            "storage s is too small for iso/a.iso",
        ),
        (NODE + "pools: [{id: p, vms: [100]}]", "pool p: there is no guest 100"),
        (NODE + "acl: [{path: /, role: Boss, subject: a@pve}]", "there is no role Boss"),
        (NODE + "ha: [{sid: 'vm:100'}]", "there is no guest vm:100"),
        ("nodes: [", "the world is not valid"),
    ],
)
def test_a_document_that_does_not_fit_is_refused_by_the_field(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SimulatedCluster(clock=ManualClock(), build=world_file.parse(text).build)


def test_json_is_read_as_well(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    file.write_text(json.dumps({"nodes": [{"name": "solo", "memory": 8}]}))
    assert world_file.load(str(file)).nodes[0].memory == 8
    with pytest.raises(ValueError, match="the package has: stock"):
        world_file.load("no-such-world")


def test_the_schema_describes_every_part_and_allows_no_other() -> None:
    schema = world_file.schema()
    assert schema["$ref"] == "#/$defs/WorldFile"
    parts = {name: each for name, each in schema["$defs"].items() if name.endswith(("Entry", "File"))}
    assert len(parts) == 13
    for each in parts.values():
        assert each["additionalProperties"] is False
        assert each["description"]
    assert "type" in parts["GuestEntry"]["required"]
