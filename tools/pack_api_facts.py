"""Pack the tables of API facts into pve-schema: `python -m tools.pack_api_facts PVE_FOLDER PBS_FOLDER`.

The folders hold the JSON tables: `pve-api-<version>.json`, `formats-9.2.json`, `roles-9.json` and `workers.json` of
Proxmox VE, `pbs-api-<version>.json` and `roles-4.json` of Proxmox Backup Server.
The same tables always yield the same bytes, so a file that differs means changed facts.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

VERSIONS = ("9.2", "8.4")
PBS_VERSIONS = ("4.2", "4.1", "3.4")
TARGET = Path(__file__).resolve().parent.parent / "packages" / "pve-schema" / "src" / "pve_schema" / "data"


def read_table(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def api_table(folder: Path, name: str, version: str) -> dict[str, Any]:
    """The endpoints of one version, without counts and origin, which are not used at run time."""
    table = read_table(folder, name)
    return {"version": version, "paths": table["paths"], "defs": table["defs"]}


def common_table(folder: Path) -> dict[str, Any]:
    """Tables that apply to every version."""
    formats = read_table(folder, "formats-9.2.json")
    roles = read_table(folder, "roles-9.json")
    return {
        "formats": formats["formats"],
        "last_index": last_indexes(formats["index_ranges"]),
        "privileges": roles["privileges"],
        "roles": roles["roles"],
        "workers": read_table(folder, "workers.json"),
    }


def last_indexes(ranges: dict[str, dict[str, Any]]) -> dict[str, int]:
    """`{"scsi": 30, ...}`: every numbered option starts at 0 and means the same for both kinds of guest."""
    return {
        name: bounds[1] for family in ranges.values() for name, bounds in family.items() if isinstance(bounds[0], int)
    }


def write_packed(table: dict[str, Any], target: Path) -> None:
    text = json.dumps(table, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    target.write_bytes(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m tools.pack_api_facts PVE_FOLDER PBS_FOLDER\n")
        return 2
    folder, pbs_folder = map(Path, arguments)
    TARGET.mkdir(parents=True, exist_ok=True)
    for version in VERSIONS:
        write_packed(api_table(folder, f"pve-api-{version}.json", version), TARGET / f"api-{version}.json.gz")
    for version in PBS_VERSIONS:
        write_packed(api_table(pbs_folder, f"pbs-api-{version}.json", version), TARGET / f"pbs-api-{version}.json.gz")
    write_packed({"roles": read_table(pbs_folder, "roles-4.json")["roles"]}, TARGET / "pbs-roles.json.gz")
    write_packed(common_table(folder), TARGET / "common.json.gz")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
