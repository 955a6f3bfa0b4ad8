"""Variations of recorded requests: other values, orders and guests, checked against PVE's code.

Each story runs in its own world. A step is `METHOD path`, its parameters and the outcome: `ok`, a refusal
(`500 text`, `400 parameter: text`), the end of the task (`task text`), or what the answer must contain.
"""

from __future__ import annotations

from typing import Any

import pytest

from pve_schema.calendar_events import calendar_errors
from pve_simulator.api_client import Api
from pve_simulator.guests.guest import GIB
from pve_simulator.storage.storages import Storage, StorageSpace

Step = tuple[str, dict[str, Any], Any]

NODE = "/nodes/pve1"
VM = f"{NODE}/qemu/500"
TEMPLATE = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
NO_VOLUME = """invalid format - format error
cicustom.user: invalid format - unable to parse volume ID 'rubbish'

"""
OTHER_CARD = "'id' does not match for 'gpu' (144d:a80a != 10de:1234)"
NO_BASE = "unsupported base type 'nfs' at /usr/share/perl5/PVE/Storage/LVMPlugin.pm line 411."
UNREADABLE = calendar_errors("whenever")["schedule"]
DISK = {"scsi0": "nas:1,format=qcow2"}

STATIC = "ip=10.0.0.5/24,gw=10.0.0.1,ip6=fd00::5/64"
CLOUD_CONFIG = """\
#cloud-config
hostname: VM500
manage_etc_hosts: true
fqdn: VM500
user: root
disable_root: False
chpasswd:
  expire: False
package_upgrade: true
"""
NETWORK_CONFIG = """\
version: 1
config:
    - type: physical
      name: eth1
      mac_address: 'bc:24:11:00:00:02'
      subnets:
      - type: dhcp4
      - type: ipv6_slaac
    - type: nameserver
      address:
      - '192.168.10.2'
      search:
      - 'home.lan'
"""
INTERFACES = """\
auto lo
iface lo inet loopback

        dns_nameservers 192.168.10.2
        dns_search home.lan
auto eth1
iface eth1 inet static
        address 10.0.0.5
        netmask 255.255.255.0
        gateway 10.0.0.1
iface eth1 inet6 static
        address fd00::5
        netmask 64
"""

STORIES: dict[str, list[Step]] = {
    "a VM that is made as a template has base images": [
        (f"POST {NODE}/qemu", {"vmid": 500, "template": 1, **DISK}, "task OK"),
        (f"GET {VM}/config", {}, {"scsi0": "nas:500/base-500-disk-0.qcow2,size=1G", "template": 1}),
        (f"PUT {VM}/config", {"scsi1": "nas:1,format=raw"}, "ok"),
        (f"GET {VM}/config", {}, {"scsi1": "nas:500/base-500-disk-1.raw,size=1G"}),
        (f"POST {VM}/clone", {"newid": 501}, "task OK"),
        (f"GET {NODE}/qemu/501/config", {}, {"scsi1": "nas:500/base-500-disk-1.raw/501/vm-501-disk-1.qcow2,size=1G"}),
    ],
    "converting one disk makes the VM a template as well": [
        (f"POST {NODE}/qemu", {"vmid": 500, **DISK, "ide0": "nas:1,format=raw"}, "task OK"),
        (f"POST {VM}/template", {"disk": "scsi0"}, "task OK"),
        (f"GET {VM}/config", {}, {"template": 1, "ide0": "nas:500/vm-500-disk-0.raw,size=1G"}),
        (f"POST {VM}/template", {}, "500 you can't convert a template to a template"),
    ],
    "a clone of a clone names only what it builds on directly": [
        (f"POST {NODE}/qemu", {"vmid": 500, "template": 1, **DISK}, "task OK"),
        (f"POST {VM}/clone", {"newid": 501}, "task OK"),
        (f"POST {NODE}/qemu/501/template", {}, "task OK"),
        (f"POST {NODE}/qemu/501/clone", {"newid": 502}, "task OK"),
        (f"GET {NODE}/qemu/502/config", {}, {"scsi0": "nas:501/base-501-disk-0.qcow2/502/vm-502-disk-0.qcow2,size=1G"}),
    ],
    "a cloud-init drive can be moved and keeps its format in a clone": [
        (f"POST {NODE}/qemu", {"vmid": 500, "ide2": "nas:cloudinit"}, "task OK"),
        (f"POST {VM}/clone", {"newid": 501}, "task OK"),
        (f"GET {NODE}/qemu/501/config", {}, {"ide2": "nas:501/vm-501-cloudinit.qcow2,media=cdrom,size=4M"}),
        (f"POST {VM}/move_disk", {"disk": "ide2", "storage": "local-lvm", "delete": 1}, "task OK"),
        (f"GET {VM}/config", {}, {"ide2": "local-lvm:vm-500-cloudinit,media=cdrom,size=4M"}),
    ],
    "a disk goes to another VM only if nothing holds it": [
        (f"POST {NODE}/qemu", {"vmid": 500, **DISK, "ide2": "none,media=cdrom"}, "task OK"),
        (f"POST {NODE}/qemu", {"vmid": 501}, "task OK"),
        (f"POST {VM}/move_disk", {"disk": "ide2", "target-vmid": 501},
         "500 CD drive contents can't be moved to another VM"),
        (f"POST {VM}/move_disk", {"disk": "scsi0", "target-vmid": 501, "digest": "0"},
         "500 VM 500: detected modified configuration - file changed by other user? Try again."),
        (f"POST {VM}/snapshot", {"snapname": "one"}, "task OK"),
        (f"POST {VM}/move_disk", {"disk": "scsi0", "target-vmid": 501},
         "500 Can't move disk used by a snapshot to another VM"),
        (f"DELETE {VM}/snapshot/one", {}, "task OK"),
        (f"POST {VM}/status/start", {}, "task OK"),
        (f"POST {VM}/move_disk", {"disk": "scsi0", "target-vmid": 501},
         "500 Cannot move disk to another VM while the source VM is running - detach first"),
        (f"POST {VM}/status/stop", {}, "task OK"),
        (f"POST {VM}/move_disk", {"disk": "scsi0", "target-vmid": 9000},
         "500 Can't move disks from or to template VMs"),
        (f"POST {VM}/move_disk", {"disk": "scsi0", "target-vmid": 501}, "task OK"),
        (f"GET {VM}/config", {}, {"boot": "order=ide2"}),
    ],
    "a volume moves inside its container and to another one": [
        (f"POST {NODE}/lxc", {"vmid": 500, "ostemplate": TEMPLATE, "features": "nesting=1",
                              "rootfs": "local-lvm:4", "mp0": "local-lvm:1,mp=/a"}, "task OK"),
        (f"POST {NODE}/lxc/500/move_volume", {"volume": "rootfs", "target-vmid": 500, "target-volume": "mp3"},
         "500 Cannot move to/from 'rootfs'"),
        (f"POST {NODE}/lxc/500/move_volume", {"volume": "mp5", "target-vmid": 500, "target-volume": "mp3"},
         "500 volume 'mp5' for container '500' does not exist"),
        (f"POST {NODE}/lxc/500/move_volume", {"volume": "mp0", "target-vmid": 501, "storage": "nas"},
         "500 either set storage or target-vmid, but not both"),
        (f"POST {NODE}/lxc/500/move_volume", {"volume": "mp0", "target-vmid": 500, "target-volume": "mp3"}, "task OK"),
        (f"GET {NODE}/lxc/500/config", {}, {"mp3": "local-lvm:vm-500-disk-2,mp=/a,size=1G"}),
    ],
    "hibernated VMs remember machine and processor": [
        (f"POST {NODE}/qemu", {"vmid": 500, "machine": "q35", "kvm": 0, "cores": 1, **DISK}, "task OK"),
        (f"POST {VM}/status/start", {}, "task OK"),
        (f"POST {VM}/status/suspend", {"todisk": 1}, "task OK"),
        (f"GET {VM}/config", {}, {"lock": "suspended", "runningmachine": "pc-q35-10.1+pve0", "runningcpu": "qemu64"}),
    ],
    "what the monitor takes from a token": [
        (f"POST {NODE}/qemu", {"vmid": 500}, "task OK"),
        (f"POST {VM}/status/start", {}, "task OK"),
        (f"POST {VM}/monitor", {"command": "system_reset"}, "ok"),
        (f"POST {VM}/monitor", {"command": "device_add x"}, "500 root-only command 'device_add'"),
        (f"POST {VM}/monitor", {"command": "fly"},
         "500 command 'fly' non-existent or not assigned a required permission yet, limiting to root user"),
    ],
    "btrfs copies on write and keeps no link": [
        (f"POST {NODE}/qemu", {"vmid": 500, "scsi0": "bt:1", "ide2": "bt:cloudinit"}, "task OK"),
        (f"POST {VM}/clone", {"newid": 501, "full": 0}, "task OK"),
        (f"POST {VM}/template", {}, "task OK"),
        (f"POST {VM}/clone", {"newid": 502}, "task OK"),
        (f"GET {NODE}/qemu/502/config", {}, {"scsi0": "bt:502/vm-502-disk-0.raw,size=1G",
                                             "ide2": "bt:502/vm-502-cloudinit.raw,media=cdrom,size=4M"}),
        (f"DELETE {VM}", {}, "task OK"),
        (f"POST {NODE}/storage/bt/content", {"vmid": 502, "filename": "vm-502-disk-9.qcow2", "size": "1G"}, "ok"),
        (f"POST {NODE}/storage/nas/content", {"vmid": 502, "filename": "vm-502-disk-9.subvol", "size": "1G"},
         "500 illegal name 'vm-502-disk-9.subvol' - wrong extension for format ('subvol != 'raw')"),
        (f"POST {NODE}/lxc", {"vmid": 503, "ostemplate": TEMPLATE, "features": "nesting=1", "rootfs": "bt:0"},
         "task OK"),
        (f"GET {NODE}/lxc/503/config", {}, {"rootfs": "bt:503/subvol-503-disk-0.subvol,size=0T"}),
        (f"POST {NODE}/lxc/503/template", {}, "ok"),
        (f"POST {NODE}/lxc/503/clone", {"newid": 504}, "task OK"),
        (f"GET {NODE}/lxc/504/config", {}, {"rootfs": "bt:504/subvol-504-disk-0.subvol,size=0T"}),
    ],
    "options of a VM": [
        (f"POST {NODE}/qemu", {"vmid": 500, "cpuunits": 20000}, "task OK"),
        (f"GET {VM}/config", {}, {"cpuunits": 10000}),
        (f"PUT {VM}/config", {"vga": "none,clipboard=vnc"}, "500 vga type none is not compatible with VNC clipboard"),
        (f"PUT {VM}/config", {"usb0": "usb3=1"}, "500 either 'host' or 'mapping' must be set."),
        (f"PUT {VM}/config", {"hostpci0": "mapping=gpu,host=00:01.0"},
         "500 only root can set 'hostpci0' config for non-mapped devices"),
        (f"PUT {VM}/config", {"cicustom": "user=rubbish"},
         f"400 cicustom: {NO_VOLUME}"),
        (f"PUT {VM}/config", {"cpu": "host", "kvm": 0}, "ok"),
        (f"POST {VM}/status/start", {}, "task start failed: QEMU exited with code 1"),
        (f"POST {VM}/snapshot", {"snapname": "Pending"}, "500 unable to use snapshot name 'pending' (reserved name)"),
        (f"POST {NODE}/qemu", {"vmid": 501, "scsi0": "nas:0"}, "task OK"),
        (f"GET {NODE}/qemu/501/config", {}, {"scsi0": "nas:501/vm-501-disk-0.raw,size=0T"}),
    ],
    "a storage that is off is not asked whether it answers": [
        ("POST /storage", {"storage": "far", "type": "nfs", "server": "192.0.2.9", "export": "/e"},
         "500 create storage failed: storage 'far' is not online"),
        ("POST /storage", {"storage": "far", "type": "nfs", "server": "192.0.2.9", "export": "/e", "disable": 1}, "ok"),
        ("PUT /storage/far", {"disable": 0}, "ok"),
        (f"GET {NODE}/storage/far/status", {}, {"active": 0, "enabled": 1}),
        (f"GET {NODE}/storage/far/content", {}, "500 storage 'far' is not online"),
        ("PUT /storage/nas", {"disable": 1}, "ok"),
        (f"POST {NODE}/vzdump", {"vmid": 108, "storage": "nas"},
         "task could not activate storage 'nas': storage 'nas' is disabled"),
    ],
    "mapped devices have to be what the mapping says": [
        ("POST /cluster/mapping/pci", {"id": "gpu", "map": "node=pve1,path=0000:01:00.0,id=10de:1234"}, "ok"),
        ("POST /cluster/mapping/usb", {"id": "stick", "map": "node=pve1,id=1234:5678"}, "ok"),
        (f"POST {NODE}/qemu", {"vmid": 500, "hostpci0": "mapping=gpu"}, "task OK"),
        (f"POST {VM}/status/start", {},
         f"task PCI device mapping invalid (hardware probably changed): {OTHER_CARD}"),
        (f"PUT {VM}/config", {"delete": "hostpci0", "usb0": "mapping=stick"}, "ok"),
        (f"POST {VM}/status/start", {},
         "task USB Mapping invalid (hardware probably changed): usb device '1234:5678' not found"),
    ],
    "conditions of notifications and names of subnets are read before they are stored": [
        ("POST /cluster/notifications/matchers", {"name": "m2", "match-severity": "loud"},
         "500 invalid severity loud at /usr/share/perl5/PVE/API2/Cluster/Notifications.pm line 1421."),
        ("POST /cluster/notifications/matchers", {"name": "m3", "match-field": "exact:type=vzdump"}, "ok"),
        ("POST /cluster/sdn/zones", {"zone": "z1", "type": "simple"}, "ok"),
        ("POST /cluster/sdn/vnets", {"vnet": "v1", "zone": "z1"}, "ok"),
        ("GET /cluster/sdn/vnets/v1/subnets/nope", {},
         "400 subnet: invalid format - value does not look like a valid CIDR network\n"),
        ("POST /cluster/metrics/server/m1", {"type": "graphite", "server": "x", "port": 1, "path": "bad path"},
         "400 path: invalid format - value does not look like a valid graphite path\n"),
    ],
    "the network is shown as the file has it": [
        (f"POST {NODE}/network", {"iface": "vmbr9", "type": "bridge", "mtu": 1400, "comments": "one\ntwo"}, "ok"),
        (f"GET {NODE}/network/vmbr9", {}, {"mtu": "1400", "comments": "one\ntwo\n"}),
        (f"POST {NODE}/network", {"iface": "vmbr9.7", "type": "vlan"}, "ok"),
        (f"GET {NODE}/network/vmbr9.7", {}, {"vlan-id": "7", "vlan-raw-device": "vmbr9"}),
        (f"POST {NODE}/network", {"iface": "bond5", "type": "bond"}, "ok"),
        (f"GET {NODE}/network/bond5", {}, {"slaves": "", "bond_mode": "balance-rr"}),
        (f"POST {NODE}/network", {"iface": "vmbr8", "type": "bridge", "bridge_vids": "9-2"},
         "400 bridge_vids: invalid format - VLAN range must go from lower to higher tag '9-2'\n"),
    ],
    "cloud-init's files depend on the format, the node's names and the cards with addresses": [
        (f"POST {NODE}/qemu", {"vmid": 500, "net0": "virtio=BC:24:11:00:00:01", "net1": "virtio=BC:24:11:00:00:02",
                               "ipconfig1": "ip=dhcp,ip6=auto", "ciuser": "root", "citype": "nocloud"}, "task OK"),
        (f"GET {VM}/cloudinit/dump", {"type": "user"}, CLOUD_CONFIG),
        (f"GET {VM}/cloudinit/dump", {"type": "network"}, NETWORK_CONFIG),
        (f"PUT {VM}/config", {"citype": "configdrive2", "ipconfig1": STATIC}, "ok"),
        (f"GET {VM}/cloudinit/dump", {"type": "network"}, INTERFACES),
    ],
    "a cloud-init drive needs the snippets that it is written with": [
        (f"POST {NODE}/qemu", {"vmid": 500, "ide2": "local-lvm:cloudinit", "cicustom": "user=local:snippets/no.yml"},
         "task OK"),
        (f"POST {VM}/status/start", {}, "task volume 'local:snippets/no.yml' does not exist"),
        (f"PUT {VM}/cloudinit", {}, "500 volume 'local:snippets/no.yml' does not exist"),
        (f"PUT {VM}/config", {"cicustom": "user=local:iso/x.iso"}, "ok"),
        (f"POST {VM}/status/start", {}, "task local:iso/x.iso is not in the snippets directory"),
        (f"PUT {VM}/config", {"delete": "cicustom"}, "ok"),
        (f"POST {VM}/status/start", {}, "task OK"),
    ],
    "unprivileged containers have no quotas": [
        (f"POST {NODE}/lxc", {"vmid": 500, "ostemplate": TEMPLATE, "features": "nesting=1", "rootfs": "local-lvm:1",
                              "mp0": "local-lvm:1,mp=/d,quota=1"}, "task OK"),
        (f"POST {NODE}/lxc/500/status/start", {}, "task Quotas are not supported by unprivileged containers."),
    ],
    "a running VM holds on to what it boots from, and an empty one to its PCI devices": [
        (f"POST {NODE}/qemu", {"vmid": 500, "net0": "virtio,bridge=vmbr0", "scsi1": "nas:1", "ide0": "nas:1", **DISK},
         "task OK"),
        (f"POST {VM}/status/start", {}, "task OK"),
        (f"PUT {VM}/config", {"delete": "ide0"}, "ok"),
        (f"PUT {VM}/config", {"revert": "ide0,boot"}, "ok"),
        (f"PUT {VM}/config", {"boot": "order=scsi0"}, "ok"),
        (f"PUT {VM}/config", {"ide2": "none,media=cdrom"}, "ok"),
        (f"GET {VM}/config", {}, {"boot": "order=ide0;net0;ide2"}),
        (f"PUT {VM}/config", {"delete": "net0"},
         "400 net0: hotplug problem - error on hot-unplugging device 'net0'\n"),
        (f"PUT {VM}/config", {"revert": "net0"}, "ok"),
        (f"PUT {VM}/config", {"net0": "e1000,bridge=vmbr0"},
         "400 net0: hotplug problem - error on hot-unplugging device 'net0'\n"),
        (f"PUT {VM}/config", {"ide0": "nas:1"}, "400 ide0: hotplug problem - can't unplug bootdisk 'ide0'\n"),
        (f"PUT {VM}/config", {"scsi0": "none,media=cdrom"},
         "400 scsi0: hotplug problem - unable to change media type\n"),
        (f"POST {VM}/config", {"scsi1": "none,media=cdrom"},
         "task 400 Parameter verification failed. scsi1: hotplug problem - unable to change media type"),
    ],
    "the firewall's file is read back": [
        ("POST /cluster/firewall/ipset", {"name": "Lan"}, "ok"),
        ("GET /cluster/firewall/ipset/Lan", {}, "500 no such IPSet 'Lan'"),
        ("POST /cluster/firewall/aliases", {"name": "Box", "cidr": "10.0.0.1", "comment": " mine "}, "ok"),
        ("POST /cluster/firewall/ipset/lan", {"cidr": "Box"}, "ok"),
        ("POST /cluster/firewall/ipset/lan", {"cidr": "10.0.0.9"}, "ok"),
        ("GET /cluster/firewall/aliases/box", {}, {"name": "Box", "comment": "mine"}),
        ("DELETE /cluster/firewall/aliases/box", {}, "ok"),
        ("GET /cluster/firewall/ipset/lan/Box", {}, {"errors": {"cidr": "no such alias 'Box'"}}),
        ("POST /cluster/firewall/rules", {"type": "in", "action": "ACCEPT", "enable": 7, "comment": " "}, "ok"),
        ("GET /cluster/firewall/rules/0", {}, {"enable": 1, "comment": None}),
    ],
    "mapped directories are there": [
        ("POST /cluster/mapping/dir", {"id": "none", "map": "node=pve1,path=/no/such"},
         "500 Path /no/such does not exist"),
        ("POST /cluster/mapping/dir", {"id": "other", "map": "node=pve2,path=/no/such"}, "ok"),
        ("GET /cluster/mapping/dir", {"check-node": "nonode"},
         "500 hostname lookup 'nonode' failed - failed to get address info for: nonode: Name or service not known"),
        ("PUT /cluster/mapping/dir/other", {"description": "x"},
         "500 update directory mapping failed: missing value for required option 'map'"),
        ("PUT /cluster/mapping/dir/other", {"map": "node=pve1,path=/no"},
         "500 update directory mapping failed: Path /no does not exist"),
    ],
    "what a running VM takes at once": [
        (f"POST {NODE}/qemu", {"vmid": 500, "agent": 1, "balloon": 64, "memory": 128, **DISK}, "task OK"),
        (f"POST {VM}/status/start", {}, "task OK"),
        (f"PUT {VM}/config", {"scsi0": "nas:500/vm-500-disk-0.qcow2,serial=abc"}, "ok"),
        (f"PUT {VM}/config", {"agent": "1,fstrim_cloned_disks=1", "tablet": 0, "hotplug": "disk,cpu"}, "ok"),
        (f"PUT {VM}/config", {"delete": "balloon"}, "ok"),
        (f"GET {VM}/config", {"current": 1}, {"agent": "1,fstrim_cloned_disks=1", "tablet": 0, "balloon": None,
                                             "scsi0": "nas:500/vm-500-disk-0.qcow2,serial=abc,size=1G"}),
        (f"GET {VM}/config", {"current": 1}, {"hotplug": None}),
        (f"PUT {VM}/config", {"agent": "1,type=isa", "scsi0": "nas:500/vm-500-disk-0.qcow2,cache=none"}, "ok"),
        (f"GET {VM}/config", {"current": 1}, {"agent": "1,fstrim_cloned_disks=1",
                                             "scsi0": "nas:500/vm-500-disk-0.qcow2,serial=abc,size=1G"}),
    ],
    "a schedule is read before anything is looked up": [
        ("PUT /cluster/replication/999-0", {"schedule": "whenever"},
         f"400 schedule: {UNREADABLE}"),
    ],
    "a volume group is made on an iSCSI disk": [
        ("POST /storage", {"storage": "vg", "type": "lvm", "vgname": "vg1", "base": "nas:x"},
         f"500 create storage failed: {NO_BASE}"),
        ("POST /storage", {"storage": "vg", "type": "lvm", "vgname": "vg1", "base": "none:x"},
         "500 create storage failed: base storage ID 'none' does not exist"),
    ],
    "a schedule may be far away": [
        ("GET /cluster/jobs/schedule-analyze", {"schedule": "2099-1-1 00:00"},
         [{"timestamp": 4070908800, "utc": "Thu Jan  1 00:00:00 2099"}]),
    ],
}  # fmt: skip

FORMATTING = "fmt=qcow2 cluster_size=131072 extended_l2=on preallocation=metadata compression_type=zlib size=1073741824"
LOGS: dict[str, tuple[list[tuple[str, dict[str, Any]]], list[str]]] = {
    "a linked clone": (
        [
            (f"POST {NODE}/qemu", {"vmid": 500, "scsi0": "nas:1,format=qcow2"}),
            (f"POST {VM}/template", {}),
            (f"POST {VM}/clone", {"newid": 501}),
        ],
        [
            "creating a clone of VM 500 with ID 501",
            "create linked clone of drive scsi0 (nas:500/base-500-disk-0.qcow2)",
            (
                "clone 500/base-500-disk-0.qcow2: images, vm-501-disk-0.qcow2, 501 to vm-501-disk-0.qcow2"
                " (base=../500/base-500-disk-0.qcow2)"
            ),
            (
                f"Formatting '/mnt/pve/nas/images/501/vm-501-disk-0.qcow2', {FORMATTING}"
                " backing_file=../500/base-500-disk-0.qcow2 backing_fmt=qcow2 lazy_refcounts=off refcount_bits=16"
            ),
            "TASK OK",
        ],
    ),
    "saved to disk": (
        [
            (f"POST {NODE}/qemu", {"vmid": 500, "memory": 64, "scsi0": "nas:1"}),
            (f"POST {VM}/status/start", {}),
            (f"POST {VM}/status/suspend", {"todisk": 1}),
        ],
        [
            (
                "Formatting '/mnt/pve/nas/images/500/vm-500-state-suspend-2026-01-15.raw', fmt=raw size=658505728"
                " preallocation=off"
            ),
            "State saved, quitting",
            "TASK OK",
        ],
    ),
    "a snapshot with the memory": (
        [
            (f"POST {NODE}/qemu", {"vmid": 500, "memory": 64, "ide2": "local-lvm:cloudinit"}),
            (f"POST {VM}/status/start", {}),
            (f"POST {VM}/snapshot", {"snapname": "now", "vmstate": 1}),
        ],
        [
            "Formatting '/var/lib/vz/images/500/vm-500-state-now.raw', fmt=raw size=658505728 preallocation=off",
            "saving VM state and RAM using storage 'local'",
            "0.00 B in 0s",
            "completed saving the VM state in 1s, saved 32.00 MiB",
            "TASK OK",
        ],
    ),
    "a start with a cloud-init drive": (
        [(f"POST {NODE}/qemu", {"vmid": 500, "ide2": "local-lvm:cloudinit"}), (f"POST {VM}/status/start", {})],
        ["generating cloud-init ISO", "TASK OK"],
    ),
}


@pytest.mark.parametrize(("steps", "log"), LOGS.values(), ids=LOGS)
async def test_what_tasks_log(api: Api, steps: list[tuple[str, dict[str, Any]]], log: list[str]) -> None:
    for request, params in steps:
        reply = await api.post(request.split()[1], **params)
        assert await api.finish_task(reply) == "OK"
    assert [line["t"] for line in (await api.log(reply.data)).data] == log


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_neighbors(api: Api, story: list[Step]) -> None:
    btrfs = Storage("bt", "btrfs", ("images", "rootdir"), config={"path": "/mnt/bt"})
    btrfs.spaces = {node: StorageSpace(100 * GIB, GIB) for node in api.cluster.world.nodes}
    api.cluster.world.storages["bt"] = btrfs
    for request, params, expected in story:
        assert await _outcome(api, request, params, expected) == expected, (request, params)


async def _outcome(api: Api, request: str, params: dict[str, Any], expected: Any) -> Any:
    method, path = request.split()
    send = {"GET": api.get, "POST": api.post, "PUT": api.put}.get(method)
    reply = await (api.delete(path) if send is None else send(path, **params))
    if reply.status == 400:
        ((name, text),) = reply.errors.items()
        return f"400 {name}: {text}"
    if reply.status != 200:
        return f"{reply.status} {reply.reason}"
    if str(reply.data).startswith("UPID:"):
        return f"task {await api.finish_task(reply)}"
    if isinstance(expected, dict):
        return {name: reply.data.get(name) for name in expected}
    return "ok" if expected == "ok" else reply.data
