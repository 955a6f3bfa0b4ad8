"""The world of the recorded backup server: what its clients had backed up between two sections."""

from __future__ import annotations

from pve_simulator.pbs.archives import Entry, Tree
from pve_simulator.pbs.datastores import Snapshot, StoredFile, container_snapshot, host_snapshot, vm_snapshot, with_key
from pve_simulator.pbs.server import BackupServer

OWNER = "admin@pbs!full"
CLIENT = "backup@pbs!client"
KEY = "dc:df:0f:57:eb:85:33:00:ac:e6:17:bc:6d:45:f6:17:0f:25:f7:9e:ea:03:8a:9b:8d:fd:cc:35:28:bb:a3:af"
ROOT_PASSWORD = "the password of root"
REMOTE_PORT = 8017
STARTED_AT = 1_741_000_000.0

_MTIME = 1_735_689_600
_VM_TIMES = (1735689600, 1735776000, 1736294400, 1736899200, 1738368000, 1739577600, 1740182400, 1740787200)
_CT_TIMES = (1735862400, 1736467200, 1739145600)


def recorded_server(**options: object) -> BackupServer:
    """The server as it was when the recording began: no users but root, no datastores, no tokens."""
    server = BackupServer(root_password=ROOT_PASSWORD, node="vm", **options)  # type: ignore[arg-type]
    server.access.tokens.clear()
    server.access.acl.clear()
    server.occupied_folders.add("/backup/full")
    return server


def back_up(server: BackupServer) -> None:
    """What clients sent before the section `groups`."""
    store = server.datastores["store1"]
    for number, time in enumerate(_VM_TIMES):
        store.add(vm_snapshot("100", time, _vm_config(number), {"drive-scsi0": 64 << 20}), owner=OWNER)
    damaged = vm_snapshot("666", 1736553600, "name: broken\n", {"drive-scsi0": 3 << 20})
    damaged.damaged = frozenset({"drive-scsi0.img.fidx"})
    store.add(damaged, owner=OWNER)
    for time in _CT_TIMES:
        store.add(container_snapshot("101", time, _CT_CONFIG, _files()), owner=OWNER)
    store.add(container_snapshot("101", 1740009600, _CT_CONFIG, _files(), metadata_mode=True), owner=OWNER)
    for time in (1735948800, 1736035200):
        store.add(host_snapshot("web1", time, {"etc": _etc(), "srv": Tree.of({"data": b"x" * 600_000})}), owner=OWNER)
    store.add(with_key(_host("secret"), KEY), owner=OWNER)
    store.add(with_key(_host("signed"), KEY, "sign-only"), owner=OWNER)
    store.add(host_snapshot("own1", 1736467200, {"etc": _etc()}), owner=CLIENT)
    for time in (1736208000, 1736294400):
        store.add(vm_snapshot("200", time, "name: prod\n", {"drive-scsi0": 4 << 20}), owner=OWNER, namespace="prod")
    store.add(container_snapshot("201", 1736380800, _CT_CONFIG, _files()), owner=OWNER, namespace="prod/web")

    for _, group in store.everything():
        for snapshot in group.in_order():
            server.tasks.record("backup", f"store1:{group.name}", group.owner, lines=(f"finished {snapshot.name}",))


def send_log(server: BackupServer) -> None:
    """The client log that was uploaded within the section `browse`."""
    snapshot = server.datastores["store1"].snapshot("", "vm", "100", _VM_TIMES[0])
    assert snapshot is not None
    snapshot.files.append(StoredFile("client.log.blob", 40, content=b"line one\nline two\n"))


def _host(name: str) -> Snapshot:
    return host_snapshot(name, 1736121600, {"etc": _etc()})


def _vm_config(number: int) -> str:
    disk = "scsi0: local:100/vm-100-disk-0.raw,size=64M\n#qmdump#map:scsi0:drive-scsi0:local:raw:\n"
    return f"boot: order=scsi0\ncores: 2\nmemory: 2048\nname: web-vm\n{disk}snap {number}\n"


_CT_CONFIG = "arch: amd64\nhostname: web-ct\nmemory: 512\nrootfs: local:101/vm-101-disk-0.raw,size=1G\n"


def _etc() -> Tree:
    return Tree.of({"hostname": "web1\n"}, _MTIME)


def _files() -> Tree:
    return Tree.of(
        {
            "etc/hostname": "web-ct"[:6],
            "etc/hosts": "127.0.0.1 localhost\n",
            "etc/stamp": "1\n\n",
            "home/anna/blob.bin": b"\0" * 300_000,
            "home/anna/brief äöü.txt": "Liebe Anna,\n",
            "var/pipe": Entry("fifo"),
            "var/hosts-link": Entry("symlink", b"../etc/hosts"),
        },
        _MTIME,
    )
