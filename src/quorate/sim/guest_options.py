"""What the options of a guest's configuration are, and how their values look once they are stored."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from quorate.pve.schema import facts
from quorate.pve.validation import text_of
from quorate.sim import drives
from quorate.sim.datacenter import Datacenter, shown_option
from quorate.sim.guests import Kind, Value
from quorate.sim.refusals import failure
from quorate.sim.world import World

# Parameters of the endpoints that are no options of the configuration.
_ABOUT_THE_CALL = frozenset(
    [
        "node",
        "vmid",
        "digest",
        "delete",
        "revert",
        "force",
        "skiplock",
        "background_delay",
        "import-working-storage",
        "archive",
        "storage",
        "bwlimit",
        "pool",
        "start",
        "unique",
        "live-restore",
        "ha-managed",
        "ostemplate",
        "restore",
        "password",
        "ssh-public-keys",
        "ignore-unpack-errors",
    ]
)
_LIST_SEPARATOR = re.compile(r"[,;\s]+")
_NUMBER_AT_END = re.compile(r"\d+$")
_ENCRYPTED = re.compile(r"\$(?:[156]|2[ay])(\$.+){2}")
_KEY_TYPES = (
    "ssh-rsa",
    "ssh-dss",
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
CLOUDINIT_OPTIONS = frozenset(
    ["cicustom", "cipassword", "citype", "ciuser", "ciupgrade", "nameserver", "searchdomain", "sshkeys"]
)


def split_list(text: str | None) -> list[str]:
    """The parts of a list parameter."""
    return [part for part in _LIST_SEPARATOR.split(text or "") if part]


def option_exists(world: World, kind: Kind, key: str) -> bool:
    """Whether the configuration knows such an option."""
    return key in _options(world.version, kind) or _NUMBER_AT_END.sub("[n]", key) in _options(world.version, kind)


@cache
def _options(version: str, kind: Kind) -> frozenset[str]:
    endpoint = facts(version).endpoint("PUT", f"/nodes/{{node}}/{kind}/{{vmid}}/config")
    known = frozenset(endpoint.parameters) - _ABOUT_THE_CALL
    return known | ({"vmstate", "meta", "parent", "snaptime"} if kind == "qemu" else {"parent", "snaptime"})


def settings_of(params: Mapping[str, Any]) -> dict[str, Value]:
    """The options among the parameters of a call, as values of the configuration."""
    return {key: as_stored(value) for key, value in params.items() if key not in _ABOUT_THE_CALL}


def as_stored(value: Any) -> Value:
    """Whole numbers stay numbers, yes and no become 1 and 0, all else is text."""
    return int(value) if isinstance(value, bool | int) else text_of(value)


def is_cloudinit_option(key: str) -> bool:
    return key in CLOUDINIT_OPTIONS or (key.startswith("ipconfig") and key[8:].isdecimal())


def complete(world: World, kind: Kind, vmid: int, key: str, value: Value) -> Value:
    """The value as it is stored, for options whose text PVE rewrites; drives are completed when they are made."""
    if drives.is_net(key):
        return drives.complete_net(world, kind, vmid, key, str(value))
    if key == "tags":
        return unique_tags(world, str(value))
    if key == "description":
        return described(kind, str(value))
    if key == "vmgenid" and value == "1":
        return drives.new_uuid(world, vmid, "vmgenid")
    if key == "cipassword":
        return encrypted(str(value))
    return value


def unique_tags(world: World, text: str) -> str:
    """Each tag once: in small letters and in order, unless the datacenter's style says otherwise."""
    options = world.part(Datacenter).options
    style = shown_option("tag-style", options["tag-style"]) if "tag-style" in options else {}
    tags = [tag if style.get("case-sensitive") else tag.lower() for tag in split_list(text)]
    return ";".join(dict.fromkeys(tags if style.get("ordering") == "config" else sorted(tags)))


def described(kind: Kind, text: str) -> str:
    """Notes as they come back: a container's always end with a newline, a VM's never."""
    stripped = text.rstrip()
    return f"{stripped}\n" if kind == "lxc" and stripped else stripped


def encrypted(password: str) -> str:
    """A password as a hash, unless it is one already."""
    if _ENCRYPTED.match(password):
        return password
    digest = hashlib.sha256(password.encode()).digest()
    return f"$5${digest[:6].hex()}${base64.b64encode(digest, b'./').decode().rstrip('=')}"


def check_encoded_ssh_keys(sshkeys: object) -> None:
    """Refuse cloud-init keys that are none; the parameter is percent-encoded once more."""
    if sshkeys is not None:
        check_ssh_keys(unquote(str(sshkeys)))


def check_ssh_keys(keys: str) -> None:
    lines = [line.strip() for line in keys.splitlines()]
    if not all(_looks_like_key(line) for line in lines if line and not line.startswith("#")):
        raise failure("SSH public key validation error")


def _looks_like_key(line: str) -> bool:
    words = line.split()
    for position, word in enumerate(words[:-1]):
        if word in _KEY_TYPES:
            return _holds_type(words[position + 1], word)
    return False


def _holds_type(encoded: str, expected: str) -> bool:
    """The first field inside a key repeats its type."""
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return False
    length = int.from_bytes(decoded[:4], "big")
    return decoded[4 : 4 + length].decode("ascii", "replace") == expected
