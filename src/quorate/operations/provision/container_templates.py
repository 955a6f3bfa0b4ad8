"""Container templates: those on the storages, and those of the appliance list that a node can download."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quorate.operations.placement import pick_storage
from quorate.operations.plan import Call, Target
from quorate.operations.provision.guest_files import Library, ambiguous_file, list_names, matching
from quorate.problems import NotFound
from quorate.pve.cluster import Cluster
from quorate.suggestions import suggest


@dataclass(frozen=True, slots=True)
class Template:
    """A template of a node: on its storage, or to be put there first."""

    name: str
    volid: str
    missing: bool = False

    def download(self, node: str) -> Call:
        """The step that fetches it from the appliance list."""
        storage = self.volid.partition(":")[0]

        summary = f"Download template {self.name} to {storage} on {node}"
        params = {"storage": storage, "template": self.name}
        target = Target("storage", storage, node=node)
        return Call(summary, "POST", f"/nodes/{node}/aplinfo", params, target, task_id=self.name)


async def find_template(pve: Cluster, library: Library, node: str, wanted: str) -> Template:
    """The template that matches a volid, a file name or a part of it; the newest if only versions differ."""
    files = await library.on(node, "vztmpl")
    if not matching(files, wanted):
        files = await library.closer_on(node, "vztmpl")
    if found := matching(files, wanted):
        newest = _newest(wanted, [file.name for file in found])
        return Template(newest, next(file.volid for file in found if file.name == newest))
    rows: list[dict[str, Any]] = await pve.get(f"/nodes/{node}/aplinfo") or []
    name = find_appliance(wanted, rows)
    if name is None:
        raise _nowhere(wanted, node, [*(file.name for file in files), *(str(row["template"]) for row in rows)])
    if existing := next((file for file in files if file.name == name), None):
        return Template(name, existing.volid)  # a download would replace it
    storage = await pick_storage(pve, node, "vztmpl", wanted=wanted.partition(":")[0] if ":" in wanted else None)
    return Template(name, f"{storage.storage}:vztmpl/{name}", missing=True)


def find_appliance(wanted: str, rows: Iterable[dict[str, Any]]) -> str | None:
    """The appliance that matches a file name, a package or a part of it, in its newest version.

    A plain system comes before the many appliances built on it.
    """
    lowered = wanted.rpartition("/")[2].lower()
    offered = [row for row in rows if lowered in str(row["template"]).lower()]
    exact = [row for row in offered if lowered in (str(row["template"]).lower(), str(row.get("package")).lower())]
    systems = [row for row in offered if row.get("section") == "system"]
    names = [str(row["template"]) for row in exact or systems or offered]
    if exact:  # a package may be there for several systems
        return max(names, key=_numbers)
    return _newest(wanted, names) if names else None


def _newest(wanted: str, names: list[str]) -> str:
    if len({name.partition("_")[0] for name in names}) > 1:
        raise ambiguous_file("template", wanted, names)
    return max(names, key=_version)


def _version(name: str) -> list[int]:
    return _numbers(name.partition("_")[2])


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _nowhere(wanted: str, node: str, names: list[str]) -> NotFound:
    listed_names = f"Available: {list_names(set(names))}" if names else None
    return NotFound(
        f"There is no container template {wanted!r}",
        why=f"Neither the storages of {node} nor its appliance list have it",
        next_step=suggest(wanted.rpartition("/")[2], names, listed_names, count=3, cutoff=0.5),
    )
