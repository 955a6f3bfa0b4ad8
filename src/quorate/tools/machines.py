"""Files and services of a machine, whether it is a guest, a host or a node."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import unicodedata
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from quorate.command_rules import CommandRules
from quorate.hints import Advice, ToolHint
from quorate.homelab.machines import Machine, is_node
from quorate.homelab.services.installations import machine_ref
from quorate.inside import files, posix_files, services
from quorate.inside.entries import Entry, guest_path
from quorate.inside.service_state import Service
from quorate.inside.transport import Transport, require_mode, require_owner, require_service
from quorate.inside.transport_selection import select_transport
from quorate.operations.plan import Action, ActionResult, Call, Perform, StepContext, Target
from quorate.operations.registry import Risk
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster
from quorate.pve.connection import Clock
from quorate.tools.commands import CommandTarget, needs_of
from quorate.units import count_of, moment, size


async def guest_machine(pve: Cluster, ref: int | str, way: str | None = None) -> Machine:
    """A guest of the operation's cluster, with a transport into it."""
    guest = await pve.guest(ref)
    transport = await select_transport(pve, guest, prefer=way)
    return Machine(guest.row.kind, str(guest.row.name or guest.vmid), transport, None, guest)


def machine_label(machine: Machine) -> str:
    """The name of a machine in answers: `host nas`, `node pve1`, `vm 102 docker01`."""
    return machine.guest.label if machine.guest is not None else str(machine)


def command_target(machine: Machine) -> CommandTarget:
    cluster = machine.where.name if machine.where else None
    return CommandTarget(machine.transport, machine_target(machine), machine_ref(machine), "host", cluster)


def machine_target(machine: Machine) -> Target:
    """Rules and approvals see a guest as a guest, whichever transport a command uses."""
    if machine.guest is not None:
        return Target.of_guest(machine.guest)
    return Target(machine.kind, machine.name, node=machine.name if machine.kind == "node" else "")


def machine_needs(machine: Machine, *, writes: bool = False) -> tuple[Call, ...]:
    return needs_of(machine.guest, machine.transport, writes=writes) if machine.guest is not None else ()


def machine_risk(machine: Machine) -> Risk | None:
    """Root on a node may do anything to every guest of its cluster, past all privilege checks of Proxmox VE."""
    return Risk.DESTROY if machine.kind == "node" or machine.may_be_node else None


def machine_action(
    machine: Machine,
    summary: str,
    line: str,
    perform: Perform,
    *,
    writes: bool = False,
    opens: bool = False,
    input: str = "",
) -> Action:
    """A step on a machine, judged by the rules of the cluster that it belongs to, if any."""
    risk = machine_risk(machine)
    return replace(
        machine_read(machine, summary, line, perform),
        needs=machine_needs(machine, writes=writes),
        risk=risk,
        on_a_node=partial(is_node, machine) if machine.kind == "host" and risk is None else None,
        opens=opens,
        input=input,
    )


def machine_read(machine: Machine, summary: str, line: str, perform: Perform) -> Action:
    """A step that changes nothing on the machine, which may therefore be a node."""
    return Action(summary, line, perform, machine_target(machine), machine_needs(machine), machine.where)


READ_AT_ONCE = 1024 * 1024
MOST_WRITTEN = 16 * 1024 * 1024
LONGEST_SHOWN = 8000
"""The most bytes of a file that are shown for approval; of a longer one only the digest is."""
COLUMNS = ("name", "type", "size", "mode", "owner", "group", "modified", "name_base64")

Encoding = Literal["text", "base64"]


async def read_file(
    transport: Transport, path: str, *, offset: int, limit: int, encoding: Encoding | None = None
) -> dict[str, Any]:
    """A file or a part of it; as text unless it is binary."""
    path = guest_path(path, transport.system)
    file = await files.require_readable(transport, path)
    data = await transport.read_file(path, offset=offset, limit=limit)
    part = _Part(data, offset, cut=offset + len(data) < file.size)
    as_text = part.is_text if encoding is None else encoding == "text"
    shown = part.text if as_text else base64.b64encode(data).decode()
    start, end = part.text_bounds if as_text else (offset, offset + len(data))
    # Files that the kernel generates while they are read report no size.
    more = end < file.size or (file.size == 0 and len(data) == limit)
    return {
        "path": path,
        "size": max(file.size, offset + len(data)),
        **({"offset": start} if start else {}),
        "bytes": end - start,
        "content" if as_text else "base64": shown,
        **({"note": part.remark} if as_text and part.remark else {}),
        **(
            {"next": Advice(f"{{offset}} continues; {size(max(file.size - end, 1))} are left", offset=end)}
            if more
            else {}
        ),
    }


async def list_folder(transport: Transport, path: str) -> tuple[list[Entry], str]:
    """The entries of a folder by name, and a remark if there are more."""
    listing = await files.list_folder(transport, guest_path(path, transport.system))
    entries = sorted(listing.entries, key=lambda entry: entry.name)
    cut = (
        f"The folder has more entries than the {len(entries)} that were read, in no particular order"
        if listing.cut
        else ""
    )
    return entries, cut


@dataclass(frozen=True, slots=True)
class FileWrite:
    """A file to write: replaced atomically, or appended to."""

    path: str
    data: bytes
    append: bool
    parents: bool
    mode: str | None
    owner: str | None


def write_action(rules: CommandRules, machine: Machine, write: FileWrite) -> Action:
    transport, data, append = machine.transport, write.data, write.append
    path = guest_path(write.path, transport.system)
    if write.path.endswith(("/", "\\") if transport.system == "windows" else "/"):
        raise BadArgument(f"{write.path!r} names a folder", next_step="Give the path of the file")
    mode = None if write.mode is None else require_mode(write.mode)
    owner = None if write.owner is None else require_owner(write.owner)
    if objection := rules.write_objection(path):
        raise objection

    async def perform(_: StepContext) -> ActionResult:
        if rules and transport.system != "windows":
            behind = await posix_files.real_path(transport, path)
            if refused := rules.write_objection(behind):
                raise refused
        written = await files.write_atomically(
            transport, path, data, parents=write.parents, append=append, owner=owner, mode=mode
        )
        return ActionResult(
            {"path": path, "bytes": len(data), **_replaced_facts(written.old, written.path, path, append=append)}
        )

    verb = "Append" if append else "Write"
    ownership = "".join(f" {name}={value}" for name, value in (("mode", mode), ("owner", owner)) if value)
    return machine_action(
        machine,
        f"{verb} {count_of(len(data), 'byte')} to {path} on {machine_label(machine)}",
        f"{transport.description}: {verb.lower()} {count_of(len(data), 'byte')} to {path}{ownership}",
        perform,
        writes=True,
        opens=not rules.allows_write(path),
        input=_describe(data) if machine.kind in ("node", "host") else "",
    )


def _describe(data: bytes) -> str:
    """The content as shown for approval: readable text as it is, anything else by its digest."""
    part = _Part(data, 0, cut=False)
    if part.is_text and len(data) <= LONGEST_SHOWN:
        return f"content={json.dumps(part.text, ensure_ascii=False)}"
    return f"content=sha256:{hashlib.sha256(data).hexdigest()}"


class _Part:
    """A piece of a file. Where it begins or ends inside a character, that character is left to the next piece."""

    def __init__(self, data: bytes, offset: int, *, cut: bool) -> None:
        begin = 0
        while offset and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
            begin += 1
        self._inner = data[begin : len(data) - _partial_character_length(data) if cut else len(data)]
        self._start = offset + begin
        try:
            self.text = self._inner.decode()
            self.is_text = "\0" not in self.text
        except UnicodeDecodeError:
            self._inner, self._start = data, offset
            self.text, self.is_text = data.decode("utf-8", "replace"), False

    @property
    def remark(self) -> Advice | None:
        """A remark about bytes that the text does not show."""
        if not self.is_text:
            return Advice("It is not UTF-8 text").then(Advice("{encoding} gives every byte", encoding="base64"), "; ")
        unseen = any(char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf") for char in set(self.text))
        if not unseen:
            return None
        hidden = Advice("Carriage returns and other invisible characters are left out")
        return hidden.then(Advice("{encoding} shows them", encoding="base64"), "; ")

    @property
    def text_bounds(self) -> tuple[int, int]:
        return self._start, self._start + len(self._inner)


def _partial_character_length(data: bytes) -> int:
    """The number of bytes at the end that form an incomplete UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back else 0
    return 0


def content_bytes(content: str, encoding: Encoding) -> bytes:
    try:
        data = base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    except (binascii.Error, ValueError):
        form = "base64" if encoding == "base64" else "valid text (it contains an invalid Unicode surrogate)"
        raise BadArgument(f"The content is not {form}", next_step="Nothing was written") from None
    if len(data) > MOST_WRITTEN:
        raise BadArgument(
            f"The content has {size(len(data))}; the limit is {size(MOST_WRITTEN)}",
            next_step=Advice("Write it in parts with {append}", append=True),
        )
    return data


def _replaced_facts(old: Any, target: str, path: str, *, append: bool) -> dict[str, Any]:
    what = "made" if old is None else "appended to" if append else f"replaced, {old.size} bytes before"
    shared = old is not None and old.links > 1 and not append
    return {
        "file": what,
        **({"behind_link": target} if target != path else {}),
        **({"note": "Its other hard links keep the old content"} if shared else {}),
    }


def entry_row(entry: Entry) -> list[Any]:
    name = entry.name.decode("utf-8", "replace")
    visible = all(unicodedata.category(char)[0] not in "CZ" or char == " " for char in name)
    exact = visible and name.encode() == entry.name
    return [
        name,
        entry.type,
        entry.size if entry.type == "file" else None,
        entry.mode,
        entry.owner,
        entry.group,
        moment(entry.modified),
        "" if exact else base64.b64encode(entry.name).decode(),
    ]


SERVICE_COLUMNS = ("service", "state", "enabled", "description")

ServiceAction = Literal["start", "stop", "restart", "reload", "enable", "disable"]
ServiceState = Literal["active", "failed", "all"]


async def list_services(transport: Transport, state: ServiceState) -> list[list[Any]]:
    """Rows of the services in this state, by name."""
    listed = [service for service in await services.list_services(transport) if state in ("all", service.state)]
    return [
        [service.name, service.summary, service.enabled, service.description]
        for service in sorted(listed, key=lambda service: service.name)
    ]


async def describe_service(transport: Transport, service: str, log_lines: int) -> dict[str, Any]:
    status = await services.status(transport, require_service(service, transport.system), log_lines=log_lines)
    return {
        "service": status.name,
        "manager": status.manager,
        "state": status.summary,
        "enabled": status.enabled,
        "description": status.description,
        "pid": status.pid or None,
        "since": status.since,
        "ended": status.result,
        "log": status.log,
    }


def control_action(
    rules: CommandRules, clock: Clock, machine: Machine, service: str, action: ServiceAction, status: ToolHint
) -> Action:
    """The step that controls a service; `status` is the tool that shows it later."""
    transport = machine.transport
    name = require_service(service, transport.system)
    require_service_allowed(rules, transport, name, action)

    async def perform(context: StepContext) -> ActionResult:
        before, after = await services.control(transport, clock, name, action, wait=context.wait)
        later = Advice("It is still working on it", status(service=after.name))
        return ActionResult(
            _describe_change(before, after), running=after.busy, next_step=later if after.busy else None
        )

    summary = f"{action.capitalize()} the service {name}"
    return machine_action(machine, summary, f"{transport.description}: {action} service {name}", perform)


def require_service_allowed(rules: CommandRules, transport: Transport, name: str, action: str) -> None:
    """Refuse what the operator's command patterns forbid; controlling a service counts as a command."""
    line = ("powershell", f"{action.capitalize()}-Service {name}") if transport.system == "windows" else (
        "systemctl", action, name.removesuffix(".service"),
    )  # fmt: skip
    if objection := rules.objection(line):
        raise objection


def _describe_change(before: Service, after: Service) -> dict[str, Any]:
    return {
        "service": after.name,
        "before": before.summary,
        "now": after.summary,
        "enabled": after.enabled,
        **({"pid": after.pid} if after.pid else {}),
    }
