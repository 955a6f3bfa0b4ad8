"""solomonneas' rows."""

from pve_simulator.world import World
from tests.rigs.compat_session import Done, Row
from tests.surfaces.compat.rows import checks, setups
from tests.surfaces.compat.rows.brynnjocelyn import ISO, KEY, TEMPLATE

SURE = {"confirm": True, "destructive": True}


def on(path: str):
    return {"vmid": 102, "path": path, "confirm": True}


def two_smoke_guests(world: World) -> None:
    world.guests[107].config["name"] = "mcp-smoke-1"
    world.guests[206].config["hostname"] = "mcp-smoke-2"
    world.access.pools["lab"].vms |= {107, 206}
    world.access.invalidate_cache()
    for vmid in (107, 206):
        world.guests[vmid].touch()


def smoke_guests_are_gone(done: Done) -> None:
    assert set(done.runs_before) - set(done.world.guests) == {107, 206}


ROWS = [
    Row("proxmox_start_resource", {"vmid": 206, "confirm": True}, checks.is_running),
    Row("proxmox_stop_resource", {"vmid": 204, "confirm": True, "timeoutSeconds": 40}, checks.is_stopped),
    Row("proxmox_reboot_resource", {"vmid": 105, "confirm": True}, checks.was_rebooted),
    Row(
        "proxmox_snapshot_resource",
        {"vmid": 107, "snapname": "before", "description": "as it was", "confirm": True},
        checks.has_snapshot,
    ),
    Row(
        "proxmox_rollback_snapshot",
        {"vmid": 108, "snapname": "configured", "start": True, **SURE},
        checks.both(checks.is_rolled_back, checks.is_running),
        prepare=setups.changed_since(108, "configured"),
    ),
    Row("proxmox_run_backup", {"vmid": 204, "storage": "nas", "mode": "stop", "confirm": True}, checks.is_backed_up),
    Row(
        "proxmox_create_container",
        {
            "vmid": 330,
            "hostname": "ct330",
            "ostemplate": TEMPLATE,
            "node": "pve2",
            "storage": "tank",
            "memory": 1024,
            "cores": 2,
            "rootfs_size": "10",
            "net": "name=eth0,bridge=vmbr0,ip=dhcp",
            "start": True,
            "pool": "lab",
            "onboot": True,
            "unprivileged": True,
            "protection": True,
            "features": "nesting=1",
            "description": "a try",
            "tags": "lab;try",
            "password": "long-enough",
            "ssh_public_keys": KEY,
            "confirm": True,
        },
        checks.both(
            checks.is_made(
                "lxc",
                hostname="ct330",
                memory=1024,
                cores=2,
                rootfs=checks.holds("tank:", "size=10G"),
                net0=checks.holds("name=eth0", "bridge=vmbr0", "ip=dhcp"),
                onboot=1,
                unprivileged=1,
                protection=1,
                features="nesting=1",
                tags="lab;try",
            ),
            checks.runs_in_pool,
        ),
    ),
    Row(
        "proxmox_create_vm",
        {
            "vmid": 331,
            "name": "vm331",
            "node": "pve1",
            "memory": 2048,
            "cores": 2,
            "iso": ISO,
            "disk_size": "12G",
            "storage": "local-lvm",
            "net": "virtio,bridge=vmbr0",
            "start": True,
            "pool": "lab",
            "onboot": True,
            "protection": True,
            "agent": True,
            "bios": "ovmf",
            "machine": "q35",
            "cpu": "host",
            "sockets": 1,
            "description": "a try",
            "tags": "lab;try",
            "ciuser": "me",
            "cipassword": "long-enough",
            "sshkeys": KEY,
            "ipconfig0": "ip=10.9.0.7/24,gw=10.9.0.1",
            "nameserver": "1.1.1.1",
            "searchdomain": "home.lan",
            "scsihw": "virtio-scsi-pci",
            "boot": "order=scsi0",
            "confirm": True,
        },
        checks.both(
            checks.is_made(
                "qemu",
                name="vm331",
                memory="2048",
                cores=2,
                scsi0=checks.holds("local-lvm:", "size=12G"),
                net0=checks.holds("bridge=vmbr0"),
                onboot=1,
                protection=1,
                bios="ovmf",
                machine=checks.holds("q35"),
                cpu=checks.holds("host"),
                tags="lab;try",
                ciuser="me",
                ipconfig0="ip=10.9.0.7/24,gw=10.9.0.1",
                nameserver="1.1.1.1",
                searchdomain="home.lan",
                scsihw="virtio-scsi-pci",
                boot="order=scsi0",
                efidisk0=checks.holds("local-lvm:"),
            ),
            checks.runs_in_pool,
        ),
    ),
    Row(
        "proxmox_clone_resource",
        {
            "source_vmid": 108,
            "new_vmid": 332,
            "name": "vm332",
            "full": True,
            "storage": "tank",
            "target_node": "pve1",
            "pool": "lab",
            "snapname": "clean",
            "description": "from clean",
            "confirm": True,
        },
        checks.is_cloned("qemu", source="source_vmid", new="new_vmid", name="vm332", scsi0=checks.holds("tank:")),
    ),
    Row("proxmox_destroy_resource", {"vmid": 205, "purge": True, "force": True, **SURE}, checks.is_gone),
    Row(
        "proxmox_cleanup_smoke_resources",
        {"pool": "lab", "name_prefix": "mcp-smoke-", "force": True, "dry_run": False, **SURE},
        smoke_guests_are_gone,
        prepare=two_smoke_guests,
    ),
    Row("proxmox_delete_snapshot", {"vmid": 203, "snapname": "pre-migration", **SURE}, checks.lacks_snapshot),
    Row("proxmox_force_stop_resource", {"vmid": 104, **SURE}, checks.is_stopped),
]
