"""Cloud-init of a new VM, as PVE's options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quorate.hints import NAMED, Sentence
from quorate.operations.provision.new_guests import as_list, plain_value, refuse_unknown
from quorate.operations.provision.new_networks import address_parts, name_servers
from quorate.problems import BadArgument
from quorate.pve import values

_PLAIN = {
    "user": "ciuser",
    "password": "cipassword",
    "type": "citype",
    "custom": "cicustom",
    "search_domain": "searchdomain",
}
_ADDRESS = {"ip": "ip", "gateway": "gw", "ip6": "ip6", "gateway6": "gw6"}
_NUMBERED = re.compile(r"ipconfig\d+")
_LISTS = ("ssh_keys", "dns")
KEYS = (*_PLAIN, "ssh_keys", *_ADDRESS, "dns", "upgrade", "ipconfig0")


def cloudinit_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """PVE's options; ip and gateway are those of the first card, ipconfigN say it for the others."""
    refuse_unknown("cloud_init", (key for key in given if not _NUMBERED.fullmatch(key)), KEYS)
    for key, value in given.items():
        for one in value if key in _LISTS and isinstance(value, list) else [value]:
            _refuse_wrong_type(f"cloud_init.{key}", one, flag=key == "upgrade")
    options: dict[str, Any] = {_PLAIN[key]: str(given[key]) for key in _PLAIN if given.get(key)}
    if given.get("dns"):
        options["nameserver"] = name_servers(given["dns"])
    options |= {key: str(value) for key, value in given.items() if _NUMBERED.fullmatch(key)}
    if given.get("ssh_keys"):
        options["sshkeys"] = values.encode_keys(public_keys(given["ssh_keys"]))
    if given.get("upgrade") is not None:
        options["ciupgrade"] = int(values.is_on(given["upgrade"]))
    addresses = {_ADDRESS[key]: str(given[key]) for key in _ADDRESS if given.get(key)}
    if addresses and "ipconfig0" in options:
        raise BadArgument(
            Sentence("{cloud_init} contains both ipconfig0 and its parts", cloud_init=NAMED),
            next_step="Give ip and gateway, or ipconfig0",
        )
    options.setdefault("ipconfig0", values.build(address_parts(addresses)))
    return options


def _refuse_wrong_type(key: str, value: Any, *, flag: bool) -> None:
    if value is not None and (isinstance(plain_value(key, value), bool) and not flag):
        raise BadArgument(f"{key} takes a string, not {str(value).lower()}")


def public_keys(given: str | list[str]) -> list[str]:
    """SSH keys, one per line; anything else is refused here with a better explanation than PVE's."""
    lines = [line.strip() for text in as_list(given) for line in str(text).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    for number, line in enumerate(keys, 1):
        if not values.is_ssh_key(line):
            raise BadArgument(
                f"SSH key {number} is not a public key",
                why="A public key reads like: ssh-ed25519 AAAA... comment",
                next_step="Give what the .pub file holds, never the private key",
            )
    return keys
