"""Reading a cluster through an MCP client."""

import pytest

from quorate.units import size
from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_both_protocol_eras_list_and_call_the_same_tools(tmp_path, mode):
    async with rig(tmp_path, mode=mode) as quorate:
        names = [tool.name for tool in (await quorate.client.list_tools()).tools]
        assert names == sorted(names)
        assert (await quorate.facts("cluster_status"))["quorate"] is True


async def test_guest_list_shows_every_guest_once_with_one_upstream_request(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("guest_list", limit=200)
        assert sorted(row["vmid"] for row in rows) == sorted(quorate.sim.world.guests)
        assert quorate.sim.requests == [("GET", "/cluster/resources")]


async def test_text_and_structured_content_tell_the_same_facts(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.call("guest_list", limit=5)
        head, *lines, footer = text_of(answer).split("\n")
        assert head.split("\t") == answer.structured_content["columns"]
        for line, row in zip(lines, answer.structured_content["rows"], strict=True):
            shown, facts = line.split("\t"), dict(zip(answer.structured_content["columns"], row, strict=True))
            assert shown[:5] == [str(cell) for cell in row[:5]]
            assert shown[5].endswith(f"{facts['cpu']['cores']}")
            assert shown[6].endswith(size(facts["mem"]["total"]))
            assert shown[7] == size(facts["disk"])
        assert footer.startswith(f"5 of {answer.structured_content['total']}")


@pytest.mark.parametrize(
    ("filters", "keeps"),
    [
        ({"type": "ct"}, lambda guest: guest.kind == "lxc"),
        ({"status": "running"}, lambda guest: guest.running),
        ({"template": True}, lambda guest: guest.template),
        ({"template": "false", "node": "pve1"}, lambda guest: not guest.template and guest.node == "pve1"),
        ({"name": "web"}, lambda guest: "web" in guest.name),
        ({"name": "*0?"}, lambda guest: len(guest.name) > 1 and guest.name[-2] == "0"),
    ],
)
async def test_filters_keep_exactly_the_guests_they_describe(tmp_path, filters, keeps):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("guest_list", limit=200, **filters)
        assert {row["vmid"] for row in rows} == {
            vmid for vmid, guest in quorate.sim.world.guests.items() if keeps(guest)
        }


async def test_a_paused_vm_is_found_as_such_and_shown_alike_everywhere(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[106].paused = False
        quorate.sim.world.guests[104].paused = True
        assert [row["vmid"] for row in await quorate.rows("guest_list", status="paused")] == [104]
        assert "running, paused" in text_of(await quorate.call("guest_list", status="paused"))
        assert "status: running, paused" in text_of(await quorate.call("guest_get", guest=104))
        assert 104 in [row["vmid"] for row in await quorate.rows("guest_list", status="running")]


async def test_tag_and_pool_filters_find_their_guests(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("guest_list", limit=200)
        tag = next(row["tags"] for row in rows if row["tags"]).split(";")[0]
        pool = next(row["pool"] for row in rows if row["pool"])
        tagged = await quorate.rows("guest_list", tag=tag, limit=200)
        assert {row["vmid"] for row in tagged} == {row["vmid"] for row in rows if tag in row["tags"].split(";")}
        pooled = await quorate.rows("guest_list", pool=pool, limit=200)
        assert {row["vmid"] for row in pooled} == {row["vmid"] for row in rows if row["pool"] == pool}


async def test_pages_of_a_list_join_without_gap_or_overlap(tmp_path):
    async with rig(tmp_path) as quorate:
        seen: list[int] = []
        offset: int | None = 0
        while offset is not None:
            page = await quorate.facts("guest_list", limit=6, offset=offset, sort="name")
            seen += [row[0] for row in page["rows"]]
            offset = page.get("next_offset")
        assert sorted(seen) == sorted(quorate.sim.world.guests)


async def test_sorting_by_memory_puts_the_largest_first(tmp_path):
    async with rig(tmp_path) as quorate:
        everything = await quorate.rows("guest_list", status="running", limit=200)
        largest = (await quorate.rows("guest_list", status="running", sort="mem", limit=1))[0]
        assert largest["vmid"] in {row["vmid"] for row in everything}


async def test_guest_get_reads_three_things_at_once_beyond_the_shared_inventory(tmp_path):
    async with rig(tmp_path) as quorate:
        name = (await quorate.rows("guest_list", status="running", type="ct"))[0]["name"]
        mark = len(quorate.sim.requests)
        facts = await quorate.facts("guest_get", guest=name)
        assert facts["name"] == name
        assert facts["status"] == "running"
        assert len(quorate.requests_since(mark)) <= 3


async def test_guest_get_of_a_running_container_knows_its_addresses(tmp_path):
    async with rig(tmp_path) as quorate:
        container = next(guest for guest in quorate.sim.world.guests.values() if guest.kind == "lxc" and guest.running)
        facts = await quorate.facts("guest_get", guest=container.vmid, detail=True)
        assert facts["addresses"] == {address.interface: address.ip for address in container.addresses}


async def test_guest_get_of_a_vm_asks_its_agent_for_addresses(tmp_path):
    async with rig(tmp_path) as quorate:
        now = quorate.sim.clock.now()
        vm = next(
            guest
            for guest in quorate.sim.world.guests.values()
            if guest.kind == "qemu" and guest.agent_answers(now) and guest.addresses
        )
        facts = await quorate.facts("guest_get", guest=vm.vmid, detail=True)
        assert {address.ip for address in vm.addresses} <= set(facts["addresses"].values())


async def test_guest_get_shows_what_waits_for_a_restart(tmp_path):
    async with rig(tmp_path) as quorate:
        vm = next(guest for guest in quorate.sim.world.guests.values() if guest.kind == "qemu" and guest.running)
        vm.pending["cores"] = 7
        facts = await quorate.facts("guest_get", guest=vm.vmid)
        assert facts["pending"] == {"cores": "7"}
        assert facts["hardware"].get("cores") != 7


async def test_a_guest_is_found_by_id_as_number_or_text_by_name_and_by_node(tmp_path):
    async with rig(tmp_path) as quorate:
        row = (await quorate.rows("guest_list"))[0]
        for reference in (
            row["vmid"],
            str(row["vmid"]),
            row["name"],
            f"{row['node']}/{row['vmid']}",
            f"{row['node']}/{row['name']}",
        ):
            assert (await quorate.facts("guest_get", guest=reference))["vmid"] == row["vmid"]


async def test_concurrent_look_ups_share_one_inventory_request(tmp_path):
    import asyncio

    async with rig(tmp_path) as quorate:
        rows = list(quorate.sim.world.guests)[:10]
        await asyncio.gather(*(quorate.facts("guest_get", guest=vmid) for vmid in rows))
        assert quorate.sim.requests.count(("GET", "/cluster/resources")) == 1


async def test_a_guest_made_a_moment_ago_is_found_by_its_name(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        old = next(guest for guest in world.guests.values() if guest.kind == "lxc" and not guest.running)
        world.remove_guest(old)
        old.config["hostname"] = "just-made"
        world.add_guest(old)
        assert (await quorate.facts("guest_get", guest="just-made"))["vmid"] == old.vmid
        assert (await quorate.rows("guest_list", name="just-made"))[0]["vmid"] == old.vmid


async def test_a_migrated_guest_is_read_from_where_it_is_now(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = next(
            guest for guest in quorate.sim.world.guests.values() if guest.node == "pve1" and not guest.template
        )
        await quorate.facts("guest_get", guest=guest.vmid)
        guest.node = "pve2"
        guest.touch()
        assert (await quorate.facts("guest_get", guest=guest.vmid))["node"] == "pve2"


async def test_node_list_and_storage_list_cost_one_request_each_and_cluster_status_two(tmp_path):
    async with rig(tmp_path) as quorate:
        for tool, most in (("node_list", 1), ("storage_list", 1), ("cluster_status", 2)):
            await quorate.clock.advance(60)
            mark = len(quorate.sim.requests)
            await quorate.facts(tool)
            assert len(quorate.requests_since(mark)) <= most, tool


async def test_node_get_shows_hardware_versions_and_guests(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("node_get", node="pve1")
        assert facts["pve"].startswith("pve-manager/")
        assert facts["guests"]["all"] == len(quorate.sim.world.guests_on("pve1"))
        assert "local" in facts["storages"]


async def test_a_shared_storage_is_one_row_with_its_nodes(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("storage_list")
        shared = [row for row in rows if row.get("shared")]
        assert shared
        assert all(row["nodes"] == "pve1,pve2,pve3" for row in shared)
        images = await quorate.rows("storage_list", content="images")
        assert {row["storage"] for row in images} == {
            row["storage"] for row in rows if "images" in row["content"].split(",")
        }


async def test_answers_stay_small_at_any_size_of_cluster(tmp_path):
    async with rig(tmp_path, nodes=24, guests=500) as quorate:
        for tool, arguments, most in (
            ("guest_list", {"limit": 20}, 2000),
            ("guest_list", {"limit": 50}, 4500),
            ("node_list", {}, 2500),
            ("storage_list", {"limit": 50}, 5000),
        ):
            answer = await quorate.call(tool, **arguments)
            assert len(text_of(answer).encode()) <= most, tool


async def test_invisible_and_bidi_characters_in_notes_do_not_reach_the_caller(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = next(iter(quorate.sim.world.guests.values()))
        guest.config["description"] = "safe\u202e\u200b\U000e0041text"
        facts = await quorate.facts("guest_get", guest=guest.vmid)
        assert facts["notes"] == "safetext"
