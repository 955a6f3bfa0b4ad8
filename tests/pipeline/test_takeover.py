"""What decides the next start of a guest is not changed where a rule denies its destruction; the rest may be."""

from __future__ import annotations

from typing import Any

import pytest

from pve_schema.schema import NEWEST, OLDEST, facts
from pve_simulator.storage.storages import Volume
from quorate.config import Access
from quorate.operations.takeover import HARMLESS
from tests.pipeline.test_policy import policy
from tests.rigs.mcp_session import Rig, rig

GIB = 1024**3
pytestmark = pytest.mark.anyio

RULE = '[[rules]]\nname = "production stays"\ndeny = "destroy"\nvmids = [103, 203]\n'
VM, CONTAINER = "/nodes/pve2/qemu/103/config", "/nodes/pve2/lxc/203/config"
IMAGE = "local:import/evil.qcow2"
DISC = "nas:iso/virtio-win-0.1.271.iso"


def protected(tmp_path, **more):
    return rig(tmp_path, access=Access.OPERATE, more={"policy": policy(RULE)}, **more)


def api(path: str, method: str = "PUT", /, **params: Any) -> tuple[str, dict[str, Any]]:
    return "api_call", {"method": method, "path": path, "params": params}


def state(quorate: Rig) -> list[Any]:
    return [
        (dict(guest.config), dict(guest.pending), dict(guest.pending_delete))
        for guest in (quorate.sim.world.guests[103], quorate.sim.world.guests[203])
    ]


def prepare(quorate: Rig) -> None:
    """A VM with cloud-init and something pending."""
    guest = quorate.sim.world.guests[103]
    guest.config |= {"ciuser": "admin", "sshkeys": "ssh-ed25519%20AAAA", "cicustom": "user=nas:snippets/own.yml"}
    guest.config |= {
        "ide0": "tank:vm-103-cloudinit,media=cdrom",
        "smbios1": "uuid=7a1f9c1e-0000-4000-8000-000000000103",
    }
    guest.pending |= {"boot": "order=scsi0"}
    guest.touch()
    image = Volume(IMAGE, "import", "qcow2", GIB // 2, GIB // 2, 0, virtual_size=2 * GIB)
    quorate.sim.world.storages["local"].add("pve2", image)


ATTEMPTS = [
    api(VM, smbios1="serial=ZHM9bm9jbG91ZC1uZXQ7cz1odHRwOi8vMTkyLjAuMi4xLw==,base64=1"),
    api(VM, delete="boot"),
    api(VM, delete="sshkeys"),
    api(VM, delete="name,cicustom"),
    api(VM, "POST", delete="ciuser"),
    api(VM, delete="smbios1"),
    api(VM, revert="boot"),
    api(VM, citype="configdrive2"),
    api(VM, nameserver="192.0.2.53"),
    api(VM, searchdomain="example.org"),
    api(VM, ipconfig0="ip=192.0.2.7/24,gw=192.0.2.1"),
    api(VM, ciupgrade=0),
    api(VM, bios="ovmf"),
    api(VM, machine="q35"),
    api(VM, scsihw="lsi"),
    api(VM, ostype="win11"),
    api(VM, vmgenid="1"),
    api(VM, arch="aarch64"),
    api(VM, startdate="2006-06-17"),
    api(VM, rng0="source=/dev/urandom"),
    api(VM, usb0="spice"),
    api("/nodes/pve2/qemu/103/status/start", "POST", machine="pc-q35-9.0.pxe"),
    api(CONTAINER, nameserver="192.0.2.53"),
    api(CONTAINER, cmode="shell"),
    api(CONTAINER, env="LD_PRELOAD=/tmp/x.so"),
    api(CONTAINER, delete="cmode"),
    api(CONTAINER, features="nesting=1"),
    api(CONTAINER, ostype="alpine"),
    ("guest_configure", {"guest": 103, "options": {"smbios1": "serial=eA==,base64=1"}}),
    ("guest_configure", {"guest": 103, "options": {"machine": "q35"}}),
    ("guest_configure", {"guest": 103, "unset": ["boot"]}),
    ("guest_configure", {"guest": 103, "unset": ["sshkeys"]}),
    ("guest_configure", {"guest": 103, "unset": ["cicustom"]}),
    ("guest_configure", {"guest": 103, "revert": ["boot"]}),
    ("guest_configure", {"guest": 103, "cdrom": DISC}),  # a guest with cloud-init reads it from any disc
    ("guest_configure", {"guest": 203, "options": {"cmode": "shell"}}),
    ("cloudinit_set", {"guest": 103, "nameserver": "192.0.2.53"}),
    ("cloudinit_set", {"guest": 103, "ip": "192.0.2.7/24", "gateway": "192.0.2.1"}),
    ("cloudinit_set", {"guest": 103, "user": ""}),
    ("disk_change", {"guest": 103, "action": "detach", "disk": "scsi0", "force": True}),
    ("disk_change", {"guest": 103, "action": "detach", "disk": "ide0"}),
    ("disk_add", {"guest": 103, "import_from": IMAGE, "disk": "scsi5"}),
    ("disk_add", {"guest": 203, "size": "1G", "path": "/etc/ssh"}),
    ("disk_add", {"guest": 203, "size": "1G", "path": "/root"}),
]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=str)
async def test_what_decides_the_next_start_of_a_protected_guest_is_left_alone(tmp_path, attempt):
    async with protected(tmp_path) as quorate:
        prepare(quorate)
        before = state(quorate)
        tool, arguments = attempt
        mark = len(quorate.sim.requests)
        refused = await quorate.refusal(tool, **arguments)
        assert "'production stays'" in refused or "at access level operate" in refused, refused
        assert state(quorate) == before
        assert {method for method, _ in quorate.requests_since(mark)} <= {"GET"}


@pytest.mark.parametrize("order", ["order=net0;scsi0", "order=net0", "cdn"])
async def test_a_card_that_boots_before_the_disk_is_left_alone(tmp_path, order):
    async with protected(tmp_path) as quorate:
        guest = quorate.sim.world.guests[103]
        guest.config["boot"] = order
        guest.touch()
        before = state(quorate)
        for tool, arguments in (
            ("nic_set", {"guest": 103, "nic": "net0", "vlan": 666}),
            ("nic_remove", {"guest": 103, "nic": "net0"}),
            api(VM, net0=f"{guest.config['net0']},tag=666"),
        ):
            assert "'production stays'" in await quorate.refusal(tool, **arguments)
        assert state(quorate) == before


async def test_ordinary_changes_of_a_protected_guest_still_work(tmp_path):
    """Its disk boots first, and it has nothing to do with cloud-init."""
    async with protected(tmp_path) as quorate:
        await quorate.facts("guest_configure", guest=103, name="docker-two", add_tags=["x"], cores=6, memory="10G")
        await quorate.facts("guest_configure", guest=103, onboot=False, agent=True, options={"cpulimit": 2})
        await quorate.facts("guest_configure", guest=103, unset=["cpulimit"], cdrom=DISC)
        await quorate.facts("nic_set", guest=103, nic="net0", rate=10)
        await quorate.facts("disk_add", guest=103, size="4G", disk="scsi3", options={"ssd": True, "discard": "on"})
        await quorate.facts("disk_change", guest=103, action="detach", disk="scsi3")
        await quorate.facts("disk_change", guest=103, action="attach", disk="unused0", slot="scsi4")
        await quorate.facts("disk_change", guest=103, action="resize", disk="scsi4", size="+1G")
        await quorate.facts("guest_configure", guest=203, name="pg", cores=3, memory="3G", add_tags=["y"])
        await quorate.facts("nic_set", guest=203, nic="net0", rate=10)
        await quorate.facts("disk_add", guest=203, size="4G", path="/data")
        vm, container = (
            {**guest.config, **guest.pending} for guest in map(quorate.sim.world.guests.get, (103, 203)) if guest
        )
        assert (vm["name"], vm["cores"], vm["onboot"]) == ("docker-two", 6, 0)
        assert DISC in vm["ide2"]
        assert "rate=10" in vm["net0"]
        assert "size=5G" in vm["scsi4"]
        assert (container["hostname"], container["cores"]) == ("pg", 3)
        assert "mp=/data" in container["mp0"]


async def test_a_guest_that_the_plan_itself_creates_gets_its_logins(tmp_path):
    rule = RULE.replace("203", "555")
    async with rig(tmp_path, access=Access.OPERATE, more={"policy": policy(rule)}) as quorate:
        await quorate.facts("guest_clone", guest=9000, vmid=555, name="fresh", wait=50)
        assert quorate.sim.world.guests[555].config["name"] == "fresh"
        assert "'production stays'" in await quorate.refusal("cloudinit_set", guest=555, password="let-me-in-please")


@pytest.mark.parametrize("guest_type", ["qemu", "lxc"])
def test_every_option_that_is_called_harmless_is_one_of_pve(guest_type):
    template = f"/nodes/{{node}}/{guest_type}/{{vmid}}/config"
    known = {name for version in (OLDEST, NEWEST) for name in facts(version).endpoint("PUT", template).parameters}
    assert HARMLESS[guest_type] - known <= {"smp"}
