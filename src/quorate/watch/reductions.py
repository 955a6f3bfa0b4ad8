"""What is kept of each answer: as little as the checks need, so that the facts of thousands of guests stay small."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from quorate.pve import values

_VOLATILE = ("digest", "meta", "lock", "parent", "snaptime", "vmgenid", "description")


class GuestConfig(msgspec.Struct, frozen=True, gc=False):
    onboot: bool
    agent: bool
    open_cards: tuple[str, ...]
    """Network cards that the firewall does not filter."""
    fingerprint: str
    """The same as long as no setting changes."""


class BackupFile(msgspec.Struct, frozen=True, gc=False):
    vmid: int
    time: float
    size: int
    verified: str
    """ok, failed, or empty if it was never verified"""


def everything(answer: Any) -> Any:
    return answer


def no_failures(_: Any) -> int:
    """Of a guest agent: it answered, so it was silent zero times in a row."""
    return 0


def clock(answer: Mapping[str, Any]) -> float:
    return float(answer["time"])


def guest_config(config: Mapping[str, Any]) -> GuestConfig:
    kept = {name: str(value) for name, value in config.items() if name not in _VOLATILE}
    cards = {name: values.parse(kept[name]) for name in kept if name.startswith("net") and name[3:].isdecimal()}
    return GuestConfig(
        onboot=kept.get("onboot") == "1",
        agent=values.is_on(values.parse(kept.get("agent", "0"), "enabled").get("enabled", "0")),
        open_cards=tuple(sorted(name for name, card in cards.items() if not values.is_on(card.get("firewall", "0")))),
        fingerprint=hashlib.sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()[:16],
    )


def snapshots(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": one["name"], "snaptime": one.get("snaptime")} for one in answer if one.get("name") != "current"]


def backups(answer: list[dict[str, Any]]) -> list[BackupFile]:
    return [
        BackupFile(
            int(one.get("vmid") or 0),
            float(one.get("ctime") or 0),
            int(one.get("size") or 0),
            str((one.get("verification") or {}).get("state", "")),
        )
        for one in answer
    ]


def disks(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = ("devpath", "model", "serial", "health", "wearout")
    return [{name: one.get(name) for name in kept} for one in answer if one.get("type") != "partition"]


def updates(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: one.get(name) for name in ("Package", "Version", "Origin")} for one in answer]


def certificates(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: one.get(name) for name in ("filename", "fingerprint", "notafter")} for one in answer]


def subscription(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: answer.get(name) for name in ("status", "nextduedate", "productname", "message")}


def privileges(answer: list[dict[str, Any]]) -> list[str]:
    return sorted(f"{one['ugid']} has {one['roleid']} on {one['path']}" for one in answer)


def flat(answer: Mapping[str, Any]) -> dict[str, str]:
    """`allowed-tags` follows the tags of guests, so it is not a setting."""
    return {str(name): _text(value) for name, value in answer.items() if name not in ("digest", "allowed-tags")}


def flat_rows(key: str, answer: list[dict[str, Any]]) -> dict[str, str]:
    """`nas.content` -> its value."""
    volatile = ("digest", "next-run", "type", key)
    return {
        f"{row.get(key)}.{name}": _text(value) for row in answer for name, value in row.items() if name not in volatile
    } | {str(row.get(key)): "exists" for row in answer}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
