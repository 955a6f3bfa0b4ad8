"""Other names that callers give to arguments and choices: PVE's own, and common words for the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quorate.operations.registry import Operation

# Each word, and the arguments that it may mean. It counts where exactly one of them is still open.
_MEANINGS: Final = {
    word: tuple(names.split())
    for words, names in {
        "vm vm_id ct container guest_id vm_name source": "guest guests",
        "vmid": "guest guests",
        "guest": "guests",
        "guests": "guest",
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
        "targetstorage": "target_storage",
        "poolid pool_id": "pool",
        "userid username": "user",
        "autostart start_on_boot": "onboot",
        "vlan_tag": "vlan",
        "tag": "vlan",
        "tags": "tag",
        "memory": "ram",
        "vmstate": "ram",
        "filename file": "path",
        "pos": "item",
        "lines": "log_lines",
        "period": "timeframe",
    }.items()
    for word in words.split()
}
_VALUES: Final = {"lxc": "ct", "container": "ct", "qemu": "vm", "kvm": "vm"}
"""What callers write for one of the choices, where it is not a choice of its own."""
_OF: Final = {"guest": "guest", "vmid": "guest", "node": "node", "group": "group"}
"""Where `scope` and `of` name an object together: what gives both at once."""


def with_known_names(operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under the names that the operation declares. What is unclear stays, and is refused later."""
    known = operation.arguments.__struct_fields__
    found = dict(given)
    for word in [name for name in given if name not in known]:
        meant = [name for name in _MEANINGS.get(word, ()) if name in known and name not in found]
        if len(meant) == 1:
            found[meant[0]] = found.pop(word)
        elif word in _OF and {"scope", "of"} <= {*known} and "of" not in found:
            kind = _OF[word]
            found |= {"of": found.pop(word), "scope": kind} if found.get("scope", kind) == kind else {}
    return found | _known_choices(operation, found)


def _known_choices(operation: Operation, given: Mapping[str, Any]) -> dict[str, str]:
    """Choices that were written in another case, or as PVE calls them."""
    parts = operation.schema()["properties"]
    found: dict[str, str] = {}
    for name, value in given.items():
        choices = parts.get(name, {}).get("enum", ())
        if isinstance(value, str) and choices and value not in choices:
            word = _VALUES.get(value.lower(), value).casefold()
            found.update((name, choice) for choice in choices if str(choice).casefold() == word)
    return found
