"""What an answer advises can be done: it names tools and arguments of the surface that is served."""

import re
from pathlib import Path

import pytest

from quorate.hints import OMITTED, Advice, either, see, tools
from quorate.operations.registry import operations
from quorate.pve.lookup import Resource
from quorate.surfaces import compat
from quorate.surfaces.compat import SYSTEMS, system
from quorate.surfaces.compat.advice import AdviceTranslator
from tests.rigs.advice_texts import built_advice, literal_texts
from tests.rigs.compat_session import refused, surface
from tests.rigs.mcp_session import second_server, text_of

pytestmark = pytest.mark.anyio

OPT_INS = ("PROXMOX_ALLOW_ELEVATED", "PROXMOX_ENABLE_DESTRUCTIVE")
EVERY_NAME = set(operations()) | {tool for name in SYSTEMS for tool in system(name).tools}
EVERY_ARGUMENT = {name for operation in operations().values() for name in operation.arguments.__struct_fields__}
OUR_ARGUMENTS = {name for name in EVERY_ARGUMENT if "_" in name}


def named_in(text):
    """Names of tools, of whichever server; washyu's plans have a part that is called like one."""
    return {word for word in re.findall(r"[\w-]+", text) if word in EVERY_NAME - {"network_changes"}}


def advise(name, tool, advice, guest_type=None):
    """The advice as the caller of a tool reads it."""
    guest = Resource(guest_type, f"{guest_type}/105", "pve3", vmid=105) if guest_type else None
    return advice.render(AdviceTranslator(system(name)).naming(system(name).tools[tool], guest))


@pytest.mark.thorough
def test_there_is_advice_to_look_at():
    advice = built_advice()
    assert len(advice) > 300
    assert any("full=true" in str(text) for text in advice)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SYSTEMS)
def test_no_advice_names_a_tool_or_an_argument_that_is_not_there(name):
    served = system(name)
    translator = AdviceTranslator(served)
    for tool in served.tools.values():
        for advice in built_advice():
            text = advice.render(translator.naming(tool))
            assert named_in(text) <= set(served.tools), (tool.name, str(advice), text)
            mentioned = [tool, *(served.tools[name] for name in named_in(text))]
            arguments = {spelling for tool in mentioned for spelling in tool.spellings}
            assigned = set(re.findall(r"(?<![\w-])([a-z][a-z_]*)=", text)) & EVERY_ARGUMENT
            assert assigned <= arguments, (tool.name, str(advice), text)
            assert set(re.findall(r"\w+", text)) & OUR_ARGUMENTS <= arguments, (tool.name, str(advice), text)
            assert not text.startswith((",", "or ", ";", ":")), (tool.name, str(advice), text)


@pytest.mark.parametrize("name", SYSTEMS)
def test_descriptions_of_a_surface_name_only_its_own_tools(name):
    """Descriptions of tools and arguments, and the hints that are written for this surface."""
    served = system(name)
    texts = [
        part
        for tool in served.tools.values()
        for part in (tool.about, *(parameter.about for parameter in tool.accepted))
    ]
    texts += [text for _, text in literal_texts(Path(compat.__file__).parent / name)]
    for text in texts:
        assert named_in(text) <= set(served.tools), text


def test_a_call_of_ours_becomes_the_call_of_theirs_that_does_the_same():
    follow = Advice("Follow it", tools.task_wait(task="UPID:pve1:1:"))
    assert advise("bsahane", "proxmox-stop-vm", follow) == "Follow it: proxmox-wait-task upid=UPID:pve1:1:"
    assert advise("brynnjocelyn", "stop_vm", follow) == "Follow it: get_task_status upid=UPID:pve1:1:"
    assert advise("gilby125", "proxmox_stop_vm", follow) == "Follow it"
    anyway = Advice(
        "Decommission it anyway", tools.device_decommission(move_to="…"), tools.device_decommission(force=True)
    )
    assert advise("washyu", "decommission_device", anyway) == (
        "Decommission it anyway: decommission_device migration_plan=…, decommission_device force_removal=true"
    )


def test_an_alternative_is_left_out_where_the_tool_does_not_take_its_argument():
    stop = either(Advice("Shut it down first", tools.guest_power(action="shutdown")), Advice("give {stop}", stop=True))
    assert advise("gilby125", "proxmox_delete_lxc", stop) == "Shut it down first: proxmox_shutdown_lxc"
    forced = advise("solomonneas", "proxmox_destroy_resource", stop)
    assert forced == "Shut it down first (proxmox_stop_resource), or give force=true"


def test_an_argument_that_is_required_cannot_be_left_out():
    advice = Advice("Leave {vmid} out", vmid=OMITTED)
    required = {
        (name, tool.name): any(parameter.required for parameter in tool.accepted if "vmid" in parameter.spellings)
        for name in SYSTEMS
        for tool in system(name).tools.values()
        if "vmid" in tool.spellings and "vmid" not in tool.needs
    }
    assert set(required.values()) == {True, False}
    for (name, tool), is_required in required.items():
        assert advise(name, tool, advice) == ("" if is_required else "Leave vmid out"), tool


def test_a_tool_for_either_type_leads_to_the_tools_for_the_type_of_its_guest():
    start = Advice("Start it", tools.guest_power(action="start"))
    assert advise("bsahane", "proxmox-guest-exec", start, "qemu") == "Start it: proxmox-start-vm"
    assert advise("bsahane", "proxmox-guest-exec", start, "lxc") == "Start it: proxmox-start-lxc"


def test_a_tool_that_needs_a_node_is_named_with_that_of_the_guest_and_of_no_other():
    start, other = (Advice("Start it", tools.guest_power(guest=vmid, action="start")) for vmid in (105, 106))
    called = ("gilby125", "proxmox_delete_vm")
    assert advise(*called, start, "qemu") == "Start it: proxmox_start_vm node=pve3 vmid=105"
    assert advise(*called, other, "qemu") == "Start it: proxmox_start_vm vmid=106"
    assert advise("bsahane", "proxmox-delete-vm", start, "qemu") == "Start it: proxmox-start-vm vmid=105"


def test_advice_never_repeats_the_called_tool_or_lists_without_a_tool():
    assert advise("solomonneas", "proxmox_service_status", see("List the services", tools.guest_service)) == ""
    again = Advice("Look at another", tools.guest_service(service="ssh"))
    text = advise("solomonneas", "proxmox_service_status", again)
    assert text == "Look at another: proxmox_service_status service=ssh"


# -- as callers read it ------------------------------------------------------------------------------------------------

TAKEN = [
    ("brynnjocelyn", "create_vm", {"node": "pve1", "vmid": 101}),
    ("brynnjocelyn", "create_container", {"node": "pve1", "vmid": 101, "ostemplate": "debian-13", "storage": "tank"}),
    ("brynnjocelyn", "clone_vm", {"node": "pve1", "vmid": 9000, "newid": 101}),
    ("bsahane", "proxmox-create-vm", {"node": "pve1", "vmid": 101, "name": "x", "confirm": True}),
    ("bsahane", "proxmox-create-lxc", {"vmid": 101, "hostname": "x", "ostemplate": "debian-13", "confirm": True}),
    ("bsahane", "proxmox-clone-vm", {"source_vmid": 9000, "new_vmid": 101, "confirm": True}),
    ("gilby125", "proxmox_create_lxc", {"node": "pve1", "vmid": "101", "ostemplate": "debian-13"}),
    ("gilby125", "proxmox_create_vm", {"node": "pve1", "vmid": "101"}),
    ("gilby125", "proxmox_clone_vm", {"node": "pve1", "vmid": "9000", "newid": "101"}),
    ("solomonneas", "proxmox_create_vm", {"vmid": 101, "name": "x", "confirm": True}),
    ("solomonneas", "proxmox_create_container",
     {"vmid": 101, "hostname": "x", "ostemplate": "debian-13", "confirm": True}),
    ("solomonneas", "proxmox_clone_resource", {"source_vmid": 9000, "new_vmid": 101, "name": "x", "confirm": True}),
    ("washyu", "create_proxmox_vm", {"node": "pve1", "vmid": 101, "name": "x"}),
    ("washyu", "create_proxmox_lxc", {"node": "pve1", "vmid": 101, "hostname": "x", "ostemplate": "debian-13"}),
    ("washyu", "clone_proxmox_vm", {"node": "pve1", "vmid": 9000, "new_vmid": 101}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tool", "arguments"), TAKEN, ids=[f"{name}-{tool}" for name, tool, _ in TAKEN])
async def test_a_vmid_that_is_taken_is_refused_on_every_surface(tmp_path, name, tool, arguments):
    async with surface(tmp_path, name, opt_ins=OPT_INS) as served:
        before = dict(served.sim.world.guests)
        text = await refused(served, tool, **arguments)
        assert "The vmid 101 is taken" in text
        assert "homeassistant" in text
        assert f"such as {served.sim.world.next_free_vmid()}" in text
        optional = next(
            parameter
            for parameter in system(name).tools[tool].parameters
            if arguments.get(parameter.name) in (101, "101")
        )
        assert ("leave vmid out" in text) == (not optional.required)
        assert served.sim.world.guests == before


WITHOUT_LOGIN = [
    ("gilby125", "proxmox_create_lxc", {"node": "pve1", "vmid": "500"}),
    ("solomonneas", "proxmox_create_container", {"vmid": 500, "hostname": "x", "confirm": True}),
    ("washyu", "create_proxmox_lxc", {"node": "pve1", "vmid": 500, "hostname": "x"}),
]


@pytest.mark.parametrize(("name", "tool", "arguments"), WITHOUT_LOGIN, ids=[name for name, *_ in WITHOUT_LOGIN])
async def test_a_warning_names_no_argument_that_the_tool_does_not_have(tmp_path, name, tool, arguments):
    async with surface(tmp_path, name, opt_ins=OPT_INS) as served:
        answer = text_of(await served.call(tool, **arguments, ostemplate="debian-13-standard_13.1-2_amd64.tar.zst"))
        assert "pct enter" in answer
        assert set(re.findall(r"\w+", answer)) & OUR_ARGUMENTS <= set(system(name).tools[tool].spellings)


POWER_OFF = {"name": "pihole", "confirm": True}
LED_TO = [
    ("bsahane", "proxmox-delete-lxc", POWER_OFF, ["Shut it down first"], ["-vm"]),
    ("bsahane", "proxmox-guest-exec", {"vmid": 108, "command": "id"}, ["proxmox-start-vm vmid=108"], ["-lxc"]),
    ("bsahane", "proxmox-configure-vm", {"vmid": 108, "params": {"nosuch": 1}, "confirm": True},
     ["proxmox-vm-info vmid=108"], ["-lxc"]),
    ("bsahane", "proxmox-delete-pool", {"poolid": "lab", "confirm": True},
     ["proxmox-pool-remove poolid=lab"], ["pool-add", "create-pool"]),
    ("bsahane", "proxmox-cloudinit-set", {"vmid": 108, "confirm": True}, ["ciuser"], [" user"]),
    ("bsahane", "proxmox-create-snapshot", {"vmid": 108, "snapname": "clean", "confirm": True},
     ["Choose another name"], [" out"]),
    ("bsahane", "proxmox-vm-metrics", {"vmid": 108, "timeframe": "age"}, ["hour, day, week"], ["See "]),
    ("gilby125", "proxmox_execute_vm_command", {"node": "pve1", "vmid": "108", "command": "id"},
     ["proxmox_start_vm node=pve1 vmid=108"], ["_lxc"]),
    ("gilby125", "proxmox_delete_vm", {"node": "pve1", "vmid": "100"},
     ["proxmox_shutdown_vm node=pve1 vmid=100"], ["_lxc"]),
    ("gilby125", "proxmox_create_snapshot_lxc", {"node": "pve1", "vmid": "200", "snapname": "1 1"},
     ["Choose another"], [" out"]),
    ("gilby125", "proxmox_add_disk_vm",
     {"node": "pve1", "vmid": "108", "disk": "scsi0", "storage": "local-lvm", "size": "1"}, ["is taken"], [" out"]),
    ("gilby125", "proxmox_delete_backup", {"node": "pve1", "storage": "nas", "volume": "backup/vzdump-qemu-1-x.vma"},
     ["proxmox_list_backups"], []),
    ("solomonneas", "proxmox_list_storage", {"node": "pve9"}, ["List the nodes: proxmox_status"], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tool", "arguments", "has", "lacks"), LED_TO, ids=[f"{name}-{tool}" for name, tool, *_ in LED_TO]
)
async def test_a_refusal_leads_only_to_what_helps_there(tmp_path, name, tool, arguments, has, lacks):
    async with surface(tmp_path, name, opt_ins=OPT_INS) as served:
        text = await refused(served, tool, **arguments)
        assert all(name in text for name in has), text
        assert not any(lack in text for lack in lacks), text


async def test_without_a_visible_bridge_the_advice_fits_the_tool(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as served:
        world = served.sim.world
        for path, role in (("/vms", "PVEVMAdmin"), ("/storage", "PVEDatastoreUser")):
            world.access.grant(path, role, "alice@pve")
        world.access.invalidate_cache()
        async with second_server(served, tmp_path / "theirs.jsonl", token="alice@pve!cli") as alice:
            theirs = await refused(alice, "create_vm", node="pve1", vmid=500)
        ours_file = tmp_path / "ours.jsonl"
        async with second_server(served, ours_file, token="alice@pve!cli", surfaces=("native",)) as alice:
            ours = await alice.refusal("vm_create", name="x", node="pve1")
            assert not (await alice.call("vm_create", name="x", node="pve1", networks=[], dry_run=True)).is_error
    assert "SDN.Use" in theirs
    assert "networks" not in theirs
    assert theirs.rstrip(".").endswith("localnetwork")
    assert "give networks=[] for no network" in ours


BACKUP = "some backup of a VM"
RESTORES = [
    ("brynnjocelyn", "restore_backup", {"node": "pve1", "storage": "nas", "volid": BACKUP, "vmid": 104}),
    ("bsahane", "proxmox-restore-vm", {"node": "pve1", "vmid": 104, "archive": BACKUP, "confirm": True}),
    ("gilby125", "proxmox_restore_backup_vm", {"node": "pve1", "vmid": "104", "archive": BACKUP}),
]


@pytest.mark.parametrize(("name", "tool", "arguments"), RESTORES, ids=[name for name, *_ in RESTORES])
async def test_a_restore_to_a_taken_vmid_is_refused_with_what_can_be_done_there(tmp_path, name, tool, arguments):
    async with surface(tmp_path, name, opt_ins=OPT_INS) as served:
        stored = served.sim.world.storages["nas"].volumes("pve1")
        backup = next(volume.volid for volume in stored if "vzdump-qemu" in volume.volid)
        archive = {key: backup if value == BACKUP else value for key, value in arguments.items()}
        text = await refused(served, tool, **archive)
        assert "already exists" in text or "is taken" in text
        assert "overwrite" not in text
        assert ("force=true" in text) == (name != "gilby125")


async def test_a_change_of_several_steps_that_fails_names_only_tools_of_the_surface(tmp_path):
    async with surface(tmp_path, "washyu", opt_ins=OPT_INS) as served:
        running = next(
            guest.vmid for guest in served.sim.world.guests.values() if guest.kind == "qemu" and guest.running
        )
        node = served.sim.world.guests[running].node
        served.sim.faults.add("595:DELETE:/nodes/*")
        text = text_of(await served.call("delete_proxmox_vm", node=node, vmid=running))
        assert "list_proxmox_resources" in text
        assert named_in(text) <= set(system("washyu").tools), text
