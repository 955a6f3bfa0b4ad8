"""Fuzzed requests: plausible and absurd values for every parameter of every endpoint."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pve_schema.schema import Endpoint

# Values that pass the first checks, by parameter name.
_PLAUSIBLE: dict[str, tuple[Any, ...]] = {
    "node": ("pve1", "pve1", "pve2", "localhost", "nope"),
    "target": ("pve2", "pve1", "nope", "local"),
    "vmid": (102, 108, 109, 110, 200, 201, 204, 999),
    "newid": (300, 301, 102),
    "storage": ("local", "local-lvm", "nas", "tank", "pbs", "nope"),
    "target_storage": ("local-lvm", "nas"),
    "targetstorage": ("local-lvm", "1", "nope"),
    "volume": ("local:iso/nope.iso", "local-lvm:vm-108-disk-0", "nas:backup/vzdump-qemu-1.vma.zst", "x", "nope:y"),
    "volid": ("local-lvm:vm-108-disk-0", "nope:y"),
    "archive": ("nas:backup/nope.vma.zst", "local:iso/x.iso", "x"),
    "ostemplate": ("local:vztmpl/nope.tar.zst", "local:iso/x.iso", "x"),
    "disk": ("scsi0", "rootfs", "scsi9", "/dev/sda", "mp0"),
    "size": ("+1G", "1G", "1T", "-1G", "0", "1024"),
    "filename": ("vm-108-disk-7", "x.iso", "../../etc/passwd", "vm-108-disk-9.qcow2"),
    "snapname": ("snap1", "current", "before-upgrade", "nope"),
    "url": ("https://example.org/x.iso", "http://127.0.0.1:1/x", "ftp://x"),
    "userid": ("root@pam", "nobody@pve", "x@nope"),
    "tokenid": ("simulator", "nope", "t1"),
    "roleid": ("PVEAuditor", "Own", "nope"),
    "roles": ("PVEAuditor", "NoAccess,PVEAdmin", "nope"),
    "groupid": ("ops", "nope"),
    "groups": ("ops", "nope"),
    "realm": ("pve", "pam", "nope"),
    "path": ("/", "/vms/102", "/nope", "/storage/local"),
    "poolid": ("production", "lab", "nope", "a/b/c"),
    "upid": ("UPID:pve1:00000001:00000001:60000000:qmstart:100:root@pam:", "UPID:x", "x"),
    "command": ("start", "reboot", "ls -l", "info status"),
    "pid": (1, 99999),
    "file": ("/etc/hostname", "/nope", ""),
    "content": ("iso", "vztmpl", "images", "backup", "text\nwith lines"),
    "iface": ("vmbr0", "vmbr7", "eno1", "nope"),
    "sid": ("vm:101", "ct:200", "vm:999", "x"),
    "group": ("g1", "nope"),
    "rule": ("r1", "nope"),
    "name": ("a1", "mgmt", "nope"),
    "cidr": ("10.0.0.0/8", "10.1.1.1", "x"),
    "pos": (0, 9, 1000),
    "zone": ("z1", "nope"),
    "vnet": ("v1", "nope"),
    "id": ("102-0", "j1", "nope"),
    "service": ("pveproxy", "sshd", "nope"),
    "schedule": ("02:00", "*/15", "sometimes"),
    "timeframe": ("hour", "day", "year"),
    "net0": ("virtio,bridge=vmbr0", "name=eth0,bridge=vmbr0", "virtio,bridge=nope", ",,="),
    "scsi0": ("local-lvm:8", "none,media=cdrom", "nope:8", "local-lvm:vm-108-disk-0", "local-lvm:0,import-from=x"),
    "rootfs": ("local-lvm:8", "nope:1", "/dev/x"),
    "boot": ("order=scsi0;net0", "order=nope0", "cdn"),
    "delete": ("scsi0", "net0", "nope", "memory,cores", ""),
    "revert": ("memory", "nope"),
    "tags": ("a;b", "B,a", "%%"),
    "digest": ("0" * 40, "x"),
    "privs": ("VM.Audit", "VM.Nope", ""),
    "nodes": ("pve1", "pve1,pve2", "nope"),
    "vms": ("102,108", "999"),
    "resources": ("vm:101,ct:200", "x"),
    "features": ("nesting=1", "x=y"),
    "prune-backups": ("keep-last=1", "keep-all=1", "x=y"),
}

_ABSURD: tuple[Any, ...] = (
    "", " ", "0", "-1", "1e9", "NaN", "null", "None", "true", "[]", "{}", "a" * 300, "ä€😀", "\x00", "a\nb", "a,b;c d",
    "../..", "%2e%2e", "'; --", "=", "key=value", "key=", "=value", "99999999999999999999", "0x10", "1.5", ":", "::",
    "local:", ":x", "@", "!", "root@pam!x",
)  # fmt: skip

_ODD_JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e300, 10**25, [], {}, [[]], [1, "a", None], {"a": 1}, {"a": {"b": []}}, "", "text",
)  # fmt: skip

_NUMBERED = {"[n]": ("0", "1", "30", "999")}


def path_of(endpoint: Endpoint, chance: random.Random) -> tuple[str, dict[str, str]]:
    """A concrete path of the endpoint, and the values in it."""
    segments, values = [], {}
    for segment in endpoint.template.split("/"):
        if not segment.startswith("{"):
            segments.append(segment)
            continue
        name = segment[1:-1]
        value = str(_value(name, endpoint.parameters.get(name, {}), chance, absurd=0.1))
        values[name] = value.replace("/", "_") if name not in ("volume", "cidr") else value
        segments.append(values[name] or "_")
    return "/".join(segments), values


def parameters_of(endpoint: Endpoint, values: Mapping[str, str], chance: random.Random) -> dict[str, Any]:
    """Parameters besides those of the path. Most that the schema would refuse are dropped again."""
    chosen: dict[str, Any] = {}
    for name, schema in endpoint.parameters.items():
        if name in values or chance.random() > (0.12 if schema.get("optional") else 0.95):
            continue
        spelled = name.replace("[n]", chance.choice(_NUMBERED["[n]"])) if name.endswith("[n]") else name
        chosen[spelled] = _value(spelled, schema, chance, absurd=0.15)
    if chance.random() < 0.75:
        for name in endpoint.check({**values, **chosen}):
            if endpoint.parameters.get(name, {"optional": 1}).get("optional"):
                chosen.pop(name, None)
    return chosen


def odd_json_of(endpoint: Endpoint, values: Mapping[str, str], chance: random.Random) -> dict[str, Any]:
    """Parameters of any JSON type, most of them unrelated to what the endpoint expects."""
    plausible = parameters_of(endpoint, values, chance)
    names = [name for name in endpoint.parameters if name not in values and not name.endswith("[n]")]
    for name in chance.sample(names, min(2, len(names))):
        plausible[name] = chance.choice(_ODD_JSON)
    return plausible


def _value(name: str, schema: Mapping[str, Any], chance: random.Random, *, absurd: float) -> Any:
    if chance.random() < absurd:
        return chance.choice(_ABSURD)
    if "enum" in schema and name not in ("node",):
        return chance.choice(schema["enum"])
    if name in _PLAUSIBLE:
        return chance.choice(_PLAUSIBLE[name])
    match schema.get("type"):
        case "boolean":
            return chance.choice((0, 1))
        case "integer" | "number":
            low = int(schema.get("minimum", 0))
            return chance.choice((low, low + 1, int(schema.get("maximum", low + 100))))
        case "array":
            return [chance.choice(("a", "b", "x=y")) for _ in range(chance.randint(1, 3))]
    return chance.choice(("x", "abc", "1", "a-b", str(schema.get("default", "word"))))
