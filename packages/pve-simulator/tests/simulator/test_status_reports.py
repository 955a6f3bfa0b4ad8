"""Data from pvestatd's reports is as old as the latest report; data from the cluster file system is current."""

from __future__ import annotations

from typing import Any

from pve_simulator.api_client import Api, simulated_api

VM, NODE, OTHER_NODE = 108, "pve1", "pve2"


async def row_of(api: Api, vmid: int) -> dict[str, Any] | None:
    rows: list[dict[str, Any]] = (await api.get("/cluster/resources", type="vm")).data
    return next((row for row in rows if row["vmid"] == vmid), None)


async def resource_row(api: Api, vmid: int) -> dict[str, Any]:
    row = await row_of(api, vmid)
    assert row is not None
    return row


async def test_name_status_and_sizes_change_at_the_next_report_and_not_before(api: Api) -> None:
    before = await resource_row(api, VM)
    node = before["node"]
    await api.put(f"/nodes/{node}/qemu/{VM}/config", name="other", memory=4096)
    await api.post(f"/nodes/{node}/qemu/{VM}/status/start")
    await api.clock.advance(9.5)
    now = await resource_row(api, VM)
    assert {key: now[key] for key in ("name", "status", "maxmem", "uptime")} == {
        key: before[key] for key in ("name", "status", "maxmem", "uptime")
    }
    (listed,) = [row for row in (await api.get(f"/nodes/{node}/qemu")).data if row["vmid"] == VM]
    assert (listed["name"], listed["status"]) == ("other", "running")
    await api.clock.advance(0.5)
    now = await resource_row(api, VM)
    assert (now["name"], now["status"], now["maxmem"]) == ("other", "running", 4096 * 1024**2)


async def test_tags_lock_pool_and_place_do_not_wait_for_a_report(api: Api) -> None:
    guest = api.cluster.world.guests[VM]
    await api.put(f"/nodes/{guest.node}/qemu/{VM}/config", tags="urgent")
    await api.post("/pools", poolid="new")
    await api.put("/pools", poolid="new", vms=VM, **{"allow-move": 1})
    guest.config["lock"] = "backup"
    guest.node = next(name for name in api.cluster.world.nodes if name != guest.node)
    guest.touch()
    row = await resource_row(api, VM)
    assert (row["tags"], row["pool"], row["lock"], row["node"]) == ("urgent", "new", "backup", guest.node)
    assert row["name"] == guest.name


async def test_a_removed_guest_is_gone_at_once_and_its_successor_has_its_name_for_a_while(api: Api) -> None:
    old = await resource_row(api, VM)
    await api.delete(f"/nodes/{old['node']}/qemu/{VM}")
    await api.clock.advance(4)
    assert await row_of(api, VM) is None
    await api.post(f"/nodes/{NODE}/qemu", vmid=VM, name="successor")
    await api.clock.advance(2)
    row = await resource_row(api, VM)
    assert (row["name"], row["node"]) == (old["name"], NODE)
    await api.clock.advance(10)
    assert (await resource_row(api, VM))["name"] == "successor"


async def test_a_new_storage_has_no_status_and_no_size_until_it_is_reported(api: Api) -> None:
    await api.post("/storage", storage="fresh", type="dir", path="/srv/fresh", content="iso")

    async def places() -> list[dict[str, Any]]:
        rows = (await api.get("/cluster/resources", type="storage")).data
        return [row for row in rows if row["storage"] == "fresh"]

    assert {row["node"] for row in await places()} == set(api.cluster.world.nodes)
    assert all(row["status"] == "unknown" and not {"disk", "maxdisk"} & row.keys() for row in await places())
    (own,) = [row for row in (await api.get(f"/nodes/{NODE}/storage")).data if row["storage"] == "fresh"]
    assert own["active"] == 1
    assert own["total"] > 0
    await api.clock.advance(10)
    assert all(row["status"] == "available" and row["maxdisk"] for row in await places())


async def test_how_full_a_storage_is_lags_as_well(api: Api) -> None:
    space = api.cluster.world.storages["local"].space(NODE)

    async def disk_usage() -> int:
        rows = (await api.get("/cluster/resources", type="storage")).data
        return int(next(row["disk"] for row in rows if row["id"] == f"storage/{NODE}/local"))

    before = await disk_usage()
    space.base_used += 1024**3
    assert await disk_usage() == before
    await api.clock.advance(10)
    assert await disk_usage() == before + 1024**3


async def test_members_of_a_pool_are_shown_as_in_the_list_of_resources(api: Api) -> None:
    await api.post("/pools", poolid="new")
    await api.post(f"/nodes/{NODE}/qemu", vmid=300, name="fresh", pool="new", tags="a")
    await api.clock.advance(1)
    (member,) = (await api.get("/pools/new")).data["members"]
    assert member == {"id": "qemu/300", "type": "qemu", "vmid": 300, "node": NODE, "status": "unknown"}
    await api.clock.advance(10)
    (member,) = (await api.get("/pools/new")).data["members"]
    assert (member["name"], member["status"]) == ("fresh", "stopped")


async def test_a_zone_is_in_the_list_of_resources_after_the_next_report(api: Api) -> None:
    await api.post("/cluster/sdn/zones", zone="lab", type="simple")
    await api.put("/cluster/sdn")
    await api.clock.advance(5)

    async def zones() -> set[str]:
        return {row["network"] for row in (await api.get("/cluster/resources")).data if row["type"] == "network"}

    assert "lab" not in await zones()
    await api.clock.advance(5)
    assert "lab" in await zones()


async def test_reports_come_at_the_same_moments_in_every_run() -> None:
    async def moments() -> list[bool]:
        async with simulated_api() as api:
            seen = []
            api.cluster.world.guests[VM].config["name"] = "other"
            api.cluster.world.guests[VM].touch()
            for _ in range(12):
                await api.clock.advance(1)
                seen.append((await resource_row(api, VM))["name"] == "other")
            return seen

    first = await moments()
    assert first == [False] * 9 + [True] * 3
    assert await moments() == first
