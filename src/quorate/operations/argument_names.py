"""Other names and forms that callers give to arguments and choices: PVE's own, and common words for the same thing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from quorate.operations.registry import Operation

# Each word, and the arguments that it may mean. It counts where exactly one of them is still open.
_MEANINGS: Final = {
    word: tuple(names.split())
    for words, names in {
        "vm vm_id ct container guest_id vm_name source": "guest guests",
        "vmid": "guest guests",
        "guest": "guests add_guests",
        "guests": "guest add_guests",
        "vms vmids": "guest guests add_guests",
        "id": "guest guests vmid task job pool user host",
        "newid new_id new_vmid": "vmid",
        "target target_node destination to": "node",
        "node_name": "node",
        "ram mem": "memory",
        "cpus vcpus vcpu cpu_cores": "cores",
        "hostname new_name newname": "name",
        "name": "snapshot guest host pool storage volume script service",
        "snapname snapshot_name": "snapshot",
        "upid task_id": "task",
        "volid": "volume backup",
        "archive": "backup",
        "cmd": "command",
        "notes comment note": "description",
        "description note": "comment notes",
        "ostemplate": "template",
        "datastore storage_id": "storage",
        "targetstorage target_storage to_storage": "target_storage storage",
        "poolid pool_id": "pool",
        "userid username": "user",
        "user token holder": "holders",
        "role": "roles",
        "privs": "privileges",
        "autostart start_on_boot": "onboot",
        "retention prune_backups": "keep",
        "enabled": "enable",
        "enable": "enabled",
        "vlan_tag": "vlan",
        "tag": "vlan",
        "tags": "tag",
        "memory": "ram",
        "vmstate": "ram",
        "filename file": "path",
        "pos": "item",
        "port": "dport",
        "protocol": "proto",
        "lines": "log_lines",
        "period": "timeframe",
    }.items()
    for word in words.split()
}
_VALUES: Final = {
    word: choice
    for words, choice in {
        "lxc container": "ct",
        "qemu kvm": "vm",
        "mem ram": "memory",
        "memory": "mem",
        "grow extend expand enlarge": "resize",
        "restart": "reboot",
        "pause": "suspend",
    }.items()
    for word in words.split()
}
"""What callers write for one of the choices, where it is not a choice of its own."""
_OF: Final = {"guest": "guest", "vmid": "guest", "node": "node", "group": "group"}
"""Where `scope` and `of` name an object together: arguments that give both at once."""


_WHOLE_LINES: Final = ("ssh_keys", "volumes")
"""Lists whose entries may hold the separators of PVE."""


def with_known_names(operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under the names that the operation declares. What is unclear stays, and is refused later."""
    known = operation.arguments.__struct_fields__
    parts = operation.schema()["properties"]
    found = dict(given)
    for word in [name for name in given if name not in known]:
        meant = [name for name in _MEANINGS.get(word, ()) if name in known and name not in found]
        if len(meant) == 1:
            found[meant[0]] = found.pop(word)
        elif word in _OF and {"scope", "of"} <= {*known} and "of" not in found:
            kind = _OF[word]
            found |= {"of": found.pop(word), "scope": kind} if found.get("scope", kind) == kind else {}
    return {name: _fit(name, value, parts.get(name, {})) for name, value in found.items()}


def _fit(name: str, value: Any, schema: Mapping[str, Any]) -> Any:
    """A value in the form that its schema requires, if what was sent has only one interpretation."""
    if isinstance(value, int) and not isinstance(value, bool) and schema.get("type") == "string":
        return str(value)
    if not isinstance(value, str):
        return value
    if choices := schema.get("enum"):
        return _known_choice(value, choices)
    return _as_list(name, value, schema["items"]) or value if schema.get("type") == "array" else value


def _known_choice(value: str, choices: Sequence[Any]) -> Any:
    """The choice that was written in another case or number, or by another name."""
    if value in choices:
        return value
    word = value.casefold()
    words = (_VALUES.get(word, word), f"{word}s", word.removesuffix("s"))
    return next((one for one in choices if str(one).casefold() in words), value)


def _as_list(name: str, text: str, items: Mapping[str, Any]) -> list[str]:
    """One text where a list is expected: JSON, one entry, or several with the separators of PVE."""
    if text.startswith("["):
        try:
            return msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError:
            return []
    if name == "command":  # a program and its arguments: where to cut is for the caller to say
        return []
    if name in _WHOLE_LINES or "object" in {one.get("type") for one in items.get("anyOf", ())}:
        parts = text.splitlines()
    else:
        parts = re.split(r"[,;\n]", text.removeprefix("order=") if name == "boot" else text)
    return [part.strip() for part in parts if part.strip()]
