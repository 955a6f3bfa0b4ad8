"""The names of each setting in the environment and in TOML.

If a setting has several names, the first belongs to the PROXMOX_URL family and the last to the PROXMOX_HOST family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quorate.suggestions import suggest


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
    "container_password": Names(("PROXMOX_DEFAULT_LXC_PASSWORD",), ()),
}
HTTP: Mapping[str, Names] = {
    "http": Names(("QUORATE_HTTP_LISTEN",), ("listen",)),
    **{
        key: Names((f"QUORATE_HTTP_{key.upper()}",), (key,))
        for key in (
            "tls_cert", "tls_key", "public_url", "allowed_hosts", "allowed_origins", "trusted_proxies", "oauth_issuer",
            "oauth_audience", "oauth_jwks_url", "oauth_client_id", "rate_limit", "failure_limit", "body_limit",
            "body_seconds", "caller_limit", "address_limit", "connection_limit", "sessions", "open_metrics",
            "drain_seconds", "grace_seconds",
        )
    },
}  # fmt: skip
CLUSTER: Mapping[str, Names] = {
    "address": Names(("PROXMOX_URL", "PROXMOX_API_URL", "PROXMOX_HOST"), ("url", "host")),
    "port": Names(("PROXMOX_PORT",), ("port",)),
    "user": Names(("PROXMOX_USER", "PROXMOX_USERNAME"), ("user",)),
    "realm": Names(("PROXMOX_REALM",), ("realm",)),
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
    "request_seconds": Names(("PROXMOX_TIMEOUT",), ("request_seconds",)),
    "total_seconds": Names((), ("total_seconds",)),
    "connections": Names((), ("connections",)),
    "answer_bytes": Names((), ("answer_bytes",)),
}
API_TOKEN = "PROXMOX_API_TOKEN"  # noqa: S105 - the name of a variable
"""Token and secret in one: user@realm!name=secret."""
JSON_KEYS: Mapping[str, str] = {
    "address": "host",
    "port": "port",
    "user": "username",
    "realm": "realm",
    "password": "password",
    "token": "tokenId",
    "token_secret": "tokenSecret",
    "verify": "verifySsl",
    "request_seconds": "timeout",
}
"""Connection settings in brynnjocelyn's .proxmox-mcp.json."""
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
"""Settings of one guest. Variables contain its id, as in PROXMOX_VM_101_SSH_HOST, and are read when used."""
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
IMAGES: Mapping[str, Names] = {"upload_dirs": Names(("QUORATE_IMAGES_UPLOAD_DIRS",), ("upload_dirs",))}
INSIDE: Mapping[str, Names] = {f"inside_{key}": Names((), (key,)) for key in ("allow", "deny")}
OPT_INS = ("PROXMOX_ALLOW_ELEVATED", "PROXMOX_ENABLE_DESTRUCTIVE")
"""Variables with which operators of other servers allow dangerous calls."""
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
WATCH: Mapping[str, Names] = {
    "watch": Names(("QUORATE_WATCH",), ("enabled",)),
    **{
        f"watch_{key}": Names((), (key,))
        for key in (
            "every", "requests", "public_url", "timezone", "running_tags", "firewall_tags", "pinned_tags",
            "storage_percent", "storage_days", "backup_days", "snapshot_days", "ignore",
        )
    },
}  # fmt: skip
CHANNEL: Mapping[str, Names] = {
    f"channel_{key}": Names((), (key,))
    for key in (
        "type", "url", "topic", "token", "client_token", "user", "password", "secret", "host", "port", "tls", "sender",
        "to", "chat", "room", "severity", "kinds", "clusters", "hours", "digest", "resolved",
    )
}  # fmt: skip
SECRETS = ("token_secret", "password", "home_passphrase", "container_password")
_HOST_FAMILY = ("host", "port", "token_name", "token_value")
_ALSO_HOST_FAMILY = ("username", "realm", "api_token", "verify_ssl")
"""Names used by operators who write an address as `host` and a token as `token_id`, or both of its parts in one."""


def is_of_host_family(spelling: str, setting: str) -> bool:
    """Whether someone who spells one setting like this also spells `setting` in the style of the family of `host`."""
    family = (*_HOST_FAMILY, *_ALSO_HOST_FAMILY) if setting == "address" else _HOST_FAMILY
    return spelling.lower().removeprefix("proxmox_").removesuffix("_file") in family


def suggest_setting(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A sentence to append: the known word that is near, or `otherwise`."""
    hint = suggest(word.lower(), map(str, known), otherwise, cutoff=0.6)
    return f" {hint}" if hint else ""
