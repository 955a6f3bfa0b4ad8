"""Calls of the raw API: any method of the table, with parameters of its schema and values that the world has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from pve_schema.schema import Endpoint, Facts
from tests.oracle.names import Names

_METHODS: Final = {"GET": 4, "POST": 6, "PUT": 6, "DELETE": 1}
"""And how often each is drawn. DELETE is always refused below admin, so there is little to find."""
_LIKELY: Final = re.compile(
    r"delete|remove|force.*|vms|vmid|guests|exclude|all|pool|storage|target.*|disk|volume|cdrom|rootfs|unused\[n\]"
    r"|(?:scsi|ide|mp)\[n\]|resources|prune-backups|state|template|purge|destroy.*|archive|restore|import-from|map|path"
    r"|nodes?|newid|overwrite|stop.*|protected|keep|source|ostemplate|with-local-disks|restart|timeout|max.*|members"
    r"|allow-move|enabled?|tags|name|hostname|virtiofs\[n\]"
)
"""Parameters that decide what a call does; the others are drawn less often."""
_GRAVE: Final = re.compile(
    r"/nodes/{node}/(?:qemu|lxc)(?:/{vmid}/config)?|/nodes/{node}/(?:vzdump|\w+all)|/cluster/bulk-action/guest/\w+"
    r"|/cluster/backup(?:/{id})?"
)
_TRICKY: Final = re.compile(
    r"/nodes/{node}/(?:qemu|lxc)/{vmid}/(?:clone|move_\w+|migrate|resize|status/\w+|unlink|snapshot)"
    r"|/cluster/ha/.*|/storage(?:/{storage})?|/pools(?:/{poolid})?|/nodes/{node}/storage/{storage}/.*"
    r"|/nodes/{node}/(?:query-.*|scan/.*|replication/.*)|/cluster/(?:acme/.*|resources|tasks|replication.*|mapping/.*)"
)
_GUESTS: Final = re.compile(r"/nodes/{node}/(?:qemu|lxc)/{vmid}.*")
_TOGETHER: Final = {
    "/nodes/{node}/vzdump": ("vmid|vmid|all|pool|exclude", "storage", "remove|remove|mode|prune-backups"),
    "/nodes/{node}/qemu/{vmid}/config": (
        "delete|delete|cdrom|unused[n]|scsi[n]|ide[n]|template|tags|name|description",
    ),
    "/nodes/{node}/lxc/{vmid}/config": ("delete|delete|unused[n]|mp[n]|rootfs|template|tags|hostname|description",),
    "/cluster/backup": ("vmid|all|pool|exclude", "storage", "schedule"),
    "/nodes/{node}/qemu": ("scsi[n]|archive|ide[n]|virtio[n]", "storage"),
    "/nodes/{node}/lxc": ("ostemplate", "rootfs|storage", "restore|hostname"),
    "/nodes/{node}/qemu/{vmid}/move_disk": ("storage|target-vmid",),
    "/nodes/{node}/lxc/{vmid}/move_volume": ("storage|target-vmid",),
    "/cluster/ha/rules": ("nodes|affinity", "resources"),
    "/cluster/bulk-action/guest/migrate": ("vms", "target"),
    "/cluster/bulk-action/guest/start": ("vms",),
    "/cluster/bulk-action/guest/suspend": ("vms", "to-disk|vms"),
    "/nodes/{node}/suspendall": ("vms",),
    "/nodes/{node}/migrateall": ("vms", "target"),
    "/nodes/{node}/startall": ("vms", "force|vms"),
    "/storage": ("content", "prune-backups|path", "nodes"),
}
"""Parameters of which a call needs one each, or it seldom does anything."""


class ApiCalls:
    def __init__(self, facts: Facts, names: Names) -> None:
        self._names = names
        self._chance = names.chance
        self._draws = self._by_name()
        self._formats = self._by_format()
        self._endpoints = {
            method: [
                endpoint
                for endpoint in facts.endpoints()
                if endpoint.method == method and "rrd" not in endpoint.template
            ]
            for method in _METHODS
        }

    def arguments(self, *, reading: bool = False) -> dict[str, Any]:
        """What api_call takes."""
        method = "GET" if reading else self._chance.choices([*_METHODS], weights=[*_METHODS.values()])[0]
        where = self._chance.choice((_GRAVE, _GRAVE, _GRAVE, _GRAVE, _TRICKY, _TRICKY, _GUESTS, None))
        endpoints = [
            endpoint for endpoint in self._endpoints[method] if where is None or where.fullmatch(endpoint.template)
        ]
        endpoint = self._chance.choice(endpoints or self._endpoints[method])
        path, told = self._path(endpoint)
        params = {name: value for name, value in self._parameters(endpoint).items() if name not in told}
        self._use_own_keys(path, params)
        if params and self._names.often(0.25):
            name = self._chance.choice([*params])
            params[name] = self._names.misshapen(params[name])
        return {"method": method, "path": path, **({"params": params} if params else {})}

    def value(self, name: str, spec: Mapping[str, Any]) -> Any:
        drawn = self._value(name, spec)
        return self._names.misshapen(drawn) if self._names.often(0.1) else drawn

    # -- one call ------------------------------------------------------------------------------------------------------

    def _parameters(self, endpoint: Endpoint) -> dict[str, Any]:
        schema = endpoint.parameters
        chosen = [name for name, spec in schema.items() if not spec.get("optional")]
        for group in _TOGETHER.get(endpoint.template, ()):
            chosen += [name for name in [self._chance.choice(group.split("|"))] if self._names.often(0.9)]
        optional = [name for name, spec in schema.items() if spec.get("optional") and name != "digest"]
        likely = [name for name in optional if _LIKELY.fullmatch(name)]
        for _ in range(self._names.pick(1, 1, 1, 2, 2, 3) if optional else 0):
            chosen.append(self._chance.choice(likely if likely and self._names.often(0.85) else optional))
        return {
            name.replace("[n]", str(self._chance.randint(0, 3))): self._parameter(endpoint, name, schema[name])
            for name in dict.fromkeys(chosen)
            if name in schema
        }

    def _parameter(self, endpoint: Endpoint, name: str, spec: Mapping[str, Any]) -> Any:
        if name == "storage" and endpoint.template.endswith(("/vzdump", "/backup", "/backup/{id}")):
            return self._names.backup_storage()
        return self._value(name, spec)

    def _path(self, endpoint: Endpoint) -> tuple[str, set[str]]:
        """With guests on their own nodes, as a rule; and the names of what it tells."""
        names = self._names
        names.move_on()
        vmid = names.vmid("lxc" if "/lxc/" in endpoint.template else "qemu")
        if "{vmid}" in endpoint.template:
            names.move_on(names.node_of(vmid))

        def value(match: re.Match[str]) -> str:
            if match[1] == "vmid":
                return str(vmid)
            if match[1] == "node" and "{vmid}" in endpoint.template:
                return names.node_of(vmid)
            return str(self._value(match[1], endpoint.parameters.get(match[1], {})))

        return re.sub(r"{(\w+)}", value, endpoint.template), set(re.findall(r"{(\w+)}", endpoint.template))

    def _use_own_keys(self, path: str, params: dict[str, Any]) -> None:
        """What is taken from a guest is mostly what it has."""
        guest = re.search(r"/(?:qemu|lxc)/(\d+)/", path)
        for name in ("delete", "disk", "idlist", "volume"):
            if guest and name in params and self._names.often(0.7):
                own = partial(self._names.config_key, int(guest[1]))
                params[name] = self._names.listed(own) if name in ("delete", "idlist") else own()

    # -- one value -----------------------------------------------------------------------------------------------------

    def _value(self, name: str, spec: Mapping[str, Any]) -> Any:
        names, form, kind = self._names, spec.get("format"), spec.get("type")
        if draw := self._draws.get(name.removesuffix("[n]")):
            return draw()
        if "enum" in spec:
            return self._chance.choice(spec["enum"])
        if kind == "array":
            return [self._value(name, spec.get("items", {})) for _ in range(self._chance.randint(1, 2))]
        if isinstance(form, Mapping):
            return self._property_string(form)
        if isinstance(form, str) and (draw := self._formats.get(form)):
            return names.listed(draw) if form.endswith("-list") else draw()
        if kind == "boolean":
            return names.pick(0, 1, 0, 1, names.flag())
        if kind in ("integer", "number"):
            least = int(spec.get("minimum", 0))
            most = min(int(spec.get("maximum", least + 50)), least + 50)
            return names.pick(least, self._chance.randint(least, max(least, most)))
        return names.word()

    def drive(self) -> str:
        """Volumes of oneself and of others, in all the ways that PVE reads."""
        names = self._names
        volume = names.pick(names.disk_volume(), names.disk_volume(), names.file(), names.backup())
        first = names.pick(
            volume, volume, f"file={volume}", f"volume={volume}", f"{names.storage()}:4", "none", "none,media=cdrom",
            "cdrom", f"{names.storage()}:0,import-from={volume}", f"{names.storage()}:cloudinit", "/dev/sda", "/etc",
        )  # fmt: skip
        more = names.pick(
            "", "", ",size=2G", ",media=disk", ",media=cdrom", ",backup=0", f",file={names.disk_volume()}",
            f",import-from={names.disk_volume()}",
        )  # fmt: skip
        return f"{first}{more}"

    def _property_string(self, form: Mapping[str, Any]) -> str:
        keys = [key for key, spec in form.items() if not spec.get("optional") and "alias" not in spec]
        keys += [self._chance.choice([*form]) for _ in range(self._chance.randint(0, 2))]
        parts = []
        for key in keys:
            value = self._names.word() if "alias" in form[key] else self._value(key, form[key])
            bare = form[key].get("default_key") and self._names.often(0.5)
            parts.append(str(value) if bare else f"{key}={value}")
        return ",".join(parts)

    def _map(self) -> list[str]:
        node = self._names.node
        return [f"node={node()},path=/root", f"node={node()},id=1234:5678"][: self._names.pick(1, 1, 2)]

    def _by_name(self) -> dict[str, Callable[[], Any]]:
        names, drive = self._names, self.drive
        pick = names.pick
        vms = lambda: names.listed(names.vmid, 5)  # noqa: E731
        return {
            # -- guests
            "vmid": lambda: pick(names.vmid(), names.vmid(), names.free_vmid()), "newid": names.free_vmid,
            "target-vmid": names.vmid, "vms": vms, "guests": vms,
            "exclude": lambda: pick(999, names.vmid(), names.listed(names.vmid)),
            "resources": lambda: names.listed(names.sid), "sid": names.sid, "resource": names.sid,
            "name": names.word, "hostname": names.word, "tags": lambda: names.listed(names.tag),
            "template": lambda: pick(0, 1, "1", None), "memory": lambda: pick(512, "1024", "2048"),
            "boot": lambda: pick("order=scsi0", "order=scsi0;net0"), "snapname": names.snapshot,
            "delete": lambda: names.listed(names.config_key), "revert": lambda: names.listed(names.config_key, 1),
            # -- disks
            "disk": names.config_key, "idlist": lambda: names.listed(names.config_key), "cdrom": drive, "scsi": drive,
            "ide": drive, "sata": drive, "virtio": drive, "efidisk": drive, "tpmstate": drive, "rootfs": drive,
            "unused": names.disk_volume, "mp": lambda: f"{drive()},mp=/srv/{names.word()}",
            "archive": lambda: pick(names.backup(), names.backup(), names.volume()),
            "ostemplate": lambda: pick(names.file(), names.backup()), "source": names.volume, "volid": names.volume,
            "volume": lambda: pick(names.volume(), names.config_key()), "size": lambda: pick("+1G", "4G", "1G", 1),
            "virtiofs": lambda: pick("share", "dirid=share", names.word()), "map": self._map,
            "hostpci": lambda: pick("mapping=gpu", "0000:01:00.0"),
            "usb": lambda: pick("mapping=stick", "host=1234:5678"),
            "filename": lambda: pick("debian-13.1.0-amd64-netinst.iso", "new.iso", "vm-104-disk-9", "vm-301-disk-9"),
            "content": lambda: pick("iso", "images", "backup", "images,rootdir,backup,iso", "vztmpl"),
            # -- backups and jobs
            "prune-backups": lambda: pick(
                "keep-last=1", "keep-all=1", "keep-last=1,keep-daily=2", "", None, {"keep-last": 1}
            ),
            "remove": lambda: pick(0, 1, None, "", "0", False), "compress": lambda: pick("zstd", "0"),
            "mode": lambda: pick("snapshot", "stop", "suspend"), "starttime": lambda: "02:00",
            "schedule": lambda: pick("21:00", "*/15", "* *:*"), "rule": lambda: pick("near", "apart", "new"),
            "state": lambda: pick("started", "stopped", "disabled", "ignored", "enabled"),
            "id": lambda: pick(
                "nightly", "weekly", "jewels", "102-0", "311-0", "104-0", "share", "stick", "dns1", "influx", "new"
            ),
            # -- outside
            "url": names.url, "server": names.address, "directory": names.url, "portal": names.address,
            "reference": lambda: f"{names.address()}/library/x",
            # -- the rest
            "description": lambda: pick("a note", "delete: scsi0", "two\nlines"), "comment": names.word,
            "digest": lambda: "0" * 40, "upid": names.task, "timeout": lambda: pick(0, 1, 30),
            "command": lambda: pick(["true"], ["rm", "-rf", "/"], "uptime"),
            "service": lambda: pick("pvestatd", "chrony"),
            "path": lambda: pick("/", "/vms/301", "/etc/hostname", "/srv"), "pos": lambda: 0,
            "group": lambda: pick("web", "g1"), "cidr": lambda: pick("10.0.0.0/8", "192.168.10.9"),
            "iface": lambda: pick("vmbr9", "vmbr1", "net0"), "zone": lambda: pick("z1", "z2"),
            "vnet": lambda: pick("v1", "v2"),
            "subnet": lambda: pick("z1-10.7.0.0-24", "10.8.0.0/24"), "userid": names.user, "poolid": names.pool,
            "tokenid": lambda: pick("ci", "new"), "realm": lambda: pick("pve", "pam", "corp"),
        }  # fmt: skip

    def _by_format(self) -> dict[str, Callable[[], Any]]:
        names = self._names
        pick = names.pick
        return {
            "pve-vmid": names.vmid, "pve-vmid-list": names.vmid, "pve-node": names.node, "pve-node-list": names.node,
            "pve-storage-id": names.storage, "pve-storage-id-list": names.storage, "pve-poolid": names.pool,
            "pve-volume-id": names.volume, "pve-configid-list": names.config_key, "pve-tag-list": names.tag,
            "pve-ha-resource-id": names.sid, "pve-ha-resource-or-vm-id": names.sid,
            "pve-ha-resource-id-list": names.sid,
            "pve-ha-node-list": lambda: f"{names.node()}{pick('', ':2')}", "pve-userid": names.user,
            "storage-pair-list": lambda: pick("1", names.storage(), f"{names.storage()}:{names.storage()}"),
            "pve-iface": lambda: pick("vmbr9", "vmbr1"), "pve-storage-server": names.address, "address": names.address,
            "prune-backups": lambda: "keep-last=1", "pve-calendar-event": lambda: "21:00", "CIDR": lambda: "10.0.0.0/8",
            "pve-groupid": lambda: pick("admins", "family"), "pve-roleid": lambda: pick("Helper", "PVEAdmin"),
            "pve-priv-list": lambda: "VM.Audit", "ip": lambda: "10.0.0.1", "pve-realm": lambda: pick("pve", "corp"),
            "pve-storage-content-list": lambda: pick("iso", "images", "backup", "rootdir"),
        }  # fmt: skip
