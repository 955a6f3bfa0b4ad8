"""Strategies for single parameters by name; `operation.parameter` where an operation differs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pve_simulator.world import World
from quorate.units import moment
from tests.generators.population import BACKUP, CONTENT, CT_BACKUP, ENDED_RUN, IMAGE, ISO, KEY, PAUSED_RUN, UNDOABLE

Strategy = st.SearchStrategy[Any]


def by_name(world: World, image: Path) -> Mapping[str, Strategy]:
    pick = st.sampled_from
    vms = [vmid for vmid, guest in world.guests.items() if guest.kind == "qemu"]
    containers = [vmid for vmid, guest in world.guests.items() if guest.kind == "lxc"]
    guests = [*vms, *containers, *(guest.name for guest in world.guests.values())]
    some_guests = st.one_of(pick(guests), st.lists(pick(vms + containers), min_size=1, max_size=3, unique=True))
    words = pick(["alpha", "beta-2", "gamma"])
    tags = st.lists(pick(["prod", "lab", "new-tag", "a_b"]), min_size=1, max_size=3, unique=True)
    sizes = pick([1, 4, "2G", "512M", "8G"])
    free = st.integers(min_value=500, max_value=99_999)
    networks = st.lists(
        pick(["vmbr0", "vmbr0,tag=20", {"bridge": "vmbr0", "firewall": True}, {"bridge": "vmbr0", "tag": 7}]),
        min_size=1,
        max_size=2,
    )
    return {
        # -- who and where
        "guest": pick(guests), "guests": some_guests, "guest_bulk.guests": st.lists(pick(guests),
        min_size=1, max_size=4),
        "guest_power.guest": some_guests, "guest_stop.guest": some_guests, "backup_create.guest": some_guests,
        "backup_job_set.guest": some_guests, "exclude": some_guests,
        "node": pick(list(world.nodes)), "target": pick(list(world.nodes)), "nodes": st.just(["pve1:2", "pve2"]),
        "storage": pick(["local-lvm", "tank", "nas"]), "vmid": free, "pool": pick(["lab", "production"]),
        "backup_create.storage": pick(["nas", "pbs", "local"]), "backup_job_set.storage": pick(["nas", "pbs"]),
        "backup_prune.storage": st.just("pbs"), "guest_bulk.storage": pick(["nas", "pbs"]),
        "image_download.storage": pick(["local", "nas"]), "image_upload.storage": pick(["local", "nas"]),
        "target_storage": pick(["local-lvm", "tank", "nas"]),
        "wait_for": st.none(),  # it would wait for a guest that nothing installs
        "snapshot_delete.older_than": st.just("1m"), "storage_cleanup.older_than": st.just(0),
        "storage_cleanup.keep": st.just(["nobody"]), "from_storage": pick(["local-lvm", "tank"]),
        "guest_clone.disk": st.just("64G"), "backup_job_set.tag": st.none(),
        # -- texts
        "name": words, "hostname": words, "description": st.text("abc äöü\n%&=,;", max_size=20), "comment": words,
        "notes": pick(["{{guestname}} by hand", "plain"]), "snapshot": pick(["alpha", "beta_2"]),
        "guest_clone.snapshot": st.just("clean"),
        "password": st.just("long-enough"), "user": words, "search_domain": st.just("home.lan"),
        "searchdomain": st.just("home.lan"), "dns": st.just("1.1.1.1"), "nameserver": st.just("1.1.1.1 9.9.9.9"),
        "ssh_keys": st.just([KEY]), "custom": st.just("user=local:snippets/u.yml"), "filename": st.just("tiny.iso"),
        "url": st.just(IMAGE),
        "image_download.template": pick(["alpine-3.22-default", "ubuntu-24.04-standard"]),
        "checksum": st.just("sha256:" + "ab" * 32),
        "email": st.just("me@example.org"), "firstname": words, "lastname": words,
        "expire": pick(["never", "90d", "2027-01-31"]), "schedule": pick(["21:00", "*/15", "sat 03:30"]),
        "keep": pick(["last=1", "daily=1"]), "replication_delete.keep": st.booleans(),
        # -- tags, groups, members
        "tags": tags, "add_tags": tags, "remove_tags": tags, "tag": pick(["prod", "lab"]),
        "groups": st.just(["admins"]), "add": st.just(["carol@pve"]), "remove": st.just(["bob@pve"]),
        "firewall_object_set.add": st.just(["10.0.0.0/8", "!10.0.0.1"]),
        "firewall_object_set.remove": st.just(["192.168.10.9"]),
        "add_guests": st.just([205]), "remove_guests": st.just([104]), "add_storages": st.just(["nas"]),
        "remove_storages": st.just(["local-lvm"]), "job": st.just("nightly"),
        # -- hardware
        "cores": st.integers(1, 8), "sockets": st.integers(1, 2), "memory": pick([512, 2048, "1G", "4G"]),
        "balloon": pick([0, 512]), "swap": pick([0, 256, "1G"]), "cpu": pick(["host", "x86-64-v2-AES"]),
        "size": sizes, "disk_change.size": pick(["+1G", "+512M", "900G"]), "rootfs": pick(["4G", "local-lvm:6G"]),
        "ostype": pick(["l26", "win11"]), "machine": pick(["q35", "pc"]), "startup": st.just("order=2,up=30"),
        "agent": pick([True, False]), "boot": st.just(["scsi0", "net0"]), "cdrom": pick([ISO, "none"]),
        "format": pick(["raw", "qcow2"]), "iso": pick([ISO, "debian-13.1.0-amd64-netinst.iso", [ISO]]),
        "disks": st.lists(
            pick(["8G", "local-lvm:4G", {"size": "5G", "bus": "virtio"},
            {"size": 4, "storage": "nas", "format": "qcow2"}]),
            min_size=1, max_size=2,
        ),
        "mounts": st.lists(
            pick(["local-lvm:2G,mp=/data", {"size": "1G", "path": "/srv", "backup": True}]), min_size=1, max_size=1,
        ),
        "cloud_init": pick([
            {"user": "me", "ip": "dhcp"}, {"ssh_keys": [KEY], "ip": "10.0.0.5/24", "gateway": "10.0.0.1"},
            {"password": "long-enough", "ip6": "auto", "dns": "1.1.1.1", "upgrade": False},
        ]),
        "networks": networks, "features": pick(["nesting=1", "nesting=1,keyctl=1"]),
        "import_from": pick(["nas:108/vm-108-disk-9.raw", "tank:vm-102-disk-0"]), "path": pick(["/data2", "/srv/x"]),
        "disk_add.disk": pick(["scsi", "virtio", "scsi5", "mp", "mp3"]), "slot": pick(["scsi4", "virtio", "mp2"]),
        "disk_change.disk": pick(["scsi0", "rootfs", "unused0"]),
        "disk_add.options": pick([{"backup": False}, {"backup": True}]),
        "disk_change.options": pick([{"backup": False}, {"backup": True}]),
        "options": pick([{"tablet": 0}, {"cpuunits": 200}, {"startup": "order=3"}]),
        "unset": pick([["description"], ["tags"], ["onboot"]]), "revert": st.just(["memory"]),
        "digest": st.just("0" * 40), "of": st.just(102),
        "network_apply.of": pick(["node", "sdn"]), "vnet": st.just("v1"), "zone": st.just("z1"),
        "image_upload.checksum": st.just(hashlib.sha256(CONTENT).hexdigest()), "file": st.just(str(image)),
        # -- network cards and interfaces
        "nic": pick(["net0", "net1", 0, 1]), "bridge": st.just("vmbr0"), "vlan": st.integers(0, 4094),
        "rate": pick([0, 1, 12.5]), "mtu": pick([0, 1400, 9000]), "mac": st.just("BC:24:11:00:00:07"),
        "model": pick(["virtio", "e1000"]), "nic_set.name": pick(["eth0", "eth7"]), "ip": pick(["dhcp", "10.0.0.7/24"]),
        "gateway": st.just("10.0.0.1"), "ip6": pick(["auto", "fd00::7/64"]), "gateway6": st.just("fd00::1"),
        "cidr": st.just("10.8.0.2/24"), "ports": st.just(["eno3"]), "node_network_change.mtu": pick([1500, 9000]),
        "node_network_change.options": st.just({"comments6": "six"}),
        "node_network_change.remove": st.just(["comments"]),
        # -- the rest
        "source": pick(["10.0.0.0/8", "+admins", "lan"]), "dest": st.just("10.0.0.5"), "sport": st.just("1024:65535"),
        "dport": pick(["80,443", "8000:8100"]), "proto": pick(["tcp", "udp"]), "macro": pick(["SSH", "HTTPS"]),
        "icmp_type": st.just("echo-request"), "iface": st.just("net0"), "log": pick(["info", "nolog"]),
        "firewall_rule_set.action": pick(["ACCEPT", "DROP", "REJECT"]), "pos": st.just(0), "move_to": st.just(0),
        "firewall_options_set.options": pick([{"log_level_in": "info"}, {"ebtables": True}, {"dhcp": True}]),
        "rename": st.just("renamed"), "holders": pick([["bob@pve"], ["@family", "alice@pve!ci"]]),
        "roles": pick([["PVEVMUser"], ["PVEAuditor", "PVEVMUser"]]),
        "privileges": st.just(["VM.Audit", "VM.PowerMgmt"]),
        "sdn_change.tag": st.integers(1, 4094), "data": st.just(base64.b64encode(CONTENT).decode()),
        "group": st.just("g1"), "ha_remove.rule": st.just("near"), "limit": st.integers(20, 100), "params": st.just({}),
        "timeout": st.integers(1, 600), "offset": st.just(0),
        "guest_bulk.from_storage": pick(["local-lvm", "tank"]), "image_to_template.image": st.just("https://example.com/noble.qcow2"),
        "image_storage": st.just("local"), "vm_import.source": st.just("shop.ova"),
        "vm_import.bus": pick(["scsi", "sata", "ide", "virtio"]), "template_list.image": st.just("nginx"),
        # -- runs
        "run": st.just(PAUSED_RUN), "run_return.run": st.just(ENDED_RUN),
        "at": st.just(moment(world.clock.now() + 86_400)), "window": pick(["22:00-05:00", "Sat,Sun 00:00-24:00"]),
        "run_evacuate.to": st.just(["pve1", "pve2"]), "run_evacuate.node": st.just("pve3"),
        "to": st.just("other"),
        "backups": st.just([BACKUP, CT_BACKUP]), "run_rolling_update.nodes": st.just(["pve2", "pve3"]),
        "change": st.just(UNDOABLE), "check": pick(["true", "test -d /etc"]),
        "services": st.just(["ssh"]), "run_guest_update.url": st.just("http://localhost/"),
        "backup_storage": st.just("nas"), "run_guest_update.keep": pick(["failure", "always", "never"]),
        "run_guest_update.guest": pick([102, 103, 104]),
        # -- inside guests
        "cwd": pick(["/", "/srv/a b"]), "env": st.just({"LANG": "C"}), "stdin": pick(["", "two\nlines"]),
        "guest_exec.user": pick(["root", "ubuntu"]), "guest_file_write.mode": pick(["0644", "600"]),
        "owner": pick(["root", "root:root", ":adm", "1000:1000"]), "way": st.just("agent"),
    }  # fmt: skip


def by_type(part: Mapping[str, Any]) -> Strategy:
    if "enum" in part:
        return st.sampled_from(part["enum"])
    if part.get("type") == "boolean":
        return st.booleans()
    if part.get("type") in ("integer", "number"):
        least = int(part.get("minimum", 0))
        return st.integers(least, min(int(part.get("maximum", least + 1000)), least + 1000))
    raise AssertionError(f"there is no strategy for {part}")
