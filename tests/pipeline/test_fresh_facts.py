"""Facts that are seconds old: what others have just made, renamed, started or removed is neither denied nor mistaken.

The cluster's own view lags by up to ten seconds, here as on a real PVE; every test stays within them.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pve_simulator.api_client import Api, open_api
from pve_simulator.guests.guest import GIB
from quorate.config.policy import read_policy
from quorate.config.sources import Rank, Source
from tests.rigs.compat_session import surface
from tests.rigs.mcp_session import Rig, rig, second_server, text_of

pytestmark = pytest.mark.anyio

NODE, NEW, NAME = "pve1", 177, "just-made"
RUNNING, STOPPED, OTHER = 102, 108, 107


async def look(quorate: Rig) -> None:
    """The view of the cluster is current."""
    for site in quorate.app.pipeline.sites:
        await site.cluster.inventory.rows()


@asynccontextmanager
async def somebody_else(quorate: Rig) -> AsyncIterator[Api]:
    """Another client of the same cluster, of whose changes nobody tells us; we have looked just before."""
    await look(quorate)
    async with open_api(quorate.sim) as api:
        yield api


async def make_vm(api: Api, **options: Any) -> None:
    assert (await api.post(f"/nodes/{NODE}/qemu", vmid=NEW, name=NAME, memory=512, **options)).status == 200
    await api.clock.advance(1)
    view = {row["vmid"]: row for row in (await api.get("/cluster/resources", type="vm")).data}
    assert "name" not in view[NEW], "the view does not lag, so the test proves nothing"


async def rename(api: Api, node: str, vmid: int, name: str) -> None:
    assert (await api.put(f"/nodes/{node}/qemu/{vmid}/config", name=name)).status == 200


def lean(tool: str, operation: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return tool, {"operation": operation, "arguments": arguments}


# -- a guest that was made a moment ago --------------------------------------------------------------------------------

LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "lean": lean("pve_read", "guest_get", guest=NEW),
    "lean by name": lean("pve_read", "guest_get", guest=NAME),
    "brynnjocelyn": ("get_vm_status", {"node": NODE, "vmid": NEW}),
    "gilby125": ("proxmox_get_vm_status", {"node": NODE, "vmid": str(NEW)}),
    "solomonneas": ("proxmox_get_resource", {"vmid": NEW}),
    "bsahane": ("proxmox-vm-info", {"vmid": NEW}),
    "bsahane by name": ("proxmox-vm-info", {"name": NAME}),
    "washyu": ("get_proxmox_vm_status", {"node": NODE, "vmid": NEW, "vm_type": "qemu"}),
}


@pytest.mark.parametrize("ref", [NEW, str(NEW), NAME, f"{NODE}/{NAME}", f"qemu/{NEW}"])
async def test_a_guest_that_somebody_has_just_made_is_found_by_vmid_and_by_name(tmp_path, ref):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        await make_vm(api)
        facts = await quorate.facts("guest_get", guest=ref)
        assert (facts["vmid"], facts["name"], facts["status"]) == (NEW, NAME, "stopped")
        assert (await quorate.facts("guest_power", guest=ref, action="start"))["result"] == "done"


@pytest.mark.parametrize("way", LOOKS)
async def test_every_surface_finds_it(tmp_path, way):
    tool, arguments = LOOKS[way]
    async with surface(tmp_path, way.split()[0]) as quorate, somebody_else(quorate) as api:
        await make_vm(api)
        answer = await quorate.call(tool, **arguments)
        assert not answer.is_error, text_of(answer)
        assert NAME in text_of(answer)


@pytest.mark.parametrize("missing", [{"name": "nobody"}, {"vmid": 999}], ids=["name", "vmid"])
@pytest.mark.parametrize("asked", [{"vmid": NEW}, {"name": NAME}], ids=["by vmid", "by name"])
async def test_a_refusal_a_moment_ago_hides_no_guest_that_was_made_since(tmp_path, missing, asked):
    async with surface(tmp_path, "bsahane") as quorate, somebody_else(quorate) as api:
        assert "nobody" in (text := await quorate.refusal("proxmox-vm-info", **missing)) or "999" in text
        await make_vm(api)
        answer = await quorate.call("proxmox-vm-info", **asked)
        assert not answer.is_error, text_of(answer)
        assert NAME in text_of(answer)


async def test_a_refusal_a_moment_ago_hides_no_new_name(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        await quorate.refusal("guest_get", guest="renamed")
        await rename(api, quorate.sim.world.guests[STOPPED].node, STOPPED, "renamed")
        assert (await quorate.facts("guest_get", guest="renamed"))["vmid"] == STOPPED


@pytest.mark.parametrize("way", ["bsahane", "gilby125", "solomonneas"])
async def test_hidden_characters_in_a_new_name_reach_nobody(tmp_path, way):
    tool, looked_up = LOOKS[way]
    async with surface(tmp_path, way) as quorate, somebody_else(quorate) as api:
        await make_vm(api)
        guest = quorate.sim.world.guests[NEW]
        guest.config["name"] = f"{NAME}\u202e\u200b"
        guest.touch()
        for asked, arguments in ((tool, looked_up), LISTS[way]):
            text = text_of(await quorate.call(asked, **arguments))
            assert NAME in text
            assert not {"\u202e", "\u200b"} & set(text)
            assert "\\u202e" not in text


LISTS: dict[str, tuple[str, dict[str, Any]]] = {
    "lean": lean("pve_read", "guest_list", name=NAME),
    "gilby125": ("proxmox_get_vms", {}),
    "solomonneas": ("proxmox_list_vms", {}),
    "bsahane": ("proxmox-list-vms", {"search": NAME}),
    "washyu": ("list_proxmox_resources", {}),
}


@pytest.mark.parametrize("way", LISTS)
async def test_every_list_has_its_name(tmp_path, way):
    tool, arguments = LISTS[way]
    async with surface(tmp_path, way) as quorate, somebody_else(quorate) as api:
        await make_vm(api)
        await api.clock.advance(2)  # as long as a view is kept
        answer = await quorate.call(tool, **arguments)
        assert not answer.is_error, text_of(answer)
        assert NAME in text_of(answer)


async def test_a_clone_has_its_name_as_soon_as_it_is_done(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.clock.advance(1)
        clone = await quorate.facts("guest_clone", guest=STOPPED, name="second")
        assert (await quorate.facts("guest_get", guest="second"))["vmid"] == clone["vmid"]
        assert [row["vmid"] for row in await quorate.rows("guest_list", name="second")] == [clone["vmid"]]


# -- what is not there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", [999, "no-such-guest"])
async def test_a_privilege_is_blamed_only_if_it_is_missing(tmp_path, ref):
    async with rig(tmp_path) as quorate:
        assert "VM.Audit" not in await quorate.refusal("guest_get", guest=ref)
        async with second_server(quorate, tmp_path / "other.jsonl", token="alice@pve!cli") as alice:
            text = await alice.refusal("guest_get", guest=ref)
            held = await alice.facts("api_call", method="GET", path="/access/permissions", params={"path": "/vms"})
            assert ("lack VM.Audit" in text) == ("VM.Audit" not in held["data"].get("/vms", {}))
            assert "lack VM.Audit" in text


async def test_what_is_not_there_costs_few_requests(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_get", guest=RUNNING)
        mark = len(quorate.sim.requests)
        await quorate.refusal("guest_get", guest=999)
        assert [path for _, path in quorate.requests_since(mark)] == ["/cluster/resources", "/access/permissions"]
        mark = len(quorate.sim.requests)
        await quorate.refusal("guest_get", guest="no-such-guest")
        places = {(guest.node, guest.kind) for guest in quorate.sim.world.guests.values()}
        assert sorted(path for _, path in quorate.requests_since(mark)) == sorted(
            ["/cluster/resources", *(f"/nodes/{node}/{kind}" for node, kind in places)]
        )


async def test_lookups_at_once_of_what_is_not_there_share_one_look_at_the_cluster(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_get", guest=RUNNING)
        mark = len(quorate.sim.requests)
        await asyncio.gather(*(quorate.refusal("guest_get", guest=vmid) for vmid in range(900, 920)))
        assert [path for _, path in quorate.requests_since(mark)].count("/cluster/resources") < 5


async def test_a_lookup_through_another_servers_tool_reads_the_cluster_once(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", nodes=4, guests=600) as quorate:
        vmid, guest = next(iter(quorate.sim.world.guests.items()))
        mark = len(quorate.sim.requests)
        await quorate.call(
            "get_vm_status" if guest.kind == "qemu" else "get_container_status", node=guest.node, vmid=vmid
        )
        paths = [path for _, path in quorate.requests_since(mark)]
        assert paths.count("/cluster/resources") == 1
        assert len(paths) <= 3


# -- renamed, removed, made again, moved -------------------------------------------------------------------------------


async def test_a_new_name_counts_at_once_and_the_old_one_no_longer(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        guest = quorate.sim.world.guests[STOPPED]
        old = guest.name
        await rename(api, guest.node, STOPPED, "renamed")
        assert (await quorate.facts("guest_get", guest="renamed"))["vmid"] == STOPPED
        assert f"no guest '{old}'" in await quorate.refusal("guest_power", guest=old, action="start")
        assert not guest.running


@pytest.mark.parametrize("operation", ["guest_power", "guest_delete"])
async def test_a_name_that_changed_hands_means_who_has_it_now(tmp_path, operation):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        guests = quorate.sim.world.guests
        name = guests[STOPPED].name
        await rename(api, guests[STOPPED].node, STOPPED, "before")
        await rename(api, guests[OTHER].node, OTHER, name)
        arguments = {"action": "start"} if operation == "guest_power" else {}
        facts = await quorate.facts(operation, guest=name, **arguments)
        assert facts["result"] == "done"
        assert not guests[STOPPED].running
        assert (OTHER not in guests) if operation == "guest_delete" else guests[OTHER].running


async def test_a_name_that_changed_hands_is_right_through_another_servers_tool(tmp_path):
    async with surface(tmp_path, "bsahane") as quorate, somebody_else(quorate) as api:
        guests = quorate.sim.world.guests
        name = guests[STOPPED].name
        await rename(api, guests[STOPPED].node, STOPPED, "before")
        await rename(api, guests[OTHER].node, OTHER, name)
        answer = await quorate.facts("proxmox-start-vm", name=name)
        assert f":qmstart:{OTHER}:" in answer["upid"]


async def test_a_vmid_that_was_given_to_another_guest_is_that_guest(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        guest = quorate.sim.world.guests[STOPPED]
        before = guest.name
        assert (await api.delete(f"/nodes/{guest.node}/qemu/{STOPPED}")).status == 200
        await api.clock.advance(3)
        await api.post(f"/nodes/{NODE}/qemu", vmid=STOPPED, name="successor")
        await api.clock.advance(2)
        facts = await quorate.facts("guest_get", guest=STOPPED)
        assert facts["name"] == "successor"
        text = await quorate.refusal("guest_get", guest=before)
        assert f"no guest '{before}'" in text


async def test_a_guest_that_somebody_has_removed_is_gone(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        guest = quorate.sim.world.guests[STOPPED]
        await api.delete(f"/nodes/{guest.node}/qemu/{STOPPED}")
        await api.clock.advance(1.5)
        assert f"no guest '{STOPPED}'" in await quorate.refusal("guest_get", guest=STOPPED)


async def test_a_destruction_looks_at_the_name_on_the_node(tmp_path):
    """The plan is made, then the guest is renamed while the operator's approval is waited for."""
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[STOPPED]
        (cluster,) = (site.cluster for site in quorate.app.pipeline.sites)
        assert (await cluster.inventory.fresh_guest(STOPPED)).name == guest.name
        async with open_api(quorate.sim) as api:
            await rename(api, guest.node, STOPPED, "precious")
        assert (await cluster.inventory.fresh_guest(STOPPED)).name == "precious"


# -- running or not ----------------------------------------------------------------------------------------------------


async def test_what_somebody_has_just_started_counts_as_running(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        guest = quorate.sim.world.guests[STOPPED]
        await api.post(f"/nodes/{guest.node}/qemu/{STOPPED}/status/start")
        await api.clock.advance(4)
        assert guest.running
        down = await quorate.facts("node_power", node=guest.node, action="reboot", dry_run=True)
        assert any(f" {STOPPED} " in line for line in down["guests_going_down"])
        chosen = await quorate.facts("guest_bulk", action="snapshot", name=guest.name, status="running", dry_run=True)
        assert chosen["targets"] == [f"vm {STOPPED} {guest.name}"]
        call = (await quorate.facts("nic_set", guest=STOPPED, nic="net1", dry_run=True))["steps"][0]["call"]
        assert call.startswith("POST")  # plugging a card into a running VM is a task


async def test_what_we_have_just_started_is_running_in_the_list(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.clock.advance(1)
        name = quorate.sim.world.guests[STOPPED].name
        await quorate.facts("guest_power", guest=STOPPED, action="start")
        assert [row["status"] for row in await quorate.rows("guest_list", name=name)] == ["running"]


async def test_a_template_that_was_made_a_moment_ago_is_a_template(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        guest = quorate.sim.world.guests[OTHER]
        await api.post(f"/nodes/{guest.node}/qemu/{OTHER}/template")
        await api.clock.advance(3)
        assert guest.template
        assert "is a template" in await quorate.refusal("guest_power", guest=OTHER, action="start")
        assert "is a template" in await quorate.refusal("snapshot_create", guest=OTHER)
        assert (await quorate.facts("guest_template", guest=OTHER))["result"] == "nothing to do"


NAMELESS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("guest_get", {"guest": NAME}),
    "bsahane": ("proxmox-start-vm", {"name": NAME}),
}


@pytest.mark.parametrize("way", NAMELESS)
async def test_a_guest_that_is_being_created_is_not_taken_for_one_with_a_similar_name(tmp_path, way):
    tool, arguments = NAMELESS[way]
    async with surface(tmp_path, way) as quorate, somebody_else(quorate) as api:
        await rename(api, NODE, STOPPED, f"{NAME}-2")
        await api.post(f"/nodes/{NODE}/qemu", vmid=NEW, name=NAME, memory=512, scsi0="local-lvm:1")
        text = await quorate.refusal(tool, **arguments)
        assert f"{NEW} is being created" in text
        assert f"{NAME}-2" not in text
        await api.clock.advance(5)
        assert not (await quorate.call(tool, **arguments)).is_error


@pytest.mark.parametrize(("name", "meant"), [("dokcer01", "docker01"), ("zzzzzz", "proxmox-list-vms")])
async def test_a_missing_name_is_refused_with_the_nearest_on_other_surfaces_too(tmp_path, name, meant):
    async with surface(tmp_path, "bsahane") as quorate:
        assert meant in await quorate.refusal("proxmox-vm-info", name=name)


async def test_a_guest_that_is_being_started_is_not_stopped_already_and_the_other_way_round(tmp_path):
    async with surface(tmp_path, "bsahane") as quorate:
        guest = quorate.sim.world.guests[STOPPED]
        task = (await quorate.facts("proxmox-start-vm", vmid=STOPPED))["upid"]
        for tool in ("proxmox-stop-vm", "proxmox-shutdown-vm"):
            text = await quorate.refusal(tool, vmid=STOPPED)
            assert "qmstart is in progress" in text
            assert f"proxmox-wait-task upid={task}" in text
        await quorate.facts("proxmox-wait-task", upid=task)
        assert "unchanged" in await quorate.facts("proxmox-start-vm", vmid=STOPPED)
        await quorate.facts("proxmox-shutdown-vm", vmid=STOPPED, wait=False)
        assert "qmshutdown is in progress" in await quorate.refusal("proxmox-start-vm", vmid=STOPPED)
        await quorate.clock.advance(30)
        assert not guest.running
        await quorate.facts("proxmox-start-vm", vmid=STOPPED, wait=True)
        assert guest.running


# -- a storage that was made a moment ago ------------------------------------------------------------------------------


async def make_storage(api: Api, name: str = "fresh", content: str = "images,iso,backup,vztmpl") -> None:
    assert (await api.post("/storage", storage=name, type="dir", path="/srv/fresh", content=content)).status == 200
    rows = (await api.get("/cluster/resources", type="storage")).data
    assert all(row["status"] == "unknown" and "maxdisk" not in row for row in rows if row["storage"] == name)


MOVES: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("disk_change", {"action": "move", "guest": NEW, "disk": "scsi0", "storage": "fresh"}),
    "lean": lean("pve_change", "disk_change", action="move", guest=NEW, disk="scsi0", storage="fresh"),
    "gilby125": ("proxmox_move_disk_vm", {"vmid": str(NEW), "disk": "scsi0", "storage": "fresh"}),
}


@pytest.mark.parametrize("looked_before", [True, False])
@pytest.mark.parametrize("way", MOVES)
async def test_a_disk_moves_to_a_storage_that_was_defined_a_moment_ago(tmp_path, way, looked_before):
    tool, arguments = MOVES[way]
    async with surface(tmp_path, way, opt_ins=("PROXMOX_ALLOW_ELEVATED",)) as quorate, somebody_else(quorate) as api:
        await make_vm(api, scsi0="local-lvm:1")
        await api.clock.advance(4)
        guest = quorate.sim.world.guests[NEW]
        if looked_before:  # else our view is fresh as well, and shows the storage without a size
            await look(quorate)
        await make_storage(api)
        arguments = arguments | ({"node": guest.node} if way == "gilby125" else {})
        answer = await quorate.call(tool, **arguments)
        assert not answer.is_error, text_of(answer)
        assert str(guest.config["scsi0"]).startswith("fresh:")


async def test_a_new_storage_is_good_for_everything(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        await make_storage(api)
        place = quorate.sim.world.guests[STOPPED].node
        await quorate.facts("pool_set", pool="infra", add_storages=["fresh"], dry_run=True)
        assert (await quorate.facts("volume_list", storage="fresh"))["rows"] == []
        assert (await quorate.facts("backup_create", guest=STOPPED, storage="fresh"))["result"] == "done"
        (backup,) = await quorate.rows("backup_list", storage="fresh")
        await quorate.facts("backup_show", backup=backup["backup"])
        await quorate.facts("vm_create", name="on-fresh", node=place, disks=[{"size": "1G", "storage": "fresh"}])
        await quorate.facts("metrics_get", storage=f"{place}/fresh", timeframe="hour")


async def test_a_new_storage_is_shown_to_users_of_gilby125_as_its_nodes_see_it(tmp_path):
    async with surface(tmp_path, "gilby125") as quorate, somebody_else(quorate) as api:
        await make_storage(api)
        for arguments in ({}, {"node": NODE}):
            entry = (
                text_of(await quorate.call("proxmox_get_storage", **arguments)).split("🟢 **fresh**")[1].split("**")[0]
            )
            assert f"Node: {NODE}" in entry
            assert "Usage: " in entry
            assert "Status: Enabled" in entry


async def test_a_new_storage_is_listed_with_its_size_and_is_no_trouble(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        await make_storage(api)
        await api.clock.advance(2)
        rows = [row for row in await quorate.rows("storage_list") if row["storage"] == "fresh"]
        assert rows
        assert all(row["used"] and not row.get("trouble") for row in rows)
        health = await quorate.facts("cluster_health")
        assert not [row for row in health["rows"] if "fresh" in str(row)]


async def test_an_image_on_a_new_storage_is_found(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        await make_storage(api, content="iso")
        store = quorate.sim.world.storages["fresh"]
        iso = next(iter(v for v in quorate.sim.world.storages["local"].volumes(NODE) if v.content == "iso"))
        copied = type(iso)(**{**{f: getattr(iso, f) for f in iso.__slots__}, "volid": "fresh:iso/brand-new.iso"})
        store.add(NODE, copied)
        for image in ("brand-new.iso", "fresh:iso/brand-new.iso"):
            plan = await quorate.facts("vm_create", name="boots", node=NODE, iso=image, dry_run=True)
            assert "fresh:iso/brand-new.iso" in str(plan)


async def test_room_that_was_made_a_moment_ago_is_used(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[OTHER]
        space = quorate.sim.world.storages["tank"].space(guest.node)
        used, space.base_used = space.base_used, space.total - GIB
        await quorate.clock.advance(10)
        move = {"action": "move", "guest": OTHER, "disk": "scsi0", "storage": "tank"}
        assert "free, not" in await quorate.refusal("disk_change", **move)
        space.base_used = used
        assert (await quorate.facts("disk_change", **move))["result"] == "done"


# -- pools, nodes ------------------------------------------------------------------------------------------------------


async def test_a_pool_that_was_made_a_moment_ago_is_a_pool_and_shows_its_new_member(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        await api.post("/pools", poolid="brand-new")
        await make_vm(api, pool="brand-new")
        assert [row["vmid"] for row in await quorate.rows("guest_list", pool="brand-new")] == [NEW]
        members = await quorate.rows("access_list", kind="pools", name="brand-new")
        assert [(row["id"], row["name"], row["status"]) for row in members] == [(NEW, NAME, "stopped")]
        assert (await quorate.facts("vm_create", name="pooled", pool="brand-new", dry_run=True))["plan"]


async def test_a_node_that_came_back_a_moment_ago_is_used(tmp_path):
    async with rig(tmp_path) as quorate:
        fault = quorate.sim.faults.add("node-offline:pve3")
        assert "pve3 is offline" in await quorate.refusal("node_updates_refresh", node="pve3")
        quorate.sim.faults.remove(fault)
        assert (await quorate.facts("node_updates_refresh", node="pve3", dry_run=True))["plan"]


async def test_names_on_a_node_that_is_away_are_not_claimed_to_be_known(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        name = next(guest.name for guest in quorate.sim.world.guests.values() if guest.node == "pve3")
        assert "names of the guests there cannot be read" in await quorate.refusal("guest_get", guest=name)


# -- rules -------------------------------------------------------------------------------------------------------------


def ruled(tmp_path: Any, text: str) -> Any:
    return rig(tmp_path, more={"policy": read_policy(tomllib.loads(text), Source(Rank.TOML))})


KEEP = '[[rules]]\nname = "hands off"\ndeny = "change"\nnames = ["precious*"]\n'
HIDE = '[[rules]]\nname = "not for you"\ndeny = "read"\nnames = ["precious*"]\n'


async def test_a_rule_by_name_holds_for_a_guest_that_was_just_given_the_name(tmp_path):
    async with ruled(tmp_path, KEEP) as quorate, somebody_else(quorate) as api:
        await rename(api, quorate.sim.world.guests[STOPPED].node, STOPPED, "precious-one")
        assert "hands off" in await quorate.refusal("guest_power", guest=STOPPED, action="start")
        assert not quorate.sim.world.guests[STOPPED].running


async def test_a_rule_by_name_does_not_hold_for_a_new_guest_of_another_name(tmp_path):
    async with ruled(tmp_path, KEEP) as quorate, somebody_else(quorate) as api:
        await make_vm(api)
        assert (await quorate.facts("guest_power", guest=NEW, action="start"))["result"] == "done"


async def test_a_rule_that_hides_by_name_hides_a_new_guest_and_shows_the_others(tmp_path):
    async with ruled(tmp_path, HIDE) as quorate, somebody_else(quorate) as api:
        await make_vm(api)
        await api.post(f"/nodes/{NODE}/qemu", vmid=NEW + 1, name="precious-two", memory=512)
        await api.clock.advance(2)
        listed = {row["vmid"] for row in await quorate.rows("guest_list")}
        assert NEW in listed
        assert NEW + 1 not in listed
        assert (await quorate.facts("guest_get", guest=NEW))["name"] == NAME
        assert "precious" not in (await quorate.refusal("guest_get", guest="precious-tw")).partition("Did you mean")[2]


# -- several clusters and the homelab ----------------------------------------------------------------------------------


async def test_a_guest_that_was_just_made_is_a_machine_by_its_name(tmp_path):
    async with rig(tmp_path) as quorate, somebody_else(quorate) as api:
        await make_vm(api)
        text = await quorate.refusal("host_exec", host=NAME, command=["true"])
        assert "no host" not in text  # it is known, and does not run


async def test_an_upgraded_cluster_is_soon_judged_by_its_new_version(tmp_path):
    async with rig(tmp_path, version="8.4.1") as quorate:
        assert quorate.app.cluster is not None
        before = await quorate.app.cluster.facts()
        quorate.sim.world.version = "9.1.8"
        await quorate.clock.advance(3600)
        assert (await quorate.app.cluster.facts()) is not before
        assert (await quorate.app.cluster.version())["version"] == "9.1.8"
