"""Reading the demo cluster: guests, nodes, storages, pools."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from pve_simulator.api_client import Api, Reply, simulated_api
from pve_simulator.guests.guest import Guest


async def test_the_demo_is_a_believable_homelab(api: Api) -> None:
    rows = (await api.get("/cluster/resources")).data
    by_type = {kind: [row for row in rows if row["type"] == kind] for kind in {row["type"] for row in rows}}
    assert {kind: len(rows_of_kind) for kind, rows_of_kind in by_type.items()} == {
        "node": 3, "qemu": 11, "lxc": 9, "storage": 14, "pool": 2, "network": 3,
    }  # fmt: skip
    assert {row["plugintype"] for row in by_type["storage"]} == {"dir", "lvmthin", "zfspool", "nfs", "pbs"}
    assert all(0 < row["disk"] < row["maxdisk"] for row in by_type["storage"])
    assert all(row["mem"] < row["maxmem"] for row in by_type["node"])


async def test_the_same_seed_gives_the_same_world() -> None:
    async def picture(seed: int) -> Any:
        async with simulated_api(seed=seed) as api:
            return (await api.get("/cluster/resources")).data

    first = await picture(3)
    assert await picture(3) == first
    assert await picture(4) != first


async def test_numbers_move_and_counters_never_fall(api: Api) -> None:
    seen = []
    for _ in range(40):
        await api.clock.advance(37)
        seen.append((await api.get("/nodes/pve1/qemu/102/status/current")).data)
    for name in ("netin", "netout", "diskread", "diskwrite", "uptime"):
        assert all(after[name] > before[name] for before, after in pairwise(seen))
    assert len({row["cpu"] for row in seen}) > 30


async def test_a_new_guest_is_only_an_id_to_the_cluster_for_ten_seconds(api: Api) -> None:
    world = api.cluster.world
    world.add_guest(Guest(300, "qemu", "pve1", {"name": "fresh", "tags": "new", "memory": "512"}))

    async def row() -> Any:
        return next(r for r in (await api.get("/cluster/resources", type="vm")).data if r["vmid"] == 300)

    assert await row() == {
        "id": "qemu/300", "type": "qemu", "vmid": 300, "node": "pve1", "status": "unknown", "tags": "new",
    }  # fmt: skip
    names = [r["name"] for r in (await api.get("/nodes/pve1/qemu")).data]
    assert "fresh" in names
    await api.clock.advance(10)
    assert (await row())["name"] == "fresh"


async def test_a_guest_is_not_found_on_another_node_or_as_another_kind(api: Api) -> None:
    wrong_node = await api.get("/nodes/pve2/qemu/102/config")
    assert wrong_node.reason == "Configuration file 'nodes/pve2/qemu-server/102.conf' does not exist"
    wrong_kind = await api.get("/nodes/pve1/lxc/102/status/current")
    assert wrong_kind.reason == "Configuration file 'nodes/pve1/lxc/102.conf' does not exist"


@pytest.mark.api(endpoints=2)
async def test_localhost_is_the_answering_node(api: Api) -> None:
    local = {row["vmid"] for row in (await api.get("/nodes/localhost/qemu")).data}
    named = {row["vmid"] for row in (await api.get("/nodes/pve1/qemu")).data}
    assert local == named
    url = f"{api.cluster.urls[1]}/api2/json/cluster/status"
    async with api.session.get(url, headers=api.headers) as reply:
        rows = (await reply.json())["data"]
    assert [row["name"] for row in rows if row.get("local")] == ["pve2"]


async def test_next_id_is_a_text(api: Api) -> None:
    assert (await api.get("/cluster/nextid")).data == "110"
    assert (await api.get("/cluster/nextid", vmid=150)).data == "150"
    assert (await api.get("/cluster/nextid", vmid=100)).errors == {"vmid": "VM 100 already exists"}


async def test_the_agent_is_refused_in_pves_order(api: Api) -> None:

    async def osinfo(node: str, vmid: int) -> Reply:
        return await api.get(f"/nodes/{node}/qemu/{vmid}/agent/get-osinfo")

    assert (await osinfo("pve3", 109)).reason == "No QEMU guest agent configured"
    assert (await osinfo("pve1", 108)).reason == "VM 108 is not running"
    assert (await osinfo("pve1", 100)).reason == "QEMU guest agent is not running"
    assert (await osinfo("pve1", 999)).status == 500
    assert (await osinfo("pve1", 102)).data["result"]["id"] == "ubuntu"
    assert (await api.post("/nodes/pve1/qemu/102/agent/ping")).data == {"result": {}}


async def test_addresses_come_from_the_agent_and_from_the_container(api: Api) -> None:
    interfaces = (await api.get("/nodes/pve1/qemu/102/agent/network-get-interfaces")).data["result"]
    assert interfaces[1]["ip-addresses"][0]["ip-address"] == "192.168.10.31"
    container = (await api.get("/nodes/pve1/lxc/200/interfaces")).data
    assert container[1]["inet"] == "192.168.10.2/24"
    assert (await api.get("/nodes/pve3/lxc/206/interfaces")).data is None


async def test_snapshots_end_with_where_you_are(api: Api) -> None:
    rows = {row["name"]: row for row in (await api.get("/nodes/pve1/qemu/108/snapshot")).data}
    assert set(rows) == {"clean", "configured", "current"}
    assert rows["configured"]["parent"] == "clean"
    assert rows["current"]["description"] == "You are here!"
    assert rows["current"]["parent"] == "configured"
    missing = await api.get("/nodes/pve1/qemu/108/config", snapshot="nope")
    assert missing.reason == "snapshot 'nope' does not exist"


async def test_storages_are_where_they_are_meant_to_be(api: Api) -> None:
    rows = {row["storage"]: row for row in (await api.get("/nodes/pve3/storage")).data}
    assert {name for name, row in rows.items() if row["enabled"]} == {"local", "local-lvm", "nas", "pbs"}
    elsewhere = (await api.get("/nodes/pve3/storage/tank/status")).data
    assert (rows["tank"]["active"], elsewhere["enabled"]) == (0, 0)
    assert "tank" not in {row["storage"] for row in (await api.get("/nodes/pve3/storage", enabled=1)).data}
    status = await api.get("/nodes/pve1/storage/nope/status")
    assert status.errors == {"storage": "No such storage."}
    content = await api.get("/nodes/pve1/storage/nope/content")
    assert content.reason == "storage 'nope' does not exist"
    isos = (await api.get("/nodes/pve2/storage/nas/content", content="iso")).data
    assert [row["volid"].rpartition("/")[2] for row in isos] == [
        "ubuntu-24.04.3-live-server-amd64.iso",
        "virtio-win-0.1.271.iso",
    ]
    assert (await api.get("/storage/nas")).data["export"] == "/volume1/proxmox"


async def test_pools_list_their_members(api: Api) -> None:
    lab = (await api.get("/pools/lab")).data
    assert [row.get("vmid") for row in lab["members"][:5]] == [104, 105, 106, 108, 206]
    assert {row["storage"] for row in lab["members"][5:]} == {"local-lvm"}
    assert (await api.get("/pools", poolid="lab")).data == [lab]
    assert (await api.get("/pools/nope")).reason == "pool 'nope' does not exist"


@pytest.mark.api(nodes=1, guests=2)
async def test_a_single_node_has_no_cluster(api: Api) -> None:
    rows = (await api.get("/cluster/status")).data
    assert [(row["type"], row["nodeid"]) for row in rows] == [("node", 0)]
