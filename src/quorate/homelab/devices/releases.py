"""Until when common systems get security updates from their makers, without paid extensions."""

from __future__ import annotations

import datetime
import re

# id of /etc/os-release -> version -> the last day. Short on purpose: what a homelab is likely to have.
_ENDS: dict[str, dict[str, str]] = {
    "debian": {"9": "2022-06-30", "10": "2024-06-30", "11": "2026-08-31", "12": "2028-06-30", "13": "2030-06-30"},
    "ubuntu": {
        "16.04": "2021-04-30", "18.04": "2023-05-31", "20.04": "2025-05-31", "22.04": "2027-04-30",
        "23.04": "2024-01-25", "23.10": "2024-07-11", "24.04": "2029-04-30", "24.10": "2025-07-10",
        "25.04": "2026-01-15",
    },
    "alpine": {
        "3.16": "2024-05-23", "3.17": "2024-11-22", "3.18": "2025-05-09", "3.19": "2025-11-01", "3.20": "2026-04-01",
        "3.21": "2026-11-01", "3.22": "2027-05-01",
    },
    "fedora": {"38": "2024-05-21", "39": "2024-11-26", "40": "2025-05-13", "41": "2025-12-15"},
    "centos": {"7": "2024-06-30", "8": "2021-12-31"},
    "rocky": {"8": "2029-05-31", "9": "2032-05-31"},
    "almalinux": {"8": "2029-03-01", "9": "2032-05-31"},
    "freebsd": {"12": "2023-12-31", "13": "2026-04-30", "14": "2028-11-30"},
}  # fmt: skip


def end_of_life(system: str | None, version: str | None) -> datetime.date | None:
    """The last day of a release, if it is known: of 12.5 that of 12, of 3.19.1 that of 3.19."""
    known = _ENDS.get((system or "").lower(), {})
    parts = re.split(r"[.-]", version or "")
    for length in range(len(parts), 0, -1):
        if end := known.get(".".join(parts[:length])):
            return datetime.date.fromisoformat(end)
    return None
