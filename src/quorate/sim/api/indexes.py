"""The directories of the API: each lists the names below it."""

from __future__ import annotations

from typing import Any

from quorate.sim.guests import Kind
from quorate.sim.routing import Call, Handler, route

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
    "/nodes/{node}/qemu/{vmid}/firewall": (_NAME, "rules aliases ipset refs options"),
    "/nodes/{node}/lxc/{vmid}/firewall": (_NAME, "rules aliases ipset refs options"),
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
    "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}": ("cmd", "rollback config"),
    "/nodes/{node}/lxc/{vmid}": (
        _SUBDIR,
        (
            "config pending status vncproxy termproxy vncwebsocket spiceproxy migrate clone rrd rrddata"
            " firewall snapshot resize interfaces"
        ),
    ),
    "/nodes/{node}/lxc/{vmid}/status": (_SUBDIR, "current start stop shutdown reboot migrate"),
    "/nodes/{node}/lxc/{vmid}/snapshot/{snapname}": ("cmd", "rollback config"),
}

# PVE looks for the guest's configuration only here, not for the other directories.
_OF_EXISTING_GUESTS: dict[str, Kind] = {
    "/nodes/{node}/qemu/{vmid}/status": "qemu",
    "/nodes/{node}/lxc/{vmid}/status": "lxc",
}


def _index(key: str, names: str) -> Handler:
    def handler(call: Call) -> list[dict[str, Any]]:
        guest_kind = _OF_EXISTING_GUESTS.get(call.endpoint.template)
        if guest_kind is not None:
            call.guest(guest_kind)
        return [{key: name} for name in names.split()]

    return handler


for _template, (_key, _names) in _INDEXES.items():
    route(f"GET {_template}")(_index(_key, _names))
