"""Rows of the tables in docs/safety.md about requests: what PVE would read is what is judged, however it is written."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.world import HaResource
from quorate.config import Access, Approval
from quorate.config.policy import Policy, read_policy
from quorate.config.sources import Rank, Source
from quorate.operations.registry import TOOLSETS, operations
from tests.generators import examples
from tests.generators.population import populate
from tests.generators.read_arguments import read_arguments
from tests.pipeline.test_safety_table import STOPPED, tries
from tests.rigs.mcp_session import Rig, rig, second_server

pytestmark = pytest.mark.anyio

CONFIG = f"/nodes/pve1/qemu/{STOPPED}/config"
FOREIGN = "local-lvm:vm-100-disk-0"
"""The disk of a running guest of the same node."""
NAMES_NODES = ("node", "nodes", "target", "of", "fails", "task")
Attempt = tuple[str, dict[str, Any]]


def api(method: str, path: str, /, **params: Any) -> Attempt:
    return "api_call", {"method": method, "path": path, "params": params}


def rules(text: str) -> Policy:
    return read_policy(tomllib.loads(text), Source(Rank.TOML))


async def all_refused(quorate: Rig, attempts: Iterable[Attempt], says: str = "refused at access level operate") -> None:
    """Each of them is refused in these words, and nothing is sent."""
    for tool, arguments in attempts:
        assert says in await quorate.refusal(tool, **arguments), (tool, arguments)
    assert quorate.writes == []


@tries("wire form", "a list written as one word, or with separators that only PVE knows")
async def test_every_element_of_a_list_is_judged(tmp_path: Path) -> None:
    lists: tuple[Any, ...] = (
        ["description,scsi0"],
        ["description,unused0"],
        ["scsi0 "],
        " scsi0",
        "description;scsi0",
        "description\tunused0",
        "description\0scsi0",
        "scsi0\0",
        "description\u00a0scsi0",
        ["description", None, "scsi0"],
        ["description", ["scsi0"]],
        "SCSI0",
        "no-such-option",
    )
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        for method in ("PUT", "POST"):
            attempts = [api(method, CONFIG, delete=names) for names in lists if names != ["description", ["scsi0"]]]
            await all_refused(quorate, attempts)
            await all_refused(quorate, [api(method, CONFIG, delete=["description", ["scsi0"]])], "nested too deep")
        await quorate.facts("api_call", method="PUT", path=CONFIG, params={"delete": ["description", "onboot"]})
    async with rig(tmp_path, access=Access.OPERATE, more={"surfaces": ("lean",)}) as quorate:
        for tool in ("pve_change", "pve_destroy"):
            call = {"operation": "api_call", "arguments": api("PUT", CONFIG, delete=["description,scsi0"])[1]}
            assert (await quorate.call(tool, **call)).is_error, tool
        assert quorate.writes == []


@tries("a null, an empty string or nothing at all, where PVE's default destroys")
async def test_defaults_of_pve_are_judged_as_if_they_were_written(tmp_path: Path) -> None:
    backup, job = "/nodes/pve1/vzdump", {"vmid": 108, "schedule": "21:00", "storage": "nas"}
    nothings: tuple[dict[str, Any], ...] = ({}, {"remove": None}, {"remove": ""}, {"remove": []}, {"remove": [None]})
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await all_refused(quorate, [api("POST", backup, vmid=108, storage="nas", **nothing) for nothing in nothings])
        await all_refused(quorate, [api("POST", "/cluster/backup", **job, **nothing) for nothing in nothings])
        await all_refused(
            quorate,
            [
                api("POST", backup, vmid=108, remove="1"),
                api("POST", backup, vmid=108, remove=True),
                api("POST", backup, vmid=108, remove=0, **{"prune-backups": "keep-last=1"}),
                api("PUT", "/cluster/backup/backup-daily", delete="remove"),
                api("POST", "/storage", storage="x", type="dir", path="/x", **{"prune-backups": "keep-last=1"}),
                api("PUT", "/storage/nas", **{"prune-backups": "keep-last=1"}),
                api("POST", "/nodes/pve1/lxc", vmid=300, ostemplate="local:vztmpl/x.tar.zst"),
            ],
        )
        await quorate.facts("api_call", **api("POST", backup, vmid=108, storage="nas", remove=0)[1])
        await quorate.facts("backup_job_set", schedule="21:00", guest=108, storage="nas")
        jobs = await quorate.rows("api_call", method="GET", path="/cluster/backup")
        assert [backup_job["remove"] for backup_job in jobs if backup_job["schedule"] == "21:00"][-1] == 0
        assert [path for _, path in quorate.writes] == [backup, "/cluster/backup"]


@tries("localhost, or a name that only DNS knows, instead of a node")
async def test_a_node_has_one_name(tmp_path: Path) -> None:
    text = '[[rules]]\nname = "hands off"\ndeny = "change"\nnodes = "pve1"\n'
    text += '[[rules]]\nname = "critical"\ndeny = "change"\ntags = "critical"\n'
    text += '[[rules]]\nname = "unseen"\ndeny = "read"\ntags = "dns"\n'
    async with rig(tmp_path, more={"policy": rules(text)}) as quorate:
        await all_refused(quorate, [api("PUT", "/nodes/localhost/time", timezone="UTC")], "the rule 'hands off'")
        await all_refused(quorate, [api("POST", "/nodes/localhost/suspendall")], "the rule")
        await all_refused(quorate, [api("GET", "/nodes/localhost/lxc/200/config")], "the rule 'unseen'")
        names = ("evil", "PVE1", "pve1.lan", "127.0.0.1", "LOCALHOST", "localhost.localdomain")
        await all_refused(quorate, [api("GET", f"/nodes/{name}/status") for name in names], "There is no node")
        await all_refused(quorate, [api("PUT", f"/nodes/{name}/time", timezone="UTC") for name in names], "no node")
        asked = {path.split("/")[2] for _, path in quorate.sim.requests if path.startswith("/nodes/")}
        assert asked <= {"pve1", "pve2", "pve3"}
    async with rig(tmp_path) as quorate:
        await quorate.facts("api_call", method="GET", path="/nodes/localhost/time")
        assert ("GET", "/nodes/pve1/time") in quorate.sim.requests


@tries("localhost, or a name that only DNS knows, instead of a node")
@pytest.mark.parametrize("most", [2, pytest.param(5, marks=pytest.mark.thorough)])
async def test_no_tool_sends_a_request_to_a_machine_that_is_no_node(tmp_path: Path, most: int) -> None:
    """By an argument of any tool that takes a node, a guest's path or a task."""
    task = "UPID:{}:0000C530:001C9BEC:677E934A:qmstart:100:root@pam:"
    async with rig(tmp_path, approval=Approval.NONE, in_memory=True) as quorate:
        await populate(quorate)
        image = tmp_path / "tiny.iso"
        image.write_bytes(b"x")
        world, mark = quorate.sim.world, len(quorate.sim.requests)
        for operation in operations(TOOLSETS).values():
            properties = operation.schema()["properties"]
            if operation.name == "api_call" or not (
                names := [argument for argument in NAMES_NODES if argument in properties]
            ):
                continue
            known = (
                islice(examples(operation, world, image), most)
                if operation.changes
                else read_arguments(operation, world)
            )
            for arguments, name, wrong in product(known, names, ("evil", "localhost", "pve1/../evil")):
                meant = task.format(wrong) if name == "task" else wrong
                arguments[name] = [meant] if properties[name].get("type") == "array" else meant
                await quorate.call(operation.name, **arguments, **({"dry_run": True} if operation.changes else {}))
        assert len(quorate.requests_since(mark)) > 20
        asked = {path.split("/")[2] for _, path in quorate.sim.requests if path.startswith("/nodes/")}
        assert asked <= {"pve1", "pve2", "pve3"}


@tries("a list or an exclusion hides what a call reaches")
async def test_what_is_listed_or_left_out_is_found(tmp_path: Path) -> None:
    text = '[[rules]]\nname = "keep"\ndeny = "change"\nvmids = [100, 101]\n'
    many = "[policy]\nguests_per_call = 1\n"
    calls = [
        api("POST", "/nodes/pve1/suspendall", vms=["108,100"]),
        api("POST", "/nodes/pve1/suspendall", vms="108\x00100"),
        api("POST", "/nodes/pve1/suspendall", vms=[]),
        api("POST", "/nodes/pve1/suspendall", vms=" , "),
        api("POST", "/nodes/pve1/startall", vms=["108 100"]),
        api("POST", "/nodes/pve1/stopall", vms=["108;100"]),
        api("POST", "/nodes/pve1/migrateall", target="pve2", vms=["108,100"]),
        api("POST", "/cluster/bulk-action/guest/suspend", vms=[108, 100]),
        api("POST", "/cluster/bulk-action/guest/suspend", vms=None),
        api("POST", "/cluster/ha/rules", rule="r", type="resource-affinity", affinity="positive",
            resources=["vm:108,vm:100"]),
        api("POST", "/nodes/pve1/vzdump", exclude="999", remove=0, storage="nas"),
        api("POST", "/nodes/pve1/vzdump", exclude=["999,998"], remove=0, storage="nas"),
        api("POST", "/nodes/pve1/vzdump", vmid=["108,100"], remove=0, storage="nas"),
        api("POST", "/cluster/backup", exclude="999", schedule="21:00", storage="nas", remove=0),
        api("PUT", "/cluster/sdn/vnets/lab/ips", zone="lab", ip="10.0.0.9", mac="BC:24:11:00:00:64", vmid=108),
        api("POST", "/cluster/sdn/vnets/lab/ips", zone="lab", ip="10.0.0.9", mac="BC:24:11:00:00:64"),
    ]  # fmt: skip
    async with rig(tmp_path, more={"policy": rules(text)}) as quorate:
        await all_refused(quorate, calls, "the rule 'keep'")
    async with rig(tmp_path, more={"policy": rules(many)}) as quorate:
        await all_refused(quorate, calls, "limit guests_per_call")
    async with rig(tmp_path, more={"policy": rules(text)}) as quorate:
        spared = api("POST", "/nodes/pve1/vzdump", all=1, exclude="100,101", remove=0, storage="nas", dry_run=None)[1]
        spared["params"].pop("dry_run")
        await quorate.facts("api_call", **spared, dry_run=True)


@tries("a drive under its old name")
async def test_cdrom_is_judged_as_the_drive_it_is(tmp_path: Path) -> None:
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        quorate.sim.world.guests[STOPPED].config["ide2"] = f"local-lvm:vm-{STOPPED}-disk-7,size=4G"
        await all_refused(
            quorate,
            [
                api("PUT", CONFIG, cdrom="none"),
                api("PUT", CONFIG, cdrom=f"{FOREIGN},media=disk"),
                api("PUT", CONFIG, delete="cdrom"),
                api("POST", CONFIG, delete=["description,cdrom"]),
            ],
        )
        for options in ({"cdrom": "none"}, {"cdrom": f"{FOREIGN},media=disk"}):
            await all_refused(quorate, [("guest_configure", {"guest": STOPPED, "options": options})], "cdrom")
        await all_refused(quorate, [("guest_configure", {"guest": STOPPED, "unset": ["cdrom"]})], "cdrom")
        await all_refused(quorate, [api("PUT", CONFIG, cdrom="none", ide2="none")], "same drive")
        assert "vm-108-disk-7" in str(quorate.sim.world.guests[STOPPED].config["ide2"])


@tries("another guest's volume, through any parameter")
async def test_a_guest_gets_no_volume_of_another(tmp_path: Path) -> None:
    new: dict[str, Any] = {"name": "thief", "node": "pve1"}
    attempts: list[Attempt] = [
        ("vm_create", {**new, "disks": [{"size": "1G", "file": FOREIGN}]}),
        ("vm_create", {**new, "disks": [{"size": "1G", "volume": FOREIGN}]}),
        ("vm_create", {**new, "options": {"scsi0": FOREIGN}}),
        ("vm_create", {**new, "options": {"virtio3": f"volume={FOREIGN},cache=none"}}),
        ("disk_add", {"guest": STOPPED, "size": "1G", "options": {"volume": FOREIGN}}),
        ("disk_add", {"guest": STOPPED, "size": "1G", "options": {"file": FOREIGN}}),
        ("disk_add", {"guest": STOPPED, "size": "1G", "options": {"cache": f"none,file={FOREIGN}"}}),
        ("disk_add", {"guest": 206, "size": "1G", "path": "/x", "options": {"volume": "local-lvm:vm-205-disk-0"}}),
        *(
            api("PUT", CONFIG, **{name: value})
            for name in ("scsi5", "ide0", "sata1", "virtio2", "efidisk0", "unused3")
            for value in (FOREIGN, f"file={FOREIGN}", f"volume={FOREIGN}", f"cache=none,file={FOREIGN}")
        ),
        api("POST", "/nodes/pve1/qemu", vmid=300, scsi0=FOREIGN),
        api("POST", "/nodes/pve1/qemu", vmid=300, scsi0=f"local-lvm:0,import-from={FOREIGN}"),
        api("POST", "/nodes/pve1/qemu", vmid=300, scsi0="tank:who-knows-whose"),
        api("POST", "/nodes/pve1/qemu", vmid=300, scsi0="local-lvm:0,import-from=san:0.0.1.lun"),
        api("POST", "/nodes/pve3/lxc", vmid=300, ostemplate="local:vztmpl/x.tar.zst", unprivileged=1,
            rootfs="local-lvm:vm-205-disk-0"),
        api("PUT", "/nodes/pve3/lxc/206/config", mp3="volume=local-lvm:vm-205-disk-0,mp=/x"),
        api("PUT", "/nodes/pve3/lxc/206/config", mp3="/etc,mp=/x"),
        api("POST", f"/nodes/pve1/qemu/{STOPPED}/move_disk", disk="scsi0", **{"target-vmid": 101}),
    ]  # fmt: skip
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await all_refused(quorate, attempts)
    keep = '[[rules]]\nname = "keep"\ndeny = "look_inside"\nvmids = [100]\n'
    async with rig(tmp_path, more={"policy": rules(keep)}) as quorate:
        copies = {"scsi5": f"local-lvm:0,import-from={FOREIGN}"}
        await all_refused(quorate, [api("PUT", CONFIG, **copies), api("PUT", CONFIG, scsi5=FOREIGN)], "the rule 'keep'")


@tries("rules")
async def test_a_storage_is_found_in_every_parameter_that_names_its_volumes(tmp_path: Path) -> None:
    text = '[[rules]]\nname = "vault"\ndeny = "change"\nstorages = "nas"\n'
    clone = {"newid": 400, "full": 1, "storage": "nas"}
    async with rig(tmp_path, more={"policy": rules(text)}) as quorate:
        await all_refused(
            quorate,
            [
                api("PUT", CONFIG, cicustom="user=nas:snippets/user.yaml"),
                api("PUT", CONFIG, cicustom="network=local:snippets/net.yaml,vendor=nas:snippets/vendor.yaml"),
                api("PUT", CONFIG, hookscript="nas:snippets/hook.pl"),
                api("PUT", CONFIG, vmstatestorage="nas"),
                api("PUT", CONFIG, scsi5="local-lvm:0,import-from=nas:import/disk.qcow2"),
                api("POST", f"/nodes/pve1/qemu/{STOPPED}/clone", **clone),
                api("POST", "/nodes/pve1/vzdump", vmid=STOPPED, storage="local", fleecing="enabled=1,storage=nas"),
            ],
            "the rule 'vault'",
        )
    new = {"vmid": 300, "ostemplate": "nas:vztmpl/x.tar.zst", "unprivileged": 1}
    async with rig(tmp_path, more={"policy": rules(text.replace("nas", "local"))}) as quorate:  # PVE's default
        await all_refused(
            quorate,
            [
                api("POST", "/nodes/pve1/vzdump", vmid=STOPPED, remove=0),
                api("POST", "/nodes/pve1/lxc", **new),
                api("POST", "/nodes/pve1/lxc", **new, rootfs="8"),
                api("POST", "/nodes/pve1/lxc", **new, rootfs="nas:8", mp0="4,mp=/data"),
            ],
            "the rule 'vault'",
        )
        allowed = api("POST", "/nodes/pve1/vzdump", vmid=STOPPED, remove=0, storage="nas")
        await quorate.facts(allowed[0], **allowed[1])


@tries("devices, folders or programs of the node are passed to a guest")
async def test_what_belongs_to_the_node_is_handed_out_only_as_a_destruction(tmp_path: Path) -> None:
    options: dict[str, str] = {
        "virtiofs0": "root",
        "hostpci0": "mapping=gpu",
        "usb0": "host=1234:5678",
        "usb1": "mapping=stick",
        "serial1": "/dev/ttyS0",
        "parallel0": "/dev/parport0",
        "args": "-device pc-testdev",
        "hookscript": "local:snippets/hook.sh",
        "ivshmem": "size=32,name=shared",
        "rng0": "source=/dev/hwrng",
        "ide2": "cdrom,media=cdrom",
        "cdrom": "cdrom",
    }
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        for kind in ("dir", "pci", "usb"):
            await all_refused(quorate, [api("POST", f"/cluster/mapping/{kind}", id="root", map=["node=pve1,path=/"])])
        await all_refused(quorate, [api("PUT", CONFIG, **{name: value}) for name, value in options.items()])
        await all_refused(
            quorate, [api("POST", "/nodes/pve1/qemu", vmid=300, **{name: value}) for name, value in options.items()]
        )
        await all_refused(
            quorate,
            [
                api("PUT", "/nodes/pve3/lxc/206/config", dev0="/dev/sda"),
                api("PUT", "/nodes/pve3/lxc/206/config", features="mknod=1"),
                api("POST", "/storage", storage="all", type="dir", path="/"),
                api("POST", "/nodes/pve1/qemu", vmid=300, archive="/var/lib/vz/dump/x.vma"),
                api("POST", "/nodes/pve3/lxc", vmid=300, ostemplate="/root/x.tar", unprivileged=1),
            ],
        )
        for device in ({"virtiofs0": "root"}, {"serial1": "/dev/ttyS0"}, {"args": "-S"}):
            await quorate.refusal("guest_configure", guest=STOPPED, options=device)
        await quorate.refusal("guest_configure", guest=STOPPED, cdrom="cdrom")
        assert quorate.writes == []
        harmless = {"serial1": "socket", "usb0": "spice", "rng0": "source=/dev/urandom"}
        await quorate.facts("api_call", **api("PUT", CONFIG, **harmless)[1])


@tries("a guest is stopped through HA, or turned into a template by an option")
async def test_other_ways_to_end_a_guest_are_as_grave(tmp_path: Path) -> None:
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        quorate.sim.world.ha["ct:201"] = HaResource("ct:201")
        await all_refused(
            quorate,
            [
                *(("ha_set", {"guest": 104, "state": state}) for state in ("stopped", "disabled", "ignored")),
                api("POST", "/nodes/pve1/migrateall", target="pve2"),
                api("POST", "/cluster/ha/rules", rule="move", type="node-affinity", resources="ct:201", nodes="pve2"),
                api("POST", "/cluster/ha/resources", sid="vm:104", state="stopped"),
                api("PUT", "/cluster/ha/resources/vm:100", state="disabled"),
                api("PUT", CONFIG, template=1),
                api("PUT", CONFIG, template="1"),
                api("PUT", "/nodes/pve3/lxc/206/config", template=True),
            ],
        )
        await quorate.refusal("guest_configure", guest=STOPPED, options={"template": True})
        assert quorate.writes == []


@tries("a guest is stopped through HA, or turned into a template by an option")
async def test_an_ha_rule_that_takes_effect_again_is_as_grave_as_a_new_one(tmp_path: Path) -> None:
    rule = {"rule": "away", "type": "node-affinity", "resources": "ct:201", "nodes": "pve2", "strict": 1, "disable": 1}
    async with rig(tmp_path) as admin:
        admin.sim.world.ha["ct:201"] = HaResource("ct:201")
        await admin.facts("api_call", **api("POST", "/cluster/ha/rules", **rule)[1])
        async with second_server(admin, tmp_path / "b.jsonl", access=Access.OPERATE) as quorate:
            before = len(quorate.writes)
            for params in (
                {"disable": 0},
                {"delete": "disable"},
                {"delete": "comment;disable"},
                {"delete": ["disable", "strict"]},
            ):
                call = api("PUT", "/cluster/ha/rules/away", type="node-affinity", **params)
                assert "refused at access level" in await quorate.refusal(call[0], **call[1]), params
            resource, options = admin.sim.world.ha["ct:201"], admin.sim.world.part(Datacenter).options
            sections = admin.sim.world.part(HaManager).rules.rules.sections
            sections["later"] = {"type": "node-affinity", "resources": "ct:201", "nodes": "pve1:1,pve2:2"}
            resource.failback, resource.options = False, {"failback": 0, "auto-rebalance": 0}
            options["crs"] = "ha=dynamic,ha-auto-rebalance=1"
            for params in (
                {"delete": "failback"},
                {"failback": 1},
                {"auto-rebalance": 1},
                {"delete": "auto-rebalance"},
            ):
                call = api("PUT", "/cluster/ha/resources/ct:201", **params)
                assert "refused at access level" in await quorate.refusal(call[0], **call[1]), params
            del sections["later"], options["crs"]
            for method, path, params in (
                ("PUT", "/cluster/options", {"crs": "ha=dynamic,ha-auto-rebalance=1"}),
                ("PUT", "/cluster/options", {"crs": "ha=dynamic,ha-auto-rebalance=on"}),
            ):
                call = api(method, path, **params)
                assert "refused at access level" in await quorate.refusal(call[0], **call[1]), params
            assert len(quorate.writes) == before
            call = api("PUT", "/cluster/ha/rules/away", type="node-affinity", comment="still off")
            await quorate.facts(call[0], **call[1])


@tries("an option aborts someone else's backup or overrides a lock")
async def test_work_in_progress_is_not_cut_short_by_an_option(tmp_path: Path) -> None:
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await all_refused(
            quorate,
            [
                api("POST", "/nodes/pve1/vzdump", vmid=108, storage="nas", remove=0, stop=1),
                api("POST", "/nodes/pve1/vzdump", stop=True, remove=0, vmid="999"),
                api("POST", "/cluster/backup", vmid=108, schedule="21:00", storage="nas", remove=0, stop=1),
                api("POST", "/nodes/pve1/vzdump", vmid=108, remove=0, dumpdir="/etc/cron.d"),
                api("POST", f"/nodes/pve1/qemu/{STOPPED}/status/start", skiplock=1),
                api("PUT", CONFIG, delete="lock"),
            ],
        )


@tries("a storage or notification target is pointed at a server of the caller's choice")
async def test_what_holds_a_secret_is_not_turned_elsewhere(tmp_path: Path) -> None:
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        new: dict[str, Any] = {
            "server": "192.0.2.1",
            "port": 4444,
            "monhost": "192.0.2.1",
            "pool": "x",
            "namespace": "x",
        }
        new |= {
            "smbversion": "2.0",
            "fingerprint": ":".join(["AA"] * 32),
            "skip-cert-verification": 1,
            "master-pubkey": "x",
            "subdir": "/x",
        }
        await all_refused(quorate, [api("PUT", "/storage/nas", **{name: value}) for name, value in new.items()])
        smtp = "/cluster/notifications/endpoints/smtp/mail"
        await all_refused(
            quorate, [api("PUT", smtp, **params) for params in ({"server": "192.0.2.1"}, {"mode": "insecure"})]
        )
        await all_refused(quorate, [api("PUT", smtp, delete=[option]) for option in ("port", "password")])
        await all_refused(quorate, [api("PUT", "/cluster/sdn/dns/zone", delete="ttl,fingerprint")])
        replaced = [api("PUT", "/storage/nas", password="x"), api("PUT", smtp, password="x")]
        await all_refused(quorate, [*replaced, api("PUT", "/cluster/acme/plugins/dns", data="eA==")])
        moved: dict[str, Any] = {"migration": "type=insecure,network=192.0.2.0/24", "migration_unsecure": 1}
        await all_refused(quorate, [api("PUT", "/cluster/options", **{name: moved[name]}) for name in moved])
        insecure = {"target": "pve2", "migration_type": "insecure"}
        await all_refused(quorate, [api("POST", f"/nodes/pve1/qemu/{STOPPED}/migrate", **insecure)])
        metrics = {"verify-certificate": 0}
        await all_refused(quorate, [api("PUT", "/cluster/metrics/server/x", server="a", port=1, **metrics)])


@tries("a new guest joins a pool that grants privileges")
async def test_making_a_guest_in_a_pool_is_a_grant(tmp_path: Path) -> None:
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await all_refused(
            quorate,
            [
                ("guest_clone", {"guest": 9000, "pool": "lab"}),
                ("vm_create", {"name": "x", "pool": "lab"}),
                ("container_create", {"template": "debian", "pool": "lab"}),
                api("POST", "/nodes/pve1/qemu/9000/clone", newid=300, pool="lab"),
                api("POST", "/nodes/pve1/qemu", vmid=300, pool="lab"),
            ],
        )


@tries("a read makes PVE contact a machine of the caller's choice")
async def test_reads_that_reach_out_need_more_than_read(tmp_path: Path) -> None:
    url = "http://192.0.2.1/x"
    async with rig(tmp_path, access=Access.READ) as quorate:
        await all_refused(
            quorate,
            [
                api("GET", "/cluster/acme/meta", directory=url),
                api("GET", "/cluster/acme/tos", directory=url),
                api("GET", "/nodes/pve1/query-url-metadata", url=url),
                api("GET", "/nodes/pve1/query-oci-repo-tags", reference="192.0.2.1/x"),
                api("GET", "/nodes/pve1/apt/changelog", name="pve-manager"),
                api("GET", "/nodes/pve1/scan/nfs", server="192.0.2.1"),
                api("GET", "/nodes/pve1/scan/cifs", server="192.0.2.1"),
                api("GET", "/nodes/pve1/scan/iscsi", portal="192.0.2.1"),
                api("GET", "/nodes/pve1/scan/pbs", server="192.0.2.1", username="x@pbs", password="x"),
            ],
            "refused at access level read",
        )
        assert not [path for _, path in quorate.sim.requests if "scan" in path or "acme" in path]


@tries(
    "a guest that a rule protects from destruction is made to start something else, or gets another login by cloud-init"
)
async def test_a_protected_guest_is_not_taken_over_at_its_next_start(tmp_path: Path) -> None:
    """docker02 has the tag prod; its disk boots first."""
    config, disc = "/nodes/pve2/qemu/103/config", "nas:iso/virtio-win-0.1.271.iso"
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFsc2yVfl9S9sXh9hQdPW2fEv7R8z5wQG0rJ8hK1xX9y me"
    protected = '[[rules]]\nname = "production stays"\ndeny = "destroy"\ntags = "prod"\n'
    async with rig(tmp_path, access=Access.OPERATE, more={"policy": rules(protected)}) as quorate:
        attempts: list[Attempt] = [
            ("guest_configure", {"guest": 103, "boot": ["net0"]}),
            ("guest_configure", {"guest": 103, "options": {"bootdisk": "ide2"}}),
            ("cloudinit_set", {"guest": 103, "password": "let-me-in-please"}),
            ("cloudinit_set", {"guest": 103, "ssh_keys": key}),
            ("cloudinit_set", {"guest": 103, "user": "root"}),
            ("cloudinit_set", {"guest": 103, "custom": "user=nas:snippets/mine.yml"}),
            ("cloudinit_set", {"guest": 103, "nameserver": "192.0.2.53"}),
            ("guest_configure", {"guest": 103, "unset": ["boot"]}),
            api("PUT", config, boot="order=net0"),
            api("PUT", config, delete="boot"),
            api("PUT", config, smbios1="serial=ZHM9bm9jbG91ZA==,base64=1"),
            api("PUT", config, machine="q35"),
            api("POST", config, cipassword="let-me-in-please"),
            api("PUT", config, cicustom="vendor=nas:snippets/mine.yml"),
        ]
        await all_refused(quorate, attempts, "the rule 'production stays'")
        guest = quorate.sim.world.guests[103]
        usual = guest.config["boot"]
        for order in ("order=ide2;scsi0;net0", "order=net0;ide2", "cdn"):
            guest.config["boot"] = order
            guest.touch()
            await all_refused(quorate, [("guest_configure", {"guest": 103, "cdrom": disc})], "'production stays'")
        guest.config["boot"] = usual
        guest.touch()
        await quorate.facts("guest_configure", guest=103, cdrom=disc)  # the disk boots first
        await quorate.facts("cloudinit_set", guest=108, password="let-me-in-please")  # not protected
