"""The directory indexes of the API, and methods with constant answers."""

from __future__ import annotations

from typing import Any

from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import LXC, QEMU, Call, Handler, route

_SUBDIR = "subdir"
_NAME = "name"

_INDEXES = {
    "/access": (_SUBDIR, "users groups roles acl domains openid tfa ticket password"),
    "/cluster": (
        _NAME,
        (
            "acme backup backup-info bulk-action ceph config firewall ha jobs log mapping metrics"
            " notifications nextid options replication resources status tasks sdn"
        ),
    ),
    "/access/openid": (_SUBDIR, "auth-url login"),
    "/cluster/acme": (_NAME, "account tos meta directories plugins challenge-schema"),
    "/cluster/ceph": (_NAME, "metadata status flags"),
    "/cluster/config": (_NAME, "nodes totem join qdevice apiversion"),
    "/cluster/firewall": (_NAME, "aliases rules options groups ipset macros refs"),
    "/cluster/jobs": (_SUBDIR, "schedule-analyze realm-sync"),
    "/cluster/mapping": (_NAME, "dir pci usb"),
    "/cluster/metrics": (_NAME, "server"),
    "/cluster/notifications": (_NAME, "endpoints matchers targets matcher-fields matcher-field-values"),
    "/cluster/notifications/endpoints": (_NAME, "gotify sendmail smtp webhook"),
    "/cluster/sdn": ("id", "vnets zones controllers ipams dns fabrics"),
    "/cluster/sdn/fabrics": (_SUBDIR, "fabric node all"),
    "/cluster/sdn/vnets/{vnet}/firewall": (_NAME, "options rules"),
    "/nodes/{node}/firewall": (_NAME, "rules options log"),
    "/nodes/{node}/{kind}/{vmid}/firewall": (_NAME, "rules aliases ipset refs options"),
    "/nodes/{node}/sdn": (_NAME, "fabrics vnets zones"),
    "/nodes/{node}/sdn/zones/{zone}": (_SUBDIR, "content bridges ip-vrf"),
    "/nodes/{node}/sdn/vnets/{vnet}": (_SUBDIR, "mac-vrf"),
    "/nodes/{node}": (
        _NAME,
        (
            "aplinfo apt capabilities ceph certificates config disks dns firewall hardware hosts journal lxc"
            " migrateall netstat network qemu query-oci-repo-tags query-url-metadata replication report rrd"
            " rrddata scan sdn services spiceshell startall status stopall storage subscription suspendall"
            " syslog tasks termproxy time version vncshell vzdump wakeonlan"
        ),
    ),
    "/nodes/{node}/tasks/{upid}": (_NAME, "log status"),
    "/nodes/{node}/storage/{storage}": (
        _SUBDIR,
        "content download-url file-restore import-metadata oci-registry-pull prunebackups rrd rrddata status upload",
    ),
    "/nodes/{node}/qemu/{vmid}": (
        _SUBDIR,
        (
            "config cloudinit pending status unlink vncproxy termproxy migrate resize move rrd rrddata"
            " monitor agent snapshot spiceproxy sendkey firewall mtunnel remote_migrate"
        ),
    ),
    "/nodes/{node}/qemu/{vmid}/status": (_SUBDIR, "current start stop reset shutdown suspend reboot"),
    "/nodes/{node}/qemu/{vmid}/agent": (
        _NAME,
        (
            "exec exec-status file-read file-write fsfreeze-freeze fsfreeze-status fsfreeze-thaw fstrim"
            " get-fsinfo get-host-name get-memory-block-info get-memory-blocks get-osinfo get-time get-timezone"
            " get-users get-vcpus info network-get-interfaces ping set-user-password shutdown suspend-disk"
            " suspend-hybrid suspend-ram"
        ),
    ),
    "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}": ("cmd", "rollback config"),
    "/nodes/{node}/lxc/{vmid}": (
        _SUBDIR,
        (
            "config pending status vncproxy termproxy vncwebsocket spiceproxy migrate clone rrd rrddata"
            " firewall snapshot resize interfaces"
        ),
    ),
    "/nodes/{node}/lxc/{vmid}/status": (_SUBDIR, "current start stop shutdown reboot migrate"),
    "/nodes/{node}/services/{service}": (_SUBDIR, "state start stop restart reload"),
    "/nodes/{node}/certificates": (_NAME, "acme custom info"),
    "/nodes/{node}/certificates/acme": (_NAME, "certificate"),
    "/nodes/{node}/apt": ("id", "changelog repositories update versions"),
    "/nodes/{node}/disks": (_NAME, "list initgpt smart lvm lvmthin directory wipedisk zfs"),
    "/nodes/{node}/hardware": ("type", "pci usb"),
    "/nodes/{node}/hardware/pci/{pci-id-or-mapping}": ("method", "mdev"),
    "/nodes/{node}/capabilities": (_NAME, "qemu"),
    "/nodes/{node}/capabilities/qemu": (_NAME, "cpu machines migration"),
    "/cluster/backup-info": (_SUBDIR, "not-backed-up"),
    "/nodes/{node}/scan": ("method", "cifs iscsi lvm nfs pbs zfs"),
    "/nodes/{node}/replication/{id}": (_NAME, "schedule_now log status"),
    "/cluster/qemu": (_NAME, "cpu-flags custom-cpu-models"),
    "/nodes/{node}/sdn/fabrics/{fabric}": (_SUBDIR, "routes neighbors interfaces"),
    "/cluster/bulk-action": (_NAME, "guest"),
    "/cluster/bulk-action/guest": (_NAME, "start shutdown migrate suspend"),
    "/cluster/notifications/matcher-fields": (_NAME, "type hostname job-id"),
    "/nodes/{node}/ceph": (
        _NAME,
        "cmd-safety cfg crush fs init log mds mgr mon osd pool restart rules start status stop",
    ),
    "/nodes/{node}/ceph/cfg": (_NAME, "raw db value"),
    "/nodes/{node}/ceph/osd/{osdid}": (_NAME, "metadata lv-info"),
    "/nodes/{node}/ceph/pool/{name}": (_NAME, "status"),
}

# PVE checks for the guest's configuration only here, not for the other indexes.
_OF_EXISTING_GUESTS = (f"{QEMU}/status", LXC, f"{LXC}/status")


def _index(key: str, names: str) -> Handler:
    def handler(call: Call) -> list[dict[str, Any]]:
        if call.endpoint.template in _OF_EXISTING_GUESTS:
            call.guest()
        return [{key: name} for name in names.split()]

    return handler


for _template, (_key, _names) in _INDEXES.items():
    route(f"GET {_template}")(_index(_key, _names))

_ANSWERS: dict[str, Any] = {
    "GET /access/ticket": None,  # only a target for browsers
    "PUT /access/users/{userid}/unlock-tfa": 0,  # whether there was a lock
    "GET /cluster/config/apiversion": "1",
    "GET /cluster/metrics/export": {"data": []},  # pvestatd keeps no metrics unless a client pulls them regularly
    "GET /nodes/{node}/capabilities/qemu/migration": {"has-dbus-vmstate": True},
    "GET /nodes/{node}/scan/iscsi": [],  # an unreachable portal has no targets
}

_CEPH = {
    "GET": "cfg/db cfg/raw cfg/value cmd-safety crush fs log mds mgr mon osd osd/{osdid}/metadata osd/{osdid}/lv-info"
    " pool pool/{name}/status rules status",
    "POST": "fs/{name} init mds/{name} mgr/{id} mon/{monid} osd osd/{osdid}/in osd/{osdid}/out osd/{osdid}/scrub pool"
    " restart start stop",
    "PUT": "pool/{name}",
    "DELETE": "fs/{name} mds/{name} mgr/{id} mon/{monid} osd/{osdid} pool/{name}",
}
_OF_CEPH = [f"{verb} /nodes/{{node}}/ceph/{path}" for verb, paths in _CEPH.items() for path in paths.split()]
_OF_CEPH += [f"GET /cluster/ceph/{path}" for path in ("metadata", "flags", "flags/{flag}")]
_OF_CEPH += [f"PUT /cluster/ceph/{path}" for path in ("flags", "flags/{flag}")]
_REFUSALS = {
    **dict.fromkeys(_OF_CEPH, "binary not installed: /usr/bin/ceph-mon"),
}


def _answer(data: Any) -> Handler:
    return lambda _call: data


def _refuse(text: str) -> Handler:
    def handler(_call: Call) -> None:
        raise failure(text)

    return handler


for _spec, _data in _ANSWERS.items():
    route(_spec)(_answer(_data))
for _spec, _text in _REFUSALS.items():
    route(_spec)(_refuse(_text))
