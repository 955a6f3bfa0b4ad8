"""Capacity for new guests and for the loss of a node, compared with the sizes in the simulated world."""

import pytest

from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio

GIB = 1024**3


def given_to(world, node):
    return sum(guest.memory for guest in world.guests_on(node) if guest.running)


async def by_node(quorate, **arguments):
    facts = await quorate.facts("capacity_plan", **arguments)
    key = facts["columns"][0]
    return facts, {row[key]: row for row in [dict(zip(facts["columns"], each, strict=True)) for each in facts["rows"]]}


async def test_without_arguments_every_node_is_shown_as_it_is(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, nodes = await by_node(quorate)
        assert set(nodes) == {"pve1", "pve2", "pve3"}
        for name, row in nodes.items():
            assert row["memory_given"].split()[0] == f"{given_to(quorate.sim.world, name) / GIB:.0f}G"
        assert nodes["pve3"]["cores_given"] == "16 of 8 (2.0:1)"
        assert facts["with"].startswith("nothing new")


async def test_a_guest_fits_where_memory_was_not_given_away_already(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, nodes = await by_node(quorate, cores=4, memory="16G", disk=100)
        assert facts["best"] == "pve1"
        assert facts["with"] == "4 cores, 16G of memory, 100G for images"
        assert nodes["pve1"]["fits"] == nodes["pve2"]["fits"] == "yes"
        # 32 GiB, of which guests were given 19 and use less: it starts, but not everyone could use all of theirs
        assert given_to(quorate.sim.world, "pve3") + 16 * GIB > 32 * GIB
        assert nodes["pve3"]["fits"] == "overcommitted"
        assert "more memory than is left" in nodes["pve3"]["why"]


async def test_an_impossible_size_is_refused_with_the_reason(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, nodes = await by_node(quorate, cores=12, memory="60G")
        assert facts["best"] == "none"
        assert "more cores than the node's 8" in nodes["pve3"]["why"]
        assert "of memory are free now" in nodes["pve1"]["why"]


async def test_a_disk_goes_to_a_storage_for_that_content(tmp_path):
    async with rig(tmp_path) as quorate:
        _, nodes = await by_node(quorate, disk="2T", content="images")
        assert all(row["storage"].startswith("nas") for row in nodes.values())
        _, nodes = await by_node(quorate, disk="2T", content="rootdir")
        assert nodes["pve1"]["storage"].startswith("tank")
        assert nodes["pve3"]["fits"] == "no"
        assert "no storage has 2T free (local-lvm" in nodes["pve3"]["why"]


async def test_a_thin_storage_that_has_promised_too_much_is_overcommitted(tmp_path):
    async with rig(tmp_path) as quorate:
        space = quorate.sim.world.storages["local-lvm"].space("pve3")
        promised = sum(volume.size for volume in space.volumes.values())
        gibibytes = (space.total - promised) // GIB + 10
        assert gibibytes * GIB < space.available
        _, nodes = await by_node(quorate, disk=gibibytes, content="rootdir")
        assert nodes["pve3"]["fits"] == "overcommitted"
        assert "local-lvm would have promised" in nodes["pve3"]["why"]


async def test_a_shared_storage_is_read_once(tmp_path):
    async with rig(tmp_path) as quorate:
        await by_node(quorate, disk=10)
        paths = [path for _, path in quorate.sim.requests if path.endswith("/storage/nas/content")]
        assert len(paths) == 1


async def test_an_offline_node_is_reported_as_not_counted(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve1"]) as quorate:
        facts, nodes = await by_node(quorate, memory="1G")
        assert set(nodes) == {"pve2", "pve3"}
        assert facts["not_counted"][0].startswith("pve1 (offline")


async def test_the_loss_of_a_node_shows_remaining_room_and_lost_guests(tmp_path):
    async with rig(tmp_path) as quorate:
        _, nodes = await by_node(quorate, fails="pve1")
        row = nodes["pve1"]
        assert row["guests"] == sum(guest.running for guest in quorate.sim.world.guests_on("pve1"))
        assert row["room"] == "yes"
        assert row["to"] == "pve2: 5"
        assert "100 router (local-lvm)" in row["only_from_backup"]
        assert "homeassistant" not in row["only_from_backup"]  # on nas, and under HA
        assert "start_by_hand" not in row


async def test_a_guest_on_shared_disks_without_ha_has_to_be_started_by_hand(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.ha.clear()
        _, nodes = await by_node(quorate, fails="pve1")
        assert nodes["pve1"]["start_by_hand"] == "101 homeassistant"


async def test_a_replicated_guest_is_not_lost(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("replication_set", guest=102, target="pve2")
        _, nodes = await by_node(quorate, fails="pve1")
        assert "docker01" not in nodes["pve1"]["only_from_backup"]
        assert "docker01" in nodes["pve1"]["start_by_hand"]


@pytest.mark.parametrize(("memory", "verdict"), [(50, "overcommitted"), (90, "no")])
async def test_a_cluster_without_reserve_is_reported_honestly(tmp_path, memory, verdict):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[103]
        guest.config["memory"] = str(memory * 1024)
        guest.touch()
        await quorate.clock.advance(10)
        _, nodes = await by_node(quorate, fails="pve2")
        assert nodes["pve2"]["room"] == verdict
        if verdict == "no":
            assert nodes["pve2"]["no_room_for"] == "103 docker02"


async def test_all_nodes_are_asked_in_turn(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, nodes = await by_node(quorate, fails="all")
        assert set(nodes) == {"pve1", "pve2", "pve3"}
        assert facts["verdict"] == "Not every node can fail without loss"


async def test_sizes_on_an_offline_node_are_unknown(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        _, nodes = await by_node(quorate, fails="pve3")
        assert nodes["pve3"]["room"].startswith("unknown")
        assert nodes["pve3"]["unread"].startswith("105")


async def test_questions_that_make_no_sense_are_refused(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "The nodes are pve1, pve2, pve3; or say all" in await quorate.refusal("capacity_plan", fails="pve9")
        assert "cannot be combined with" in await quorate.refusal("capacity_plan", fails="pve1", cores=2)
        assert "is not a size" in await quorate.refusal("capacity_plan", memory="plenty")
    async with rig(tmp_path, nodes=1, guests=3) as quorate:
        assert "There is only one node" in await quorate.refusal("capacity_plan", fails="pve1")


async def test_without_the_right_to_see_numbers_the_right_is_named(tmp_path):
    async with (
        rig(tmp_path) as quorate,
        second_server(quorate, tmp_path / "alice.jsonl", token="alice@pve!ci") as alice,
    ):
        assert "Sys.Audit" in await alice.refusal("capacity_plan", memory="1G")


async def test_hidden_promises_do_not_count_as_none(tmp_path):
    async with (
        rig(tmp_path) as quorate,
        second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob,
    ):
        _, nodes = await by_node(bob, disk=10)
        assert all("how much it has promised is hidden" in row["storage"] for row in nodes.values())


# -- several guests of one size ----------------------------------------------------------------------------------------


def uncommitted(world, node):
    """Memory that neither the node nor a guest that runs or starts at boot may claim."""
    started = [guest for guest in world.guests_on(node) if guest.running or guest.config.get("onboot") == 1]
    return world.nodes[node].memory - sum(guest.memory for guest in started)


async def test_how_many_fit_counts_running_guests_and_those_that_start_at_boot(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, nodes = await by_node(quorate, count=3, memory="8G")
        before = {name: row["fit"] for name, row in nodes.items()}
        assert facts["fit"] == sum(before.values())
        for name, row in nodes.items():
            assert row["fit"] <= uncommitted(quorate.sim.world, name) // (8 * GIB)
        # A stopped guest that starts at boot takes its room before anything new does.
        stopped = quorate.sim.world.guests[107]
        stopped.config.update(onboot=1, memory="16384")
        stopped.touch()
        await quorate.clock.advance(20)
        facts, nodes = await by_node(quorate, count=3, memory="8G")
        assert nodes["pve2"]["starts_at_boot"] == "16G (107 win11)"
        assert nodes["pve2"]["fit"] == before["pve2"] - 2


async def test_the_loss_of_a_node_and_a_reserve_lower_the_number(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, nodes = await by_node(quorate, count=2, memory="4G")
        assert facts["fit_with_a_node_lost"] <= facts["fit"]
        assert facts["fit_with_a_node_lost"] == min(
            int(row["fit_if_it_fails"].partition(":")[0]) for row in nodes.values()
        )
        assert facts["answer"].startswith(f"yes: {facts['fit']} fit without overcommitting; ")
        reserved, nodes = await by_node(quorate, count=2, memory="4G", reserve="25%")
        assert reserved["fit"] < facts["fit"]
        assert nodes["pve3"]["reserve"] == 8 * GIB
        too_many, _ = await by_node(quorate, count=500, memory="4G", fails="pve1")
        assert too_many["answer"].startswith("no: ")
        assert "if pve1 may fail" in too_many["answer"]


async def test_disks_count_too_and_a_vm_needs_a_node_with_its_cores(tmp_path):
    async with rig(tmp_path) as quorate:
        small = (await by_node(quorate, count=1, memory="1G"))[0]["fit"]
        facts, _ = await by_node(quorate, count=1, memory="1G", disk="1T")
        assert 0 < facts["fit"] < small
        facts, nodes = await by_node(quorate, count=1, memory="1G", cores=12)
        assert nodes["pve3"]["fit"] == 0
        assert "more cores than the node's 8" in nodes["pve3"]["why"]
        assert facts["one_guest"] == "12 cores, 1G of memory"
        _, nodes = await by_node(quorate, count=1, memory="1G", disk="90T")
        assert all("no storage holds 90T" in row["why"] for row in nodes.values())


async def test_cores_count_by_what_is_idle_and_decide_between_nodes(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[108].config["cores"] = 8
        await quorate.facts("guest_power", guest=108, action="start")
        await quorate.clock.advance(60)
        facts, nodes = await by_node(quorate, cores=4)
        assert nodes["pve1"]["cores_given"] == "23 of 16 (1.4:1)"
        assert facts["best"] == "pve2"
        _, nodes = await by_node(quorate, cores=8)
        assert nodes["pve3"]["fits"] == "overcommitted"
        assert "of the node's 8 cores are idle now" in nodes["pve3"]["why"]
        _, nodes = await by_node(quorate, cores=12, content="rootdir")
        assert "a container gets no more than the node's 8 cores" in nodes["pve3"]["why"]


async def test_a_node_without_a_storage_for_the_disk_says_so(tmp_path):
    async with rig(tmp_path) as quorate:
        for storage in quorate.sim.world.storages.values():
            storage.content = tuple(kind for kind in storage.content if kind != "images")
        await quorate.clock.advance(60)
        _, nodes = await by_node(quorate, disk="1G")
        assert nodes["pve1"]["why"] == "none of its storages takes disks of VMs (content images)"


async def test_guests_that_have_no_room_after_a_loss_are_named(tmp_path):
    async with rig(tmp_path) as quorate:
        for guest in quorate.sim.world.guests_on("pve2"):
            guest.config["memory"] = "40960"
            guest.touch()
        await quorate.clock.advance(20)
        facts, nodes = await by_node(quorate, count=1, memory="1G")
        assert facts["fit_with_a_node_lost"] == 0
        assert nodes["pve2"]["fit_if_it_fails"].startswith("0: the others have no room for")


async def test_a_count_needs_the_memory_of_one_guest(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "count needs memory" in await quorate.refusal("capacity_plan", count=2)
        assert "reserve needs count" in await quorate.refusal("capacity_plan", memory="1G", reserve="10%")
        assert "no node 'pve9'" in await quorate.refusal("capacity_plan", count=2, memory="1G", fails="pve9")
