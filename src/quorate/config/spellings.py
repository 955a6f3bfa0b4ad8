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
    "surface": Names(("QUORATE_SURFACE",), ("surface",)),
    "look_inside": Names(("QUORATE_LOOK_INSIDE",), ("look_inside",)),
    "approval": Names(("QUORATE_APPROVAL",), ("approval",)),
    "approve_changes": Names(("QUORATE_APPROVE_CHANGES",), ("approve_changes",)),
    "state": Names(("QUORATE_STATE",), ("state",)),
    "audit_file": Names(("QUORATE_AUDIT_FILE",), ("audit_file",)),
    "wait_seconds": Names(("QUORATE_WAIT_SECONDS",), ("wait_seconds",)),
    "config": Names(("QUORATE_CONFIG",), ()),
}
HTTP: Mapping[str, Names] = {
    "http": Names(("QUORATE_HTTP_LISTEN",), ("listen",)),
    **{
        key: Names((f"QUORATE_HTTP_{key.upper()}",), (key,))
        for key in (
            "tls_cert", "tls_key", "public_url", "allowed_hosts", "allowed_origins", "trusted_proxies", "oauth_issuer",
            "oauth_audience", "oauth_jwks_url", "rate_limit", "failure_limit", "body_limit", "sessions", "open_metrics",
            "drain_seconds", "grace_seconds",
        )
    },
}  # fmt: skip
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
    "own_access": Names((), ("access",)),
    "request_seconds": Names((), ("request_seconds",)),
    "total_seconds": Names((), ("total_seconds",)),
    "connections": Names((), ("connections",)),
}
SSH: Mapping[str, Names] = {
    "ssh_host": Names(("PROXMOX_SSH_HOST",), ("host",)),
    "ssh_port": Names(("PROXMOX_SSH_PORT",), ("port",)),
    "ssh_user": Names(("PROXMOX_SSH_USER",), ("user",)),
    "ssh_key": Names(("PROXMOX_SSH_KEY",), ("key",)),
    "ssh_password": Names((), ("password",)),
    "ssh_jump": Names(("PROXMOX_SSH_JUMP",), ("jump",)),
    "ssh_known_hosts": Names(("PROXMOX_SSH_KNOWN_HOSTS",), ("known_hosts",)),
    "ssh_max_output": Names(("PROXMOX_SSH_MAX_OUTPUT_BYTES",), ("max_output_bytes",)),
    "ssh_nodes": Names((), ("nodes",)),
    "ssh_networks": Names(("PROXMOX_SSH_NETWORKS",), ("networks",)),
}
SSH_GUESTS: Mapping[str, Names] = {
    "guest_ssh_port": Names((), ("port",)),
    "guest_ssh_user": Names(("PROXMOX_VM_SSH_USER",), ("user",)),
    "guest_ssh_key": Names(("PROXMOX_VM_SSH_KEY",), ("key",)),
    "guest_ssh_password": Names((), ("password",)),
    "guest_ssh_jump": Names((), ("jump",)),
}
SSH_GUEST: Mapping[str, Names] = {"guest_ssh_host": Names((), ("host",)), **SSH_GUESTS}
"""Of one guest; in the environment they carry its id, as in PROXMOX_VM_101_SSH_HOST, and are read when used."""
HOMELAB: Mapping[str, Names] = {
    **{
        f"home_{key}": Names((f"QUORATE_HOMELAB_{key.upper()}",), (key,))
        for key in (
            "user", "key", "jump", "known_hosts", "networks", "catalogue", "secrets_folder", "secrets_file",
            "scripts_url", "services_folder",
        )
    },
    "home_password": Names((), ("password",)),
    "home_max_output": Names(("QUORATE_HOMELAB_MAX_OUTPUT_BYTES",), ("max_output_bytes",)),
    "home_work": Names(("QUORATE_HOMELAB_WORK_FOLDER",), ("work_folder",)),
    "home_passphrase": Names(("QUORATE_SECRETS_PASSPHRASE",), ("secrets_passphrase",)),
}  # fmt: skip
INSIDE: Mapping[str, Names] = {f"inside_{key}": Names((), (key,)) for key in ("allow", "deny")}
OPT_INS = ("PROXMOX_ALLOW_ELEVATED", "PROXMOX_ENABLE_DESTRUCTIVE")
"""Variables of other servers by which their operator allows what is dangerous."""
POLICY: Mapping[str, Names] = {
    key: Names((), (key,)) for key in ("timezone", "destroys_per_hour", "concurrent_changes", "guests_per_call")
}
RULE: Mapping[str, Names] = {
    key: Names((), (key,))
    for key in (
        "name", "allow", "deny", "because", "tools", "toolsets", "clusters", "nodes", "storages", "pools", "tags",
        "names", "vmids", "hosts", "hours",
    )
}  # fmt: skip
SECRETS = ("token_secret", "password", "home_passphrase")
_HOST_FAMILY = ("host", "port", "token_name", "token_value")


def is_of_host_family(spelling: str) -> bool:
    return spelling.lower().removeprefix("proxmox_").removesuffix("_file") in _HOST_FAMILY


def did_you_mean(word: str, known: Iterable[str]) -> str:
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f' did you mean "{close[0]}"?' if close else ""
