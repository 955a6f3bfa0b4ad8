"""Mappings of hardware and directories: one name for what is called differently on every node."""

from __future__ import annotations

from typing import Any

from quorate.sim.config_files import changing
from quorate.sim.datacenter import Datacenter
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.sections import Section, SectionFile, options_of

_PRIVILEGES = ("Mapping.Modify", "Mapping.Use", "Mapping.Audit")
_KINDS = ("pci", "usb", "dir")
_WORDS = {"pci": "hardware", "usb": "hardware", "dir": "directory"}


def _all(method: str, path: str = "") -> list[str]:
    return [f"{method} /cluster/mapping/{kind}{path}" for kind in _KINDS]


def _kind(call: Call) -> str:
    return call.endpoint.template.split("/")[3]


def _file(call: Call) -> SectionFile:
    return call.world.part(Datacenter).mappings[_kind(call)]


@route(*_all("GET"))
def list_mappings(call: Call) -> list[Section]:
    kind, file, node = _kind(call), _file(call), call.params.get("check-node")
    rows = [
        {"id": name, **section, "digest": file.digest()}
        for name, section in file.sections.items()
        if call.allowed(f"/mapping/{kind}/{name}", *_PRIVILEGES)
    ]
    return rows if node is None else [{**row, "checks": _checks(row, node)} for row in rows]


def _checks(row: Section, node: str) -> list[dict[str, Any]]:
    if any(f"node={node}" in entry.split(",") for entry in row["map"]):
        return []
    return [{"severity": "warning", "message": f"No mapping for node {node}."}]


@route(*_all("GET", "/{id}"))
def one_mapping(call: Call) -> Section:
    name, file = call.values["id"], _file(call)
    if name not in file.sections:
        raise failure(f"mapping '{name}' not found")
    return {**file.sections[name], "digest": file.digest()}


@route(*_all("POST"))
def create_mapping(call: Call) -> None:
    kind, name, file = _kind(call), call.params["id"], _file(call)
    given = file.new_section(kind, options_of(call.params, "id"))
    with changing(f"create {_WORDS[kind]} mapping failed"):
        if name in file.sections:
            raise failure(f"{kind} ID '{name}' already defined")
        file.sections[name] = given


@route(*_all("PUT", "/{id}"))
def update_mapping(call: Call) -> None:
    kind, name, file = _kind(call), call.values["id"], _file(call)
    with changing(f"update {_WORDS[kind]} mapping failed"):
        file.check_digest(call.params.get("digest"))
        if name not in file.sections:
            raise failure(f"{kind} ID '{name}' does not exist")
        options = options_of(call.params, "id", "digest", "delete")
        file.change(file.sections[name], options, call.params.get("delete"))


@route(*_all("DELETE", "/{id}"))
def delete_mapping(call: Call) -> None:
    _file(call).sections.pop(call.values["id"], None)
