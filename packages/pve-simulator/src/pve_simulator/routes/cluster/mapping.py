"""Mappings: names of the datacenter for PCI devices, USB devices and directories of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pve_simulator.cluster.config_files import Section, SectionFile, Sections, options_of, texts
from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.http.parameters import split_pairs
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call
from pve_simulator.routes.nodes import hardware as hardware_routes
from pve_simulator.storage.plugins import directory_exists
from pve_simulator.world import World


class _Mappings(Sections):
    readers = ("Mapping.Modify", "Mapping.Use", "Mapping.Audit")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.path, self.acl = f"/cluster/mapping/{kind}", f"/mapping/{kind}/{{name}}"
        self.failing = f"{{verb}} {'directory' if kind == 'dir' else 'hardware'} mapping failed"
        self.duplicate = f"{kind} ID '{{name}}' already defined"
        self.missing = texts(read="mapping '{name}' not found", update=f"{kind} ID '{{name}}' does not exist")
        super().__init__()

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Datacenter).mappings[str(self.kind)]

    def list(self, call: Call) -> list[Section]:
        rows, node = super().list(call), call.params.get("check-node")
        if node is not None:
            call.world.node(node)  # the answering node
        return rows if node is None else [{**row, "checks": _checks(call, str(self.kind), row, node)} for row in rows]

    def read(self, call: Call) -> Section:
        return options_of(super().read(call), "id")

    def new_section(self, call: Call) -> Section:
        section = super().new_section(call)
        self.check(call, "", section, None)
        return section

    def check(self, call: Call, _name: str, section: Section, before: Section | None) -> None:
        """The map is required in every change. A directory must exist, with one path per node."""
        if before is not None and "map" not in call.params:
            raise failure("missing value for required option 'map'")
        if self.kind != "dir":
            return
        for entry in entries_of(section["map"], call.local_node.name):
            if problem := problem_of(call.world, "dir", "", entry):
                raise failure(problem.rstrip())
        nodes = [part[5:] for entry in section["map"] for part in entry.split(",") if part.startswith("node=")]
        for node in dict.fromkeys(nodes):
            if nodes.count(node) > 1:
                raise failure(f"Node '{node}' is specified {nodes.count(node)} times.")


def _checks(call: Call, kind: str, row: Section, node: str) -> list[dict[str, Any]]:
    own = entries_of(row["map"], node)
    if not own:
        return [{"severity": "warning", "message": f"No mapping for node {node}."}]
    problems = (problem_of(call.world, kind, row["id"], entry) for entry in own)
    return [{"severity": "error", "message": f"Invalid configuration: {problem}"} for problem in problems if problem]


for _kind in ("pci", "usb", "dir"):
    _Mappings(_kind)


def entries_of(entries: list[str], node: str) -> list[dict[str, str]]:
    """The entries of a mapping for one node."""
    return [entry for entry in map(split_pairs, entries) if entry.get("node") == node]


def problem_of(world: World, kind: str, name: str, entry: Mapping[str, str]) -> str | None:
    """Why the device of a mapping cannot be used, None if it can."""
    if kind == "dir":
        path = entry["path"]
        return None if directory_exists(world, path) else f"Path {path} does not exist\n"
    return _pci_problem(name, entry) if kind == "pci" else _usb_problem(name, entry)


def _pci_problem(name: str, entry: Mapping[str, str]) -> str | None:
    known = {device["id"]: device for device in hardware_routes.pci_devices(verbose=True, hidden_classes=[])}
    for number, name_of_device in enumerate(entry["path"].split(";")):
        path = name_of_device if "." in name_of_device else f"{name_of_device}.0"
        device = known.get(path)
        if device is None:
            return f"pci device '{path}' not found\n"
        has = {
            "id": f"{device['vendor']}:{device['device']}".replace("0x", ""),
            "iommugroup": str(device["iommugroup"]),
            "subsystem-id": f"{device['subsystem_vendor']}:{device['subsystem_device']}".replace("0x", ""),
        }
        for key, value in has.items():
            if key == "iommugroup" and number:
                continue
            if key not in entry:
                return f"missing expected property '{key}' for device '{path}'\n"
            if entry[key].replace("0x", "") != value:
                return f"'{key}' does not match for '{name}' ({value} != {entry[key]})\n"
    return None


def _usb_problem(name: str, entry: Mapping[str, str]) -> str | None:
    mapped = entry["id"]
    for device in hardware_routes.usb_devices():
        own = f"{device['vendid']}:{device['prodid']}"
        if "path" not in entry and own == mapped:
            return None
        if f"{device['busnum']}-{device.get('usbpath')}" == entry.get("path"):
            return None if own == mapped else f"'id' does not match for '{name}' ({own} != {mapped})\n"
    return f"usb device '{entry.get('path', mapped)}' not found\n"
