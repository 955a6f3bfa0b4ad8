"""Creating virtual machines: requested settings, chosen defaults, and refusals."""

import asyncio
import base64
from urllib.parse import unquote

import pytest

from pve_simulator.guests.guest import GIB
from pve_simulator.storage.storages import Volume
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio

BLOB = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519" + b"\x00\x00\x00\x20" + b"k" * 32).decode()
KEY = f"ssh-ed25519 {BLOB} me@desk"


def put_file(quorate, volid, content, *, node="pve1", fmt="qcow2", size=3 * GIB, virtual_size=None):
    storage = quorate.sim.world.storages[volid.partition(":")[0]]
    storage.add(node, Volume(volid, content, fmt, size, size, 0, virtual_size=virtual_size))


async def created(quorate, **arguments):
    facts = await quorate.facts("vm_create", **arguments)
    return quorate.sim.world.guests[facts["vmid"]], facts


# -- defaults ----------------------------------------------------------------------------------------------------------


async def test_a_name_is_enough_and_every_choice_is_shown(tmp_path):
    async with rig(tmp_path) as quorate:
        vmid = quorate.sim.world.next_free_vmid()
        vm, facts = await created(quorate, name="web")
        assert (vm.vmid, vm.name, vm.kind, vm.running) == (vmid, "web", "qemu", False)
        assert facts["result"] == "done"
        assert facts["node"] == vm.node
        assert facts["chosen"]["bridge"] == "vmbr0"
        assert vm.config["scsi0"].startswith(facts["chosen"]["storage"] + ":")
        assert "size=32G" in vm.config["scsi0"]
        assert vm.config["net0"].startswith("virtio=")
        assert vm.config["boot"] == "order=scsi0;net0"
        assert vm.config["scsihw"] == "virtio-scsi-single"
        assert facts["status"] == "stopped"
        assert facts["networks"]["net0"] == vm.config["net0"]
        assert facts["next"] == f"Start it: guest_power guest={vmid} action=start"


async def test_a_dry_run_changes_nothing_and_keeps_no_id(tmp_path):
    async with rig(tmp_path) as quorate:
        before = set(quorate.sim.world.guests)
        shown = [(await quorate.facts("vm_create", name="web", dry_run=True))["vmid"] for _ in range(2)]
        assert shown[0] == shown[1]
        assert set(quorate.sim.world.guests) == before
        assert quorate.writes == []


async def test_the_configured_defaults_come_first(tmp_path):
    async with rig(tmp_path) as quorate:
        from quorate.pve.cluster import Defaults

        assert quorate.app.cluster is not None
        quorate.app.cluster.defaults = Defaults(node="pve2", storage="local-lvm", bridge="vmbr0")
        vm, facts = await created(quorate, name="web")
        assert vm.node == "pve2"
        assert facts["chosen"]["storage"] == "local-lvm"
        assert "format" not in vm.config["scsi0"]


async def test_a_started_vm_runs_when_the_call_returns(tmp_path):
    async with rig(tmp_path) as quorate:
        vm, facts = await created(quorate, name="web", start=True)
        assert [step["state"] for step in facts["steps"]] == ["done", "done"]
        assert vm.running
        assert facts["status"] == "running"
        assert "guest_get" in facts["next"]


async def test_what_could_not_be_done_in_time_is_named(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("vm_create", name="slow", start=True, wait=0)
        assert facts["result"] == "running"
        assert "task_wait" in facts["next"]
        assert "Start vm" in facts["next"]


# -- hardware ----------------------------------------------------------------------------------------------------------


async def test_everything_that_is_asked_for_is_set(tmp_path):
    async with rig(tmp_path) as quorate:
        vm, _ = await created(
            quorate, name="big.lan", node="pve1", vmid=555, cores=4, sockets=2, cpu="host", memory="4G", balloon="1G",
            ostype="l26", machine="q35", agent=True, tags=["Web", "prod", "web"], pool="lab", description="for tests",
            onboot=True, options={"numa": True, "vga": {"type": "std", "memory": 32}, "rng0": "source=/dev/urandom"},
            disks=["local-lvm:8G", {"size": "512M", "storage": "tank", "bus": "virtio", "discard": 1, "cache": "none"},
                   {"size": 10, "storage": "nas", "format": "raw", "bus": "sata"}],
            networks=["vmbr0,tag=20", {"bridge": "vmbr1", "model": "e1000", "mac": "BC:24:11:00:00:01", "firewall": 1,
                                       "rate": 12.5, "mtu": 1400, "vlan": 30}],
        )  # fmt: skip
        config = vm.config
        assert (vm.vmid, vm.node, config["cores"], config["sockets"], config["cpu"]) == (555, "pve1", 4, 2, "host")
        assert (config["memory"], config["balloon"], config["machine"], config["agent"]) == ("4096", 1024, "q35", "1")
        assert (config["tags"], config["description"], config["onboot"]) == ("Web;prod", "for tests", 1)
        assert 555 in quorate.sim.world.access.pools["lab"].vms
        assert (config["numa"], config["vga"], config["rng0"]) == (1, "type=std,memory=32", "source=/dev/urandom")
        assert config["scsi0"] == "local-lvm:vm-555-disk-0,iothread=1,size=8G"
        assert config["virtio0"] == "tank:vm-555-disk-0,cache=none,discard=on,iothread=1,size=512M"
        assert config["sata0"] == "nas:555/vm-555-disk-0.raw,size=10G"
        assert config["net0"].endswith("bridge=vmbr0,tag=20")
        assert config["net1"] == "e1000=BC:24:11:00:00:01,bridge=vmbr1,firewall=1,mtu=1400,rate=12.5,tag=30"
        assert config["boot"] == "order=scsi0;virtio0;sata0;net0"


@pytest.mark.parametrize(
    ("storage", "ending"), [("nas", "vm-300-disk-0.qcow2"), ("local-lvm", "vm-300-disk-0"), ("tank", "vm-300-disk-0")]
)
async def test_a_disk_has_the_format_that_suits_its_storage(tmp_path, storage, ending):
    async with rig(tmp_path) as quorate:
        vm, _ = await created(quorate, vmid=300, storage=storage, disks=["4G"])
        assert vm.config["scsi0"].split(",")[0].endswith(ending)


async def test_a_vm_can_have_neither_disk_nor_network(tmp_path):
    async with rig(tmp_path) as quorate:
        vm, facts = await created(quorate, name="bare", disks=[], networks=[])
        assert not [key for key in vm.config if key.startswith(("scsi", "net")) and key != "scsihw"]
        assert "disks" not in facts
        assert "networks" not in facts


async def test_an_iso_is_found_by_part_of_its_name_on_the_node_that_has_it(tmp_path):
    async with rig(tmp_path) as quorate:
        put_file(quorate, "local:iso/only-here.iso", "iso", node="pve3", fmt="iso")
        vm, _ = await created(quorate, name="web", iso="only-here")
        assert vm.node == "pve3"
        assert vm.config["ide2"].startswith("local:iso/only-here.iso,media=cdrom")
        assert vm.config["boot"] == "order=ide2;scsi0;net0"


async def test_an_iso_is_found_by_its_volid(tmp_path):
    async with rig(tmp_path) as quorate:
        vm, _ = await created(quorate, node="pve2", iso="nas:iso/ubuntu-24.04.3-live-server-amd64.iso")
        assert vm.config["ide2"].startswith("nas:iso/ubuntu")


async def test_windows_11_gets_uefi_a_tpm_and_devices_it_has_drivers_for(tmp_path):
    async with rig(tmp_path) as quorate:
        put_file(quorate, "nas:iso/Win11_24H2_English_x64.iso", "iso", fmt="iso")
        vm, facts = await created(quorate, name="desk", iso="Win11_24H2")
        assert (vm.config["ostype"], vm.config["bios"]) == ("win11", "ovmf")
        assert "q35" in vm.config["machine"]
        assert "efitype=4m" in vm.config["efidisk0"]
        assert "version=v2.0" in vm.config["tpmstate0"]
        assert "sata0" in vm.config
        assert vm.config["net0"].startswith("e1000=")
        assert (facts["chosen"]["ostype"], facts["chosen"]["bios"]) == ("win11", "ovmf")


async def test_with_the_drivers_cd_windows_gets_the_fast_devices(tmp_path):
    async with rig(tmp_path) as quorate:
        put_file(quorate, "nas:iso/Win11_24H2_English_x64.iso", "iso", fmt="iso")
        vm, _ = await created(quorate, iso=["Win11_24H2", "virtio-win"])
        assert "Win11" in vm.config["ide2"]
        assert "virtio-win" in vm.config["ide3"]
        assert "scsi0" in vm.config
        assert vm.config["net0"].startswith("virtio=")


# -- cloud images ------------------------------------------------------------------------------------------------------


async def test_a_cloud_image_is_imported_grown_and_set_up_for_login(tmp_path):
    async with rig(tmp_path) as quorate:
        put_file(quorate, "local:import/debian-13-generic.qcow2", "import")
        vm, facts = await created(
            quorate, name="cloud", start=True, disks=[{"import_from": "debian-13-generic", "size": "20G"}],
            cloud_init={"user": "me", "password": "very-secret-1", "ssh_keys": [KEY], "ip": "10.0.0.5/24",
                        "gateway": "10.0.0.1", "ip6": "auto", "dns": ["1.1.1.1", "9.9.9.9"], "search_domain": "lan",
                        "upgrade": False, "ipconfig1": "ip=dhcp"},
        )  # fmt: skip
        assert [step["state"] for step in facts["steps"]] == ["done"] * 3
        assert "size=20G" in vm.config["scsi0"]
        assert "cloudinit" in vm.config["ide2"]
        assert unquote(vm.config["sshkeys"]) == KEY + "\n"
        assert (vm.config["ciuser"], vm.config["ciupgrade"]) == ("me", 0)
        assert vm.config["ipconfig0"] == "ip=10.0.0.5/24,ip6=auto,gw=10.0.0.1"
        assert vm.config["ipconfig1"] == "ip=dhcp"
        assert (vm.config["nameserver"], vm.config["searchdomain"]) == ("1.1.1.1 9.9.9.9", "lan")
        assert vm.running
        assert "very-secret-1" not in str(facts)
        assert "very-secret-1" not in quorate.audit_file.read_text()


async def test_an_image_keeps_its_size_if_none_is_asked_for(tmp_path):
    async with rig(tmp_path) as quorate:
        put_file(quorate, "local:import/debian-13-generic.qcow2", "import")
        disk = {"import_from": "local:import/debian-13-generic.qcow2", "storage": "local-lvm"}
        vm, facts = await created(quorate, disks=[disk], cloud_init={})
        assert "size=3G" in vm.config["scsi0"]
        assert "steps" not in facts
        assert vm.config["ipconfig0"] == "ip=dhcp"


async def test_an_image_kept_as_iso_cannot_be_imported_and_the_refusal_says_what_to_do(tmp_path):
    async with rig(tmp_path) as quorate:
        put_file(quorate, "local:iso/noble-server.img", "iso", fmt="iso")
        for image in ("noble-server.img", "local:iso/noble-server.img"):
            text = await quorate.refusal("vm_create", node="pve1", disks=[{"import_from": image}])
            assert "kept as iso" in text
            assert "content import" in text


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
async def test_both_versions_of_pve_take_the_whole_plan(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        put_file(quorate, "local:import/debian-13-generic.qcow2", "import")
        vm, facts = await created(
            quorate, name="cloud", bios="ovmf", tpm=True, disks=[{"import_from": "debian-13", "size": "9G"}, "1G"],
            cloud_init={"user": "me", "ssh_keys": KEY}, iso="debian-13.1", agent=True, balloon=0, onboot=False,
            start=True,
        )  # fmt: skip
        assert facts["result"] == "done"
        assert vm.running
        assert vm.config["balloon"] == 0


# -- numbers and races -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "holder"),
    [
        ("vm_create", {"name": "web", "vmid": 101}, "homeassistant"),
        ("container_create", {"template": "debian-13", "vmid": 200}, "pihole"),
    ],
)
async def test_a_taken_id_is_refused_with_the_name_of_its_holder_and_a_free_one(tmp_path, tool, arguments, holder):
    async with rig(tmp_path) as quorate:
        before = dict(quorate.sim.world.guests)
        free = quorate.sim.world.next_free_vmid()
        await quorate.refuses(tool, [f"The vmid {arguments['vmid']} is taken", holder, f"such as {free}"], **arguments)
        assert quorate.sim.world.guests == before
        assert "100 to 999999999" in await quorate.refusal(tool, **{**arguments, "vmid": 99})


async def test_many_at_once_get_an_id_each(tmp_path):
    async with rig(tmp_path) as quorate:
        answers = await asyncio.gather(*(quorate.facts("vm_create", name=f"n{number}") for number in range(12)))
        made = {facts["vmid"] for facts in answers}
        assert len(made) == 12
        assert {quorate.sim.world.guests[vmid].name for vmid in made} == {f"n{number}" for number in range(12)}


async def test_an_id_that_another_administrator_takes_first_is_replaced_by_the_next(tmp_path):
    async with rig(tmp_path) as quorate, second_server(quorate, tmp_path / "other.jsonl") as other:
        answers = await asyncio.gather(
            *(
                server.facts("vm_create", name=f"n{n}-{m}")
                for n in range(4)
                for m, server in enumerate((quorate, other))
            )
        )
        assert all(facts["result"] == "done" for facts in answers)
        assert len({facts["vmid"] for facts in answers}) == 8


@pytest.mark.parametrize("cut", ["drop:after", "drop:mid"])
async def test_a_lost_answer_never_makes_two_vms(tmp_path, cut):
    async with rig(tmp_path, faults=[f"{cut}:POST:/nodes/*/qemu"]) as quorate:
        before = len(quorate.sim.world.guests)
        facts = await quorate.facts("vm_create", name="once")
        assert facts["result"] == "done"
        assert "answer was lost" in facts["note"]
        assert len(quorate.sim.world.guests) == before + 1


async def test_a_task_that_fails_leaves_nothing_and_says_why(tmp_path):
    async with rig(tmp_path, faults=["task-fails:qmcreate:unable to create VM - no space left"]) as quorate:
        text = await quorate.refusal("vm_create", name="web")
        assert "no space left" in text
        assert "UPID:" in text


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "my server_1"}, ("DNS name", "'my-server-1' would work")),
        ({"name": "-"}, ("DNS name",)),
        ({"tags": ["no way!"]}, ("'no way!' cannot be a tag",)),
        ({"memory": 4}, ("less than 16 MiB", "4096 is 4 GiB")),
        ({"memory": "lots"}, ("is not a size",)),
        ({"memory": "1G", "balloon": "2G"}, ("balloon is more than memory",)),
        ({"memory": "2T"}, ("No node has 2T of memory",)),
        ({"disks": ["lots"]}, ("is not a size",)),
        ({"disks": [{"storage": "nas"}]}, ("has no size", "local-lvm:32G")),
        ({"disks": [{"size": 8, "bus": "floppy"}]}, ("no bus 'floppy'", "scsi")),
        ({"disks": [{"size": 8, "bus": "scsi", "foo": 1}]}, ("scsi0.foo",)),
        ({"disks": [{"size": 8, "serial": "a,b"}]}, ("comma",)),
        ({"disks": ["nowhere:8G"]}, ("no storage 'nowhere'",)),
        ({"disks": ["pbs:8G"]}, ("does not take images",)),
        (
            {"disks": [{"size": 8, "storage": "local-lvm", "format": "qcow2"}]},
            ("keeps disks as raw, not qcow2", "Leave format out"),
        ),
        ({"disks": [{"size": 1, "bus": "ide"}] * 5}, ("only 4 ide drives",)),
        ({"disks": ["90T"]}, ("free, not 90T",)),
        ({"iso": "debain-13.1.0-amd64-netinst.iso"}, ("no ISO image", "Did you mean 'debian-13.1.0-amd64-netinst.iso")),
        ({"iso": "local:iso/none.iso"}, ("no ISO image",)),
        ({"iso": "amd64"}, ("Several ISO images match", "Give more of the name")),
        ({"networks": ["vmbr7"]}, ("no bridge 'vmbr7'", "vmbr0")),
        ({"networks": [{"model": "fast"}]}, ("no network card model 'fast'", "virtio")),
        ({"networks": ["vmbr0,ip=10.0.0.5/24"]}, ("go into cloud_init",)),
        ({"networks": ["vmbr0,tag=5000"]}, ("net0.tag", "4094")),
        ({"cloud_init": {"usr": "me"}}, ("cloud_init has no 'usr'", "Did you mean 'user'")),
        ({"cloud_init": {"ip": "10.0.0.5"}}, ("lacks its prefix", "/24")),
        ({"cloud_init": {"ip": "10.0.0.500/24"}}, ("not an IPv4 address",)),
        ({"cloud_init": {"gateway": "10.0.0.1"}}, ("requires a static ip",)),
        ({"cloud_init": {"ip": "10.0.0.5/24", "gateway": "10.0.0.1/24"}}, ("not an IPv4 gateway",)),
        ({"cloud_init": {"ssh_keys": "ssh-rsa nonsense"}}, ("not a public key", "never the private key")),
        ({"cloud_init": {"ip": "dhcp", "ipconfig0": "ip=dhcp"}}, ("ipconfig0 and its parts",)),
        ({"pool": "nowhere"}, ("no pool 'nowhere'", "lab, production")),
        ({"node": "pve9"}, ("no node 'pve9'",)),
        ({"ostype": "beos"}, ("ostype", "enumeration")),
        ({"options": {"hotplgu": "1"}}, ("no option 'hotplgu'", "Did you mean 'hotplug'")),
        ({"options": {"archive": "pbs:backup/vm/102/2026"}}, ("no option 'archive'", "backup_restore")),
        ({"options": {"force": 1}}, ("no option 'force'",)),
        ({"options": {"cores": 3}}, ("'cores' is specified twice",)),
        ({"options": {"net0": "virtio,bridge=vmbr0"}}, ("'net0' is specified twice",)),
        ({"disks": [{"import_from": "/root/disk.qcow2"}]}, ("Only root@pam itself", "content import")),
        ({"disks": [{"import_from": "nothing.qcow2"}]}, ("no disk image 'nothing.qcow2'",)),
        ({"disks": [{"import_from": "local:import/nothing.qcow2"}]}, ("no disk image",)),
    ],
)
async def test_what_pve_would_refuse_is_refused_before_with_a_way_out(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("vm_create", **arguments)
        assert [word for word in words if word not in text] == [], text
        assert quorate.writes == []


async def test_a_private_key_by_mistake_is_refused_and_written_nowhere(tmp_path):
    async with rig(tmp_path) as quorate:
        key = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{BLOB}\n-----END OPENSSH PRIVATE KEY-----"
        text = await quorate.refusal("vm_create", cloud_init={"ssh_keys": key})
        assert "never the private key" in text
        assert BLOB not in text
        assert BLOB not in quorate.audit_file.read_text()


async def test_an_image_does_not_shrink(tmp_path):
    async with rig(tmp_path) as quorate:
        put_file(quorate, "local:import/big.raw", "import", fmt="raw", size=30 * GIB)
        text = await quorate.refusal("vm_create", disks=[{"import_from": "big.raw", "size": "20G"}])
        assert "makes a disk of 30G, more than 20G" in text


async def test_an_image_counts_by_the_disk_in_it_and_not_by_its_file(tmp_path):
    async with rig(tmp_path) as quorate:
        volid = "local:import/cloud.qcow2"
        put_file(quorate, volid, "import", size=GIB // 2, virtual_size=4 * GIB)
        for image in ("cloud.qcow2", volid):
            text = await quorate.refusal("vm_create", node="pve1", disks=[{"import_from": image, "size": "2G"}])
            assert "makes a disk of 4G, more than 2G" in text
        assert quorate.writes == []
        vm, facts = await created(quorate, node="pve1", disks=[{"import_from": "cloud.qcow2", "size": "4G"}])
        assert "size=4G" in vm.config["scsi0"]
        assert "steps" not in facts


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
async def test_a_disk_of_an_appliance_archive_is_imported_by_its_name(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        archive = "local:import/shop.ova"
        put_file(quorate, archive, "import", fmt="ova", size=GIB, virtual_size=4 * GIB)
        disk = {"import_from": f"{archive}/shop-disk1.vmdk", "storage": "local-lvm"}
        vm, _ = await created(quorate, node="pve1", disks=[disk])
        assert "size=4G" in vm.config["scsi0"]
        vm, _ = await created(quorate, node="pve1", disks=[disk], options={"import-working-storage": "nas"})
        assert "size=4G" in vm.config["scsi0"]
        text = await quorate.refusal("vm_create", node="pve1", disks=[{"import_from": "shop.ova"}])
        assert f"Give {archive}/shop-disk1.vmdk" in text


async def test_a_full_thin_storage_is_a_warning_and_a_full_thick_one_a_refusal(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("vm_create", node="pve1", disks=["local-lvm:2T"], dry_run=True)
        assert "full disks would not fit" in facts["warnings"][0]
        quorate.sim.world.storages["local-lvm"].type = "lvm"
        await quorate.clock.advance(5)
        assert "Choose another storage" in await quorate.refusal("vm_create", node="pve1", disks=["local-lvm:2T"])


async def test_a_namesake_and_too_many_cores_are_warned_of(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("vm_create", name="docker01", node="pve3", cores=32, dry_run=True)
        assert any("same name" in warning for warning in facts["warnings"])
        assert any("refuse to start" in warning for warning in facts["warnings"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cores": 32}, "MAX 8 vcpus allowed per vm on this node"),
        ({"machine": "pc-q35-11.0"}, "too old to run machine type 'pc-q35-11.0'"),
        ({"machine": "pc-i440fx-2.4"}, "unsupported machine type 'pc-i440fx-2.4'"),
        ({"cores": 2, "options": {"vcpus": 4}}, "vcpus=4 is more than cores times sockets, which is 2"),
        ({"memory": 1024, "options": {"numa": 1, "numa0": "cpus=0-1,memory=512"}}, "must be equal to vm static memory"),
        ({"options": {"numa": 1, "numa0": "cpus=0-1"}}, "missing NUMA node0 memory value"),
        ({"cpu": "host", "options": {"kvm": 0}}, "CPU model 'host' requires KVM"),
        (
            {"options": {"hostpci0": "mapping=gpu"}},
            "mapped to gpu, which pve3 cannot use (no such mapping)",
        ),
    ],
)
async def test_what_pve_refuses_only_at_start_is_found_while_planning(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        planned = await quorate.facts("vm_create", name="web", node="pve3", **arguments, dry_run=True)
        assert any(words in warning for warning in planned["warnings"])
        text = await quorate.refusal("vm_create", name="web", node="pve3", **arguments, start=True)
        assert words in text
        assert "start=false" in text
        made = await quorate.facts("vm_create", name="web", node="pve3", **arguments)
        assert await quorate.refusal("guest_power", guest=made["vmid"], action="start")  # PVE does refuse it


async def test_missing_privileges_to_create_are_refused_with_what_to_grant(tmp_path):
    async with rig(tmp_path) as quorate, second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob:
        text = await bob.refusal("vm_create", name="web")
        assert "VM.Allocate" in text
        assert "pveum acl modify" in text


async def test_who_may_create_only_in_a_pool_creates_there_and_starts_it(tmp_path):
    async with rig(tmp_path) as quorate, second_server(quorate, tmp_path / "a.jsonl", token="alice@pve!cli") as alice:
        quorate.sim.world.access.grant("/", "PVEAuditor", "alice@pve", propagate=True)
        for path, role in (
            ("/sdn", "PVESDNUser"),
            ("/pool/lab", "PVEVMAdmin"),
            ("/storage/local-lvm", "PVEDatastoreUser"),
        ):
            quorate.sim.world.access.grant(path, role, "alice@pve")
        quorate.sim.world.access.invalidate_cache()
        assert "VM.Allocate on /vms/" in await alice.refusal("vm_create", name="web", storage="local-lvm")
        assert "AllocateSpace" in await alice.refusal("vm_create", name="web", storage="nas", pool="lab")
        facts = await alice.facts("vm_create", name="web", storage="local-lvm", pool="lab", start=True)
        assert quorate.sim.world.guests[facts["vmid"]].running


# -- what only root may ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"args": "-device x"},
        {"hookscript": "local:snippets/x.pl"},
        {"affinity": "0"},
        {"hostpci0": "0000:01:00.0"},
        {"serial0": "/dev/ttyS0"},
        {"scsi5": "/dev/sdb"},
    ],
)
async def test_what_only_root_may_set_is_refused_to_a_token_even_in_a_dry_run(tmp_path, options):
    async with rig(tmp_path) as quorate:
        before = quorate.writes
        for dry_run in (True, False):
            text = await quorate.refusal("vm_create", name="web", options=options, dry_run=dry_run)
            assert f"may not set {next(iter(options))}" in text
            assert "only root@pam logged in with a password" in text
            assert "qm set VMID" in text
        assert quorate.writes == before


async def test_a_tag_with_a_blank_in_it_is_refused_and_not_split(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("vm_create", name="web", tags=["a b"])
        assert "'a b' cannot be a tag" in text
        assert '["a", "b"]' in text


async def test_a_list_or_an_object_in_place_of_a_single_value_is_refused_by_the_name_of_the_part(tmp_path):
    wrong: list[tuple[dict[str, object], str]] = [
        ({"disks": [{"size": [1]}]}, "size takes a single value, not a list"),
        ({"disks": [{"size": {"a": 1}}]}, "size takes a single value, not an object"),
        ({"disks": [{"size": True}]}, "size takes a number, not true"),
        ({"disks": [{"size": 8, "ssd": [1]}]}, "ssd takes a single value, not a list"),
        ({"networks": [{"bridge": ["vmbr0"]}]}, "bridge takes a single value, not a list"),
        ({"networks": [{"vlan": True}]}, "vlan takes a number, not true"),
        ({"networks": [{"trunks": [[20]]}]}, "trunks takes a single value, not a list"),
        ({"cloud_init": {"user": ["me"]}}, "cloud_init.user takes a single value, not a list"),
        ({"cloud_init": {"user": True}}, "cloud_init.user takes a string, not true"),
        ({"cloud_init": {"dns": {"a": 1}}}, "cloud_init.dns takes a single value, not an object"),
        ({"cloud_init": {"dns": [53]}}, "The DNS server '53' is not an address"),
        ({"options": {"numa": [1]}}, "numa takes a single value, not a list"),
    ]
    async with rig(tmp_path) as quorate:
        for arguments, words in wrong:
            assert words in await quorate.refusal("vm_create", name="web", **arguments), arguments
        plan = await quorate.facts("vm_create", name="web", networks=[{"trunks": [20, 30]}], dry_run=True)
        assert "trunks=20;30" in plan["steps"][0]["call"]
        assert quorate.writes == []


async def test_a_small_disk_is_written_in_digits_as_pve_takes_them(tmp_path):
    async with rig(tmp_path) as quorate:
        for size, wire in (("1M", "0.0009765625"), ("0.01M", "0.0000097649"), ("1.5G", "1.5"), ("100G", "100")):
            plan = await quorate.facts("vm_create", name="web", disks=[f"tank:{size}"], dry_run=True)
            assert f"scsi0=tank:{wire},iothread=1" in plan["steps"][0]["call"], size
