"""Advice in the words of the server whose tools are served: its tools and arguments, never ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quorate.hints import OMITTED, ArgumentHint, CalledTool, Hint, Naming, ToolHint, resolve
from quorate.pve.lookup import Resource
from quorate.surfaces.compat.declaration import System, Tool

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "guest": ("vmid",),
    "task": ("upid",),
    "pool": ("poolid",),
    "vmid": ("vmid", "new_vmid", "newid"),
    "host": ("hostname",),
    "device": ("device_id",),
    "service": ("service_name",),
    "backup": ("backup_id", "archive", "volid"),
    "snapshot": ("snapname",),
    "template": ("ostemplate",),
    "content": ("contentType",),
    "user": ("ciuser",),
    "ssh_keys": ("ssh_public_keys", "sshkeys"),
    "target_storage": ("storage",),
}
"""Our name for an argument -> what other servers call it. Names that are the same everywhere are not listed."""

INSTEAD: Mapping[str, str] = {"task_wait": "task_get", "node_list": "cluster_status", "volume_list": "backup_list"}
"""An operation that serves where a system has no tool for the one in a hint."""

_TYPES = {"vm": "qemu", "vms": "qemu", "qemu": "qemu", "lxc": "lxc", "container": "lxc", "containers": "lxc"}
"""Words in the name of a tool for one type of guest."""
_FOR_BOTH = {"type", "type_", "vm_type"}
"""Arguments by which a tool takes either type, whatever its name says."""


class AdviceTranslator:
    """Names the tools and arguments in hints as one system does."""

    def __init__(self, system: System) -> None:
        self._arguments = system.arguments
        self._tools = [(tool, call) for tool in system.tools.values() for call in tool.native_calls]

    def translate(self, facts: Mapping[str, Any], tool: Tool, guest: Resource | None = None) -> dict[str, Any]:
        """An answer with its advice in this server's words; advice that nobody can follow here is left out."""
        translated: dict[str, Any] = resolve(facts, self.naming(tool, guest))
        return translated

    def naming(self, tool: Tool | None = None, guest: Resource | None = None) -> Naming:
        """How hints are written for the caller of `tool`, which was about this guest."""

        def name(hint: Hint) -> str | None:
            if isinstance(hint, ToolHint):
                return self._name_call(hint, tool, guest)
            if tool is None:
                return str(hint)
            return tool.name if isinstance(hint, CalledTool) else self._name_argument(hint, tool)

        return name

    def _name_call(self, hint: ToolHint, tool: Tool | None, guest: Resource | None) -> str | None:
        """The call that does the same here, or several that might; never one for the other type of guest."""
        kind = guest.type if guest else _type_of(tool) if tool else None
        known = [
            (candidate, native)
            for candidate, native in self._tools
            if native.tool == hint.tool
            and kind in (None, _type_of(candidate) or kind)
            and (hint.arguments or tool is None or candidate.name != tool.name)
        ]
        arguments = hint.spelled_arguments
        fitting = [(candidate, native) for candidate, native in known if native.arguments.items() <= arguments.items()]
        # A list of VMs shows fewer than all guests, but more than nothing.
        fitting = fitting or [
            (candidate, native) for candidate, native in known if not candidate.changes and not arguments
        ]
        if not fitting:
            instead = INSTEAD.get(hint.tool)
            return self._name_call(ToolHint(instead, hint.arguments), tool, guest) if instead else None
        most = max(len(native.arguments) for _, native in fitting)
        # Some tools need the node of a guest, which ours find.
        where = (
            {"node": guest.node}
            if guest and arguments.get("guest") == str(guest.vmid) and "node" not in arguments
            else {}
        )
        calls = [
            self._spell_call(
                candidate, where, {name: value for name, value in arguments.items() if name not in native.arguments}
            )
            for candidate, native in fitting
            if len(native.arguments) == most
        ]
        return " or ".join(dict.fromkeys(calls))

    def _spell_call(self, tool: Tool, where: Mapping[str, str], fixed: Mapping[str, str]) -> str:
        if any(parameter.required and parameter.name in where for parameter in tool.accepted):
            fixed = {**where, **fixed}
        parts = (f"{theirs}={value}" for name, value in fixed.items() if (theirs := self._find_argument(tool, name)))
        return " ".join([tool.name, *parts])

    def _name_argument(self, hint: ArgumentHint, tool: Tool) -> str | None:
        theirs = self._find_argument(tool, hint.name)
        if theirs is None or (hint.value is OMITTED and not self._is_optional(tool, hint.name)):
            return None
        return hint.spell(theirs)

    def _find_argument(self, tool: Tool, name: str) -> str | None:
        return next(self._spellings(tool, name), None)

    def _spellings(self, tool: Tool, name: str) -> Iterator[str]:
        own = self._arguments.get(name)
        names = (own,) if own else (name, *ARGUMENTS.get(name, ()))
        return (name for name in names if name in tool.spellings)

    def _is_optional(self, tool: Tool, name: str) -> bool:
        names = set(self._spellings(tool, name)) - set(tool.needs)
        return any(names & set(parameter.spellings) and not parameter.required for parameter in tool.accepted)


def _type_of(tool: Tool) -> str | None:
    """qemu or lxc if the tool is for one type of guest only."""
    if _FOR_BOTH & set(tool.spellings):
        return None
    return next((_TYPES[word] for word in re.split("[-_]", tool.name) if word in _TYPES), None)
