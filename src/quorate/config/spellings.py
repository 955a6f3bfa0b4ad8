"""What each setting is called in the environment and in TOML.

Where a setting has several names, the first one belongs to the PROXMOX_URL family of names and the last one to the
PROXMOX_HOST family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Names(NamedTuple):
    variables: tuple[str, ...]
    keys: tuple[str, ...]


GENERAL: Mapping[str, Names] = {
    "access": Names(("QUORATE_ACCESS",), ("access",)),
    "toolsets": Names(("QUORATE_TOOLSETS",), ("toolsets",)),
    "look_inside": Names(("QUORATE_LOOK_INSIDE",), ("look_inside",)),
    "audit_file": Names(("QUORATE_AUDIT_FILE",), ("audit_file",)),
    "wait_seconds": Names(("QUORATE_WAIT_SECONDS",), ("wait_seconds",)),
    "config": Names(("QUORATE_CONFIG",), ()),
}
CLUSTER: Mapping[str, Names] = {
    "address": Names(("PROXMOX_URL", "PROXMOX_API_URL", "PROXMOX_HOST"), ("url", "host")),
    "port": Names(("PROXMOX_PORT",), ("port",)),
    "user": Names(("PROXMOX_USER",), ("user",)),
    "token": Names(("PROXMOX_TOKEN_ID", "PROXMOX_TOKEN_NAME"), ("token_id", "token_name")),
    "token_secret": Names(("PROXMOX_TOKEN_SECRET", "PROXMOX_TOKEN_VALUE"), ("token_secret", "token_value")),
    "password": Names(("PROXMOX_PASSWORD",), ("password",)),
    "verify": Names(("PROXMOX_VERIFY", "PROXMOX_VERIFY_SSL", "PROXMOX_TLS_INSECURE"), ("verify",)),
    "ca_file": Names(("PROXMOX_CA_FILE",), ("ca_file",)),
    "fingerprint": Names(("PROXMOX_FINGERPRINT",), ("fingerprint",)),
    "default_node": Names(("PROXMOX_DEFAULT_NODE",), ("default_node",)),
    "default_storage": Names(("PROXMOX_DEFAULT_STORAGE",), ("default_storage",)),
    "default_bridge": Names(("PROXMOX_DEFAULT_BRIDGE",), ("default_bridge",)),
    "request_seconds": Names((), ("request_seconds",)),
    "total_seconds": Names((), ("total_seconds",)),
    "connections": Names((), ("connections",)),
}
SECRETS = ("token_secret", "password")
_HOST_FAMILY = ("host", "port", "token_name", "token_value")


def is_of_host_family(spelling: str) -> bool:
    return spelling.lower().removeprefix("proxmox_").removesuffix("_file") in _HOST_FAMILY


def did_you_mean(word: str, known: Iterable[str]) -> str:
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f' did you mean "{close[0]}"?' if close else ""
