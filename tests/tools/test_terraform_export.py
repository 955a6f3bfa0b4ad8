"""Guests as Terraform resources: valid HCL that matches the guests, where no name or note can inject anything."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hcl2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quorate.homelab.hcl import Block, Names, render_blocks
from quorate.homelab.terraform_export import container, virtual_machine
from quorate.pve.inventory import Resource
from tests.rigs.homelab import house

pytestmark = pytest.mark.anyio
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
TOOLSETS = ("terraform", "guests", "configure", "provision")
VM, CT = "proxmox_virtual_environment_vm", "proxmox_virtual_environment_container"
BINARY = shutil.which("tofu") or shutil.which("terraform")
needs_terraform = pytest.mark.skipif(BINARY is None, reason="neither tofu nor terraform is installed")
EVIL = '"}\nresource "null_resource" "x" {\n  a = "${file("/etc/shadow")}%{ if true }$${b}$$${c}\\'


@functools.cache  # it takes a second for all guests
def read(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = hcl2.load(io.StringIO(text))
    return parsed


def resources(text: str) -> dict[str, dict[str, Any]]:
    """Kind and name -> attributes, with unescaped texts."""
    return {
        f"{plain(kind)}.{plain(name)}": meant(body)
        for entry in read(text).get("resource", [])
        for kind, named in entry.items()
        if kind != "__is_block__"
        for name, body in named.items()
        if name != "__is_block__"
    }


def meant(value: Any) -> Any:
    if isinstance(value, dict):
        return {plain(key): meant(item) for key, item in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [meant(item) for item in value]
    return plain(value) if isinstance(value, str) else value


def plain(text: str) -> str:
    """The text that quotes and escapes stand for. An expression in it would still be seen as one."""
    if not text.startswith('"'):
        return text
    inner = text[1:-1]
    assert not re.search(r"(?<![$%])(?:[$][$])*[$]\{|(?<![$%])(?:%%)*%\{", inner), inner
    inner = inner.replace("$${", "${").replace("%%{", "%{")
    short = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
    return re.sub(
        r"\\(?:([nrt\"\\])|u([0-9a-f]{4})|U([0-9a-f]{8}))",
        lambda match: short[match[1]] if match[1] else chr(int(match[2] or match[3], 16)),
        inner,
    )


def row(kind: str = "qemu", **more: Any) -> Resource:
    return Resource(**{"type": kind, "id": f"{kind}/100", "node": "pve1", "vmid": 100, "status": "running", **more})


# -- through the front door --------------------------------------------------------------------------------------------


async def test_every_guest_of_the_cluster_becomes_a_resource_with_an_import(tmp_path):
    async with house(tmp_path, {}, toolsets=TOOLSETS) as built:
        quorate = built.quorate
        rows = await quorate.rows("guest_list", limit=200)
        export = await quorate.facts("terraform_export", limit=100)
        assert export["guests"] == export["total"] == len(rows)
        blocks = resources(export["content"])
        assert {body["vm_id"] for body in blocks.values()} == {guest["vmid"] for guest in rows}
        imports = [meant(item) for item in read(export["content"])["import"]]
        assert {item["id"] for item in imports} == {f"{item['node']}/{item['vmid']}" for item in rows}
        assert {item["to"].strip("${}") for item in imports} == set(blocks)
        assert "PROXMOX_VE_API_TOKEN" in export["content"]
        assert quorate.sim.token_secret not in export["content"]


async def test_pages_hold_every_guest_once(tmp_path):
    async with house(tmp_path, {}, toolsets=TOOLSETS) as built:
        quorate = built.quorate
        whole = resources((await quorate.facts("terraform_export", limit=100))["content"])
        paged: dict[str, Any] = {}
        offset: int | None = 0
        while offset is not None:
            export = await quorate.facts("terraform_export", limit=3, offset=offset)
            assert ("required_providers" in export["content"]) == (offset == 0)
            paged |= resources(export["content"])
            offset = export.get("next_offset")
        assert paged == whole


async def test_what_was_set_is_what_is_exported(tmp_path):
    async with house(tmp_path, {}, toolsets=TOOLSETS) as built:
        quorate = built.quorate
        created = await quorate.facts(
            "vm_create", name="handed-over", vmid=4711, node="pve1", cores=3, memory="2G", disks=["local-lvm:12G"],
            networks=["vmbr0,tag=30"], tags=["zeta", "alpha"], description=EVIL, start=False,
        )  # fmt: skip
        assert created["result"]
        export = await quorate.facts("terraform_export", guests="handed-over")
        blocks = resources(export["content"])
        assert list(blocks) == [f"{VM}.handed_over"]
        body = blocks[f"{VM}.handed_over"]
        assert (body["vm_id"], body["node_name"], body["started"]) == (4711, "pve1", False)
        assert body["tags"] == ["alpha", "zeta"]
        assert body["description"].strip() == EVIL.strip()
        assert body["cpu"][0]["cores"] == 3
        assert body["memory"][0]["dedicated"] == 2048
        [disk] = body["disk"]
        assert (disk["datastore_id"], disk["size"]) == ("local-lvm", 12)
        [card] = body["network_device"]
        assert (card["bridge"], card["vlan_id"]) == ("vmbr0", 30)


async def test_an_unknown_cluster_and_a_missing_guest_are_refused(tmp_path):
    async with house(tmp_path, {}, toolsets=TOOLSETS) as built:
        assert "Available: demo" in await built.quorate.refusal("terraform_export", cluster="other")
        assert "99999" in await built.quorate.refusal("terraform_export", guests=99999)


# -- Terraform itself --------------------------------------------------------------------------------------------------


def terraform(folder: Path, *arguments: str) -> str:
    quiet = {"PATH": os.environ["PATH"], "HOME": str(folder), "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    assert BINARY is not None
    done = subprocess.run([BINARY, *arguments], cwd=folder, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_terraform
def test_terraform_reads_every_text_as_it_was_meant(tmp_path):
    texts = [
        EVIL,
        "${a}",
        "%{a}",
        "$${a}",
        "$$${",
        "%%%{",
        "%${x}",
        "\u2028x\\",
        "a\tb\r\n\x7f\U0001f600é",
        "$",
        "{",
        "",
    ]
    blocks = [Block("output", (f"n{number}",)).set(value=text) for number, text in enumerate(texts)]
    (tmp_path / "main.tf").write_text(render_blocks(blocks))
    terraform(tmp_path, "apply", "-auto-approve", "-input=false")
    outputs = json.loads(terraform(tmp_path, "output", "-json"))
    assert [outputs[f"n{number}"]["value"] for number in range(len(texts))] == texts


@needs_terraform
async def test_an_export_is_written_as_terraform_itself_would_write_it(tmp_path):
    (tmp_path / "house").mkdir()
    async with house(tmp_path / "house", {}, toolsets=TOOLSETS) as built:
        export = await built.quorate.facts("terraform_export", limit=100)
    (tmp_path / "main.tf").write_text(export["content"])
    assert await asyncio.to_thread(terraform, tmp_path, "fmt", "-diff", "-check") == ""


# -- the mapping -------------------------------------------------------------------------------------------------------


def test_a_vm_with_all_its_parts():
    config = {
        "name": "web01", "ostype": "l26", "bios": "ovmf", "machine": "q35", "cpu": "host,flags=+aes;-pcid",
        "cores": 4, "sockets": 2, "numa": 1, "memory": "4096", "balloon": 2048, "agent": "1,fstrim_cloned_disks=1",
        "boot": "order=scsi0;net0", "onboot": 1, "startup": "order=3,up=60", "scsihw": "virtio-scsi-single",
        "scsi0": "local-lvm:vm-100-disk-0,size=32G,iothread=1,discard=on,ssd=1,mbps_rd=100",
        "virtio1": "nfs:100/vm-100-disk-1.qcow2,size=1T,serial=abc", "ide0": "local-lvm:vm-100-disk-9,size=4G",
        "scsi3": "/dev/disk/by-id/x,size=1G", "ide2": "local:iso/debian.iso,media=cdrom,size=600M",
        "scsi5": "local-lvm:vm-100-cloudinit,media=cdrom", "efidisk0": "local-lvm:vm-100-disk-2,efitype=4m,size=4M",
        "tpmstate0": "local-lvm:vm-100-disk-3,version=v2.0,size=4M", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
        "net2": "e1000=BC:24:11:00:00:02,bridge=vmbr1,link_down=1,rate=1.5", "ciuser": "me", "cipassword": "**********",
        "sshkeys": "ssh-ed25519%20AAAA%20me%40x%0A", "ipconfig0": "ip=10.0.0.5/24,gw=10.0.0.1,ip6=dhcp",
        "nameserver": "1.1.1.1 9.9.9.9", "searchdomain": "lan", "vga": "serial0", "serial0": "socket",
        "hostpci0": "0000:01:00.0,pcie=1", "usb0": "host=1234:5678", "unused0": "local-lvm:vm-100-disk-8",
        "smbios1": "uuid=1-2,manufacturer=QWNtZQ==,base64=1", "digest": "d1", "vmgenid": "v1", "protection": 1,
    }  # fmt: skip
    text = render_blocks([virtual_machine("web01", row(pool="prod"), config)])
    body = resources(text)[f"{VM}.web01"]
    assert (body["bios"], body["machine"], body["on_boot"], body["pool_id"]) == ("ovmf", "q35", True, "prod")
    assert body["boot_order"] == ["scsi0", "net0"]
    assert body["cpu"][0] == {"cores": 4, "sockets": 2, "type": "host", "flags": ["+aes", "-pcid"], "numa": True}
    assert body["memory"][0] == {"dedicated": 4096, "floating": 2048}
    assert body["agent"][0] == {"enabled": True, "trim": True}
    assert body["startup"][0] == {"order": "3", "up_delay": "60"}
    assert body["disk"] == [
        {
            "interface": "scsi0", "datastore_id": "local-lvm", "file_format": "raw", "size": 32, "discard": "on",
            "iothread": True, "ssd": True, "speed": [{"read": 100}],
        },
        {"interface": "virtio1", "datastore_id": "nfs", "file_format": "qcow2", "size": 1024},
    ]  # fmt: skip
    assert body["cdrom"] == [{"interface": "ide2", "file_id": "local:iso/debian.iso"}]
    assert body["efi_disk"] == [{"datastore_id": "local-lvm", "file_format": "raw", "type": "4m"}]
    assert body["tpm_state"] == [{"datastore_id": "local-lvm", "version": "v2.0"}]
    assert [card["model"] for card in body["network_device"]] == ["virtio", "e1000"]
    assert body["network_device"][1]["rate_limit"] == 1.5
    [inside] = body["initialization"]
    assert (inside["interface"], inside["datastore_id"]) == ("scsi5", "local-lvm")
    assert inside["dns"] == [{"domain": "lan", "servers": ["1.1.1.1", "9.9.9.9"]}]
    assert inside["ip_config"] == [
        {"ipv4": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1"}], "ipv6": [{"address": "dhcp"}]}
    ]
    assert inside["user_account"] == [{"username": "me", "keys": ["ssh-ed25519 AAAA me@x"]}]
    assert body["smbios"] == [{"uuid": "1-2", "manufacturer": "Acme"}]
    assert body["lifecycle"] == [{"prevent_destroy": True}]
    left = {line.strip() for line in text.splitlines() if "not expressed" in line}
    assert left == {
        "# not expressed here: scsi3 = /dev/disk/by-id/x,size=1G",
        "# not expressed here: ide0 = local-lvm:vm-100-disk-9,size=4G",
        "# not expressed here: net2 link_down = 1",
        "# not expressed here: protection = 1",
        "# not expressed here: unused0 = local-lvm:vm-100-disk-8",
        "# not expressed here: virtio1 serial = abc",
    }
    assert "**" not in text


def test_a_container_with_all_its_parts():
    config = {
        "hostname": "dns", "arch": "amd64", "cores": 2, "memory": 1024, "swap": 512, "ostype": "debian",
        "unprivileged": 1, "features": "nesting=1,mount=nfs;cifs,mknod=1", "rootfs": "local-lvm:vm-101-disk-0,size=8G",
        "mp0": "local-lvm:vm-101-disk-1,mp=/data,size=10G,backup=1", "mp1": "/srv,mp=/srv,ro=1",
        "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:03,ip=dhcp,type=veth",
        "net1": "name=eth1,bridge=vmbr1,ip=manual", "dev0": "/dev/dri/renderD128,gid=104", "cpulimit": "1.5",
        "lxc": [["lxc.cap.drop", ""]], "digest": "x", "tags": "b;a",
    }  # fmt: skip
    text = render_blocks([container("dns", row("lxc", status="stopped"), config)])
    body = resources(text)[f"{CT}.dns"]
    assert (body["started"], body["unprivileged"], body["tags"]) == (False, True, ["a", "b"])
    assert body["disk"] == [{"datastore_id": "local-lvm", "size": 8}]
    assert body["mount_point"] == [
        {"volume": "local-lvm:vm-101-disk-1", "path": "/data", "size": "10G", "backup": True},
        {"volume": "/srv", "path": "/srv", "read_only": True},
    ]
    assert body["features"] == [{"nesting": True, "mount": ["nfs", "cifs"]}]
    assert body["device_passthrough"] == [{"path": "/dev/dri/renderD128", "gid": 104}]
    [inside] = body["initialization"]
    assert inside["hostname"] == "dns"
    assert inside["ip_config"] == [{"ipv4": [{"address": "dhcp"}]}, {}]
    assert [card["name"] for card in body["network_interface"]] == ["eth0", "eth1"]
    assert "ignore_changes  = [operating_system]" in text
    for part in ("features mknod = 1", "net1 ip = manual", "cpulimit = 1.5", "raw lxc settings"):
        assert f"not expressed here: {part}" in text


def test_one_cdrom_drive_is_written_and_a_second_is_mentioned():
    text = render_blocks(
        [virtual_machine("it", row(), {"ide2": "none,media=cdrom", "sata0": "local:iso/a.iso,media=cdrom"})]
    )
    [disc] = resources(text)[f"{VM}.it"]["cdrom"]
    assert disc == {"interface": "sata0", "file_id": "local:iso/a.iso"}
    assert "one more CD-ROM drive" in text


def test_what_is_not_set_does_not_become_the_providers_default():
    body = resources(render_blocks([virtual_machine("it", row(), {})]))[f"{VM}.it"]
    assert (body["scsi_hardware"], body["cpu"], body["on_boot"]) == ("lsi", [{"type": "kvm64"}], False)
    text = render_blocks([container("it", row("lxc"), {"memory": 512})])
    assert "all cores of its node" in text
    assert resources(text)[f"{CT}.it"]["start_on_boot"] is False


# -- nothing injects ---------------------------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from([EVIL, "${a}", "%{a}", "$${a}", "$$${", "%%%{", "\u2028x", "\\"])
)
OPTIONS = """name description tags boot cpu memory balloon agent scsi0 scsi1 virtio0 sata0 ide0 ide2 efidisk0 tpmstate0
net0 net1 ipconfig0 ciuser cipassword sshkeys nameserver searchdomain cicustom serial0 usb0 hostpci0 audio0 vga smbios1
startup args hostname rootfs mp0 mp1 dev0 features console tty lxc unused0 cores"""
KEYS = st.sampled_from([*re.split(r"\s+", OPTIONS), "unheard-of", "vmgenid", "password"])
PARTS = st.sampled_from(("file", "volume", "size", "ip", "gw", "bridge", "mp", "media", "tag", "name"))
PROPERTIES = st.lists(st.tuples(PARTS, TEXTS), max_size=4).map(
    lambda parts: ",".join(f"{key}={value}" for key, value in parts)
)
CONFIGS = st.dictionaries(KEYS, st.one_of(TEXTS, PROPERTIES, st.integers()), max_size=6)
BLOCKS = {
    "cpu", "memory", "agent", "operating_system", "startup", "disk", "cdrom", "efi_disk", "tpm_state", "network_device",
    "initialization", "serial_device", "hostpci", "usb", "audio_device", "vga", "smbios", "lifecycle", "features",
    "console", "mount_point", "device_passthrough", "network_interface",
}  # fmt: skip
ATTRIBUTES = {
    "node_name", "vm_id", "name", "description", "tags", "pool_id", "template", "started", "on_boot", "bios", "machine",
    "scsi_hardware", "keyboard_layout", "tablet_device", "acpi", "kvm_arguments", "hook_script_file_id", "boot_order",
    "start_on_boot", "unprivileged", "protection",
}  # fmt: skip


@pytest.mark.thorough
@patient
@given(CONFIGS, st.booleans(), TEXTS)
@example({"description": EVIL, "scsi0": EVIL, "net0": EVIL, "x": EVIL}, True, EVIL)
@example({"description": EVIL, "mp0": EVIL, "x": EVIL}, False, EVIL)
def test_any_configuration_becomes_exactly_one_resource(config, is_vm, pool):
    make, kind = (virtual_machine, VM) if is_vm else (container, CT)
    text = render_blocks([make("it", row("qemu" if is_vm else "lxc", pool=pool), config)])
    assert set(read(text)) == {"resource"}
    [(name, body)] = resources(text).items()
    assert name == f"{kind}.it"
    assert set(body) <= BLOCKS | ATTRIBUTES
    assert body["lifecycle"][0]["prevent_destroy"] is True
    if config.get("description"):
        assert body["description"] == str(config["description"])


@patient
@given(TEXTS)
@example(EVIL)
def test_a_text_stays_that_text(text):
    blocks = meant(read(render_blocks([Block("a").set(b=text)])))
    assert blocks == {"a": [{"b": text}]}


@patient
@given(st.lists(TEXTS, max_size=6))
def test_names_are_valid_and_each_is_used_once(given_names):
    names = Names()
    resource_names = [names.fresh(name, 100 + n) for n, name in enumerate(given_names)]
    assert len(set(resource_names)) == len(resource_names)
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", name) for name in resource_names)
