"""What a call of the API reaches, by its path and parameters alone."""

import pytest

from pve_schema.schema import NEWEST, OLDEST, facts
from quorate.pve.targets import find_targets, owner
from quorate.pve.wire import read


def things(method, path, version=NEWEST, /, **params):
    return {
        f"{target.kind} {target.id or target.node or target.pool or 'all'}"
        for target in reach(method, path, version, **params)
    }


def reach(method, path, version=NEWEST, /, **params):
    request = read(facts(version), method, path, params)
    assert request is not None
    return find_targets(request)


@pytest.mark.parametrize(
    ("volume", "vmid"),
    [
        ("local-lvm:vm-100-disk-0", 100),
        ("tank:subvol-203-disk-1", 203),
        ("local:100/vm-100-disk-0.qcow2", 100),
        ("local:100/base-100-disk-0.qcow2/9001/vm-9001-disk-0.qcow2", 9001),
        ("tank:base-9000-disk-0/vm-104-disk-0", 104),
        ("nas:backup/vzdump-lxc-203-2026_01_01-00_00_00.tar.zst", 203),
        ("pbs:backup/ct/203/2026-01-01T00:00:00Z", 203),
        ("/dev/pve/vm-100-disk-0", 100),
        ("local:iso/debian-13.1.0.iso", None),
        ("nas:32", None),
        ("fd00::1234/64", None),
        ("192.168.10.5/24", None),
        ("AA:BB:CC:DD:EE:FF", None),
        ("nas:100/vm-105-disk-0.qcow2", 100),
        ("nas:100/base-100-disk-0.raw/105/vm-105-disk-0.qcow2", 105),
    ],
)
def test_a_volume_names_its_owner(volume, vmid):
    assert owner(volume) == vmid


def test_a_path_to_a_guest_names_the_guest_and_not_its_node():
    assert things("POST", "/nodes/pve1/qemu/100/status/stop") == {"guest 100"}
    assert things("PUT", "/nodes/pve1/lxc/200/firewall/options", enable=1) == {"guest 200"}


def test_parameters_name_guests_nodes_storages_and_pools_by_their_format():
    assert things("POST", "/nodes/pve1/qemu/100/migrate", target="pve2", targetstorage="a:b") == {
        "guest 100", "node pve2", "storage a", "storage b",
    }  # fmt: skip
    assert things("PUT", "/pools", poolid="lab", vms="100, 101", storage="nas") == {
        "pool lab", "guest 100", "guest 101", "storage nas",
    }  # fmt: skip
    assert things(
        "POST", "/cluster/ha/rules", rule="r", type="node-affinity", resources="vm:100,ct:200", nodes="pve1:2"
    ) == {"guest 100", "guest 200", "node pve1"}
    assert things("POST", "/cluster/ha/resources", OLDEST, sid="100") == {"guest 100"}
    assert things("POST", "/cluster/replication", id="100-0", target="pve3", type="local") == {"guest 100", "node pve3"}


def test_disks_name_their_storage_and_the_guest_they_come_from():
    assert things("PUT", "/nodes/pve1/qemu/100/config", scsi1="nas:32", scsi2="tank:vm-103-disk-0,size=8G") == {
        "guest 100", "storage nas", "storage tank", "guest 103",
    }  # fmt: skip
    assert things("PUT", "/nodes/pve1/lxc/200/config", net0="name=eth0,hwaddr=AA:BB:CC:DD:EE:FF,ip6=fd00::1234/64") == {
        "guest 200"
    }
    assert things("PUT", "/nodes/pve1/qemu/100/config", description="like vm-103-disk-0") == {"guest 100"}


def test_what_is_only_copied_is_only_looked_into():
    clone = reach("POST", "/nodes/pve1/qemu/9000/clone", newid=120)
    levels = {target.id: (target.level, target.born) for target in clone if target.kind == "guest"}
    assert levels == {"9000": ("look_inside", False), "120": (None, True)}
    params = {"vmid": 120, "archive": "pbs:backup/vm/103/x", "scsi0": "nas:0,import-from=nas:104/vm-104-disk-0.raw"}
    levels = {
        target.id: (target.level, target.born)
        for target in reach("POST", "/nodes/pve1/qemu", **params)
        if target.kind == "guest"
    }
    assert levels == {"120": (None, True), "103": ("look_inside", False), "104": ("look_inside", False)}


def test_calls_for_a_whole_node_pool_or_cluster_reach_all_guests_there():
    assert things("POST", "/nodes/pve1/stopall") == {"node pve1", "guests pve1"}
    assert things("POST", "/nodes/pve1/stopall", vms="100") == {"node pve1", "guest 100"}
    assert things("POST", "/nodes/pve1/status", command="reboot") == {"node pve1", "guests pve1"}
    assert things("POST", "/cluster/bulk-action/guest/shutdown") == {"guests all"}
    assert things("POST", "/nodes/pve1/vzdump", pool="lab", storage="nas") >= {"guests pve1", "storage nas"}
    assert things("DELETE", "/nodes/pve1/storage/nas/prunebackups") == {"storage nas", "guests all"}
    assert things("PUT", "/access/acl", path="/", roles="Administrator", users="eve@pve") == {"guests all"}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_vmid_node_storage_and_pool_that_an_endpoint_takes_is_seen(version):
    """No parameter of such a format may slip through, whatever PVE adds."""
    samples = {
        "pve-vmid": "100",
        "pve-vmid-list": "100",
        "pve-node": "pve1",
        "pve-storage-id": "nas",
        "pve-poolid": "lab",
    }
    for endpoint in facts(version).endpoints():
        if endpoint.method == "GET":
            continue
        for name, spec in endpoint.parameters.items():
            kind, ignored = spec.get("format"), ("exclude", "clustername", "check-node", "migratedfrom")
            if not isinstance(kind, str) or kind not in samples or name in ignored:
                continue
            path = endpoint.template.replace("{node}", "n").replace("{vmid}", "999").replace("{storage}", "s")
            path = path.replace("{poolid}", "p").replace("{sid}", "vm:999")
            request = read(facts(version), endpoint.method, path, {name: samples[kind]})
            if request is None or name in request.match.values:
                continue
            assert samples[kind] in {target.id for target in find_targets(request)}, (endpoint, name)


def test_a_backup_is_of_all_guests_unless_it_lists_them():
    everyone = things("POST", "/cluster/backup", exclude="999", storage="nas")
    assert everyone == {"guests all", "storage nas"}
    assert things("POST", "/nodes/pve1/vzdump", storage="nas") >= {"guests pve1"}
    assert "guests pve1" not in things("POST", "/nodes/pve1/vzdump", vmid="100", **{"prune-backups": "keep-last=1"})
    (left,) = [target for target in reach("POST", "/nodes/pve1/vzdump", exclude=["100;101"]) if target.kind == "guests"]
    assert left.without == {"100", "101"}


def test_a_guest_that_cannot_be_made_out_may_be_any():
    assert things("POST", "/nodes/pve1/suspendall", vms="100,x") == {"node pve1", "guest 100", "guests all"}
    assert things("PUT", "/access/acl", path="/vms/x", roles="PVEVMAdmin", users="eve@pve") == {"guests all"}


@pytest.mark.parametrize("kind", ["pci", "usb", "dir"])
def test_a_device_mapping_reaches_the_nodes_that_it_names(kind):
    mapped = ["node=pve1,path=/srv/a,id=8086:1234", "path=/srv/b,node=pve3"]
    assert things("POST", f"/cluster/mapping/{kind}", id="shared", map=mapped) == {"node pve1", "node pve3"}
    assert things("PUT", f"/cluster/mapping/{kind}/shared", map=["node=pve2,path=/srv/a"]) == {"node pve2"}
