"""A guest's configuration, consumed part by part: what remains is reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from quorate.homelab.terraform_export.hcl import Block
from quorate.pve import values

# Managed by PVE: generated automatically, or meaningless elsewhere.
_INTERNAL = re.compile(
    r"digest|vmgenid|meta|lock|parent|snaptime|snapstate|vmstate|runningmachine|runningcpu|running-nets-host-mtu|"
    r"template|pending"
)
_SECRET = re.compile(r"cipassword|password")


class RemainingConfig:
    """A configuration or property string that shrinks as its parts are read."""

    def __init__(self, parts: Mapping[str, object], name: str = "") -> None:
        self._parts = {key: "" if value is None else str(value) for key, value in parts.items()}
        self._name = name

    @classmethod
    def of(cls, name: str, text: str, default_key: str = "") -> RemainingConfig:
        return cls(values.parse(text, default_key), name)

    def text(self, key: str) -> str | None:
        return self._parts.pop(key, None) or None

    def flag(self, key: str) -> bool | None:
        found = self.text(key)
        return None if found is None else values.is_on(found)

    def number(self, key: str) -> int | None:
        """A whole number; anything else remains and is reported."""
        found = self._parts.get(key, "")
        if not re.fullmatch(r"\d{1,15}", found, re.ASCII):
            return None
        del self._parts[key]
        return int(found)

    def decimal(self, key: str) -> float | int | None:
        found = self._parts.get(key, "")
        if not re.fullmatch(r"\d{1,15}(\.\d{1,6})?", found, re.ASCII):
            return None
        del self._parts[key]
        number = float(found)
        return int(number) if number.is_integer() else number

    def gigabytes(self, key: str = "size") -> int | None:
        """A size in whole gigabytes, the provider's unit."""
        found = re.fullmatch(r"(\d{1,9})([GT])", self._parts.get(key, ""), re.ASCII)
        if found is None:
            return None
        del self._parts[key]
        return int(found[1]) * (1024 if found[2] == "T" else 1)

    def peek(self, key: str) -> str:
        return self._parts.get(key, "")

    def pick(self, fits: Callable[[str, str], bool]) -> tuple[str, str] | None:
        """The first matching part, with its key."""
        key = next((key for key, text in sorted(self._parts.items()) if fits(key, text)), None)
        return None if key is None else (key, self._parts.pop(key))

    def take_numbered(self, kind: str) -> list[tuple[str, str]]:
        """All parts of a kind, such as net0 and net1, in order."""
        keys = [key for key in self._parts if re.fullmatch(rf"{kind}\d+", key, re.ASCII)]
        return [(key, self._parts.pop(key)) for key in sorted(keys, key=lambda key: int(key[len(kind) :]))]

    def tell(self, block: Block) -> None:
        """What the provider cannot express becomes a comment."""
        for key, value in sorted(self._parts.items()):
            if self._name or not _INTERNAL.fullmatch(key):
                shown = "(not shown)" if _SECRET.fullmatch(key) else value
                block.remark(f"not expressed here: {' '.join(filter(None, (self._name, key)))} = {shown}")


def startup(left: RemainingConfig) -> Block | None:
    text = left.text("startup")
    if text is None:
        return None
    own, block = RemainingConfig.of("startup", text, "order"), Block("startup")
    for name, key in (("order", "order"), ("up_delay", "up"), ("down_delay", "down")):
        number = own.number(key)
        block.set(**{name: None if number is None else str(number)})
    own.tell(block)
    return block


def tags(left: RemainingConfig) -> list[str] | None:
    return sorted({tag for tag in re.split(r"[;,\s]+", left.text("tags") or "") if tag}) or None


def dns(left: RemainingConfig) -> Block:
    return Block("dns").set(domain=left.text("searchdomain"), servers=(left.text("nameserver") or "").split() or None)


def ip_config(own: RemainingConfig) -> Block:
    """Both address families, if set. `manual` has no counterpart and is reported."""
    block = Block("ip_config")
    for family, address, gateway in (("ipv4", "ip", "gw"), ("ipv6", "ip6", "gw6")):
        if own.peek(address) != "manual":
            block.put(Block(family).set(address=own.text(address), gateway=own.text(gateway)))
    return block


def volume(text: str) -> tuple[str, str] | None:
    """Storage and volume of `local-lvm:vm-100-disk-0`; None for a device or path of the node."""
    storage, colon, name = text.partition(":")
    return (storage, name) if colon and name and not text.startswith("/") else None


def file_format(name: str) -> str:
    ending = name.rpartition(".")[2]
    return ending if ending in ("qcow2", "vmdk") else "raw"
