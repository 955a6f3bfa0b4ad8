"""Options of guests: their stored form, CPU models and machine types."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from pve_schema.cpu_models import MODELS
from pve_schema.schema import facts
from pve_schema.validation import text_of
from pve_simulator.cluster.datacenter import Datacenter, shown_option
from pve_simulator.guests import drives
from pve_simulator.guests.guest import Kind, Value
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, failure
from pve_simulator.world import World

# Parameters of the endpoints that are not configuration options.
_ABOUT_THE_CALL = frozenset(
    split_list(
        "node vmid digest delete revert force skiplock background_delay import-working-storage archive storage"
        " bwlimit pool start unique live-restore ha-managed ostemplate restore password ssh-public-keys"
        " ignore-unpack-errors"
    )
)
_HIGHEST_CPU_WEIGHT = 10000  # of cgroup v2; v1 allows more
_NUMBER_AT_END = re.compile(r"\d+$")
_ENCRYPTED = re.compile(r"\$(?:[156]|2[ay])(\$.+){2}")
_KEY_TYPES = split_list(
    "ssh-rsa ssh-dss ssh-ed25519 ecdsa-sha2-nistp256 ecdsa-sha2-nistp384 ecdsa-sha2-nistp521"
    " sk-ssh-ed25519@openssh.com sk-ecdsa-sha2-nistp256@openssh.com"
)
CLOUDINIT_OPTIONS = frozenset(
    ["cicustom", "cipassword", "citype", "ciuser", "ciupgrade", "nameserver", "searchdomain", "sshkeys"]
)


def option_exists(world: World, kind: Kind, key: str) -> bool:
    """Whether there is such an option."""
    return key in _options(world.version, kind) or _NUMBER_AT_END.sub("[n]", key) in _options(world.version, kind)


@cache
def _options(version: str, kind: Kind) -> frozenset[str]:
    endpoint = facts(version).endpoint("PUT", f"/nodes/{{node}}/{kind}/{{vmid}}/config")
    known = frozenset(endpoint.parameters) - _ABOUT_THE_CALL
    return known | ({"vmstate", "meta", "parent", "snaptime"} if kind == "qemu" else {"parent", "snaptime"})


def settings_of(params: Mapping[str, Any]) -> dict[str, Value]:
    """The options among the parameters of a call, as values of the configuration."""
    return {key: encode_option(value) for key, value in params.items() if key not in _ABOUT_THE_CALL}


def encode_option(value: Any) -> Value:
    """Integers stay numbers, booleans become 1 and 0, everything else is text."""
    return int(value) if isinstance(value, bool | int) else text_of(value)


def is_cloudinit_option(key: str) -> bool:
    return key in CLOUDINIT_OPTIONS or (key.startswith("ipconfig") and key[8:].isdecimal())


def complete(world: World, kind: Kind, vmid: int, key: str, value: Value) -> Value:
    """The stored value of options that PVE rewrites; drives are completed when created."""
    if drives.is_net(key):
        return drives.complete_net(world, kind, vmid, key, str(value))
    if key == "tags":
        return unique_tags(world, str(value))
    if key == "description":
        return normalize_description(kind, str(value))
    if key == "cpuunits":
        return min(int(value), _HIGHEST_CPU_WEIGHT)
    if key == "vmgenid" and value == "1":
        return drives.new_uuid(world, vmid, "vmgenid")
    if key == "cipassword":
        return hash_password(str(value))
    return value


def unique_tags(world: World, text: str) -> str:
    """Each tag once: lowercase and sorted, unless the datacenter's tag style differs."""
    options = world.part(Datacenter).options
    style = shown_option("tag-style", options["tag-style"]) if "tag-style" in options else {}
    tags = [tag if style.get("case-sensitive") else tag.lower() for tag in split_list(text)]
    return ";".join(dict.fromkeys(tags if style.get("ordering") == "config" else sorted(tags)))


def normalize_description(kind: Kind, text: str) -> str:
    """Notes as PVE returns them: a container's end with a newline, a VM's do not."""
    stripped = text.rstrip()
    return f"{stripped}\n" if kind == "lxc" and stripped else stripped


def hash_password(password: str) -> str:
    """Hash a password, unless it already is a hash."""
    if _ENCRYPTED.match(password):
        return password
    digest = hashlib.sha256(password.encode()).digest()
    return f"$5${digest[:6].hex()}${base64.b64encode(digest, b'./').decode().rstrip('=')}"


def check_cpu_model(world: World, cpu: object) -> None:
    """Refuse custom CPU models that do not exist."""
    model = str(cpu or "").split(",")[0].removeprefix("cputype=")
    name = model.removeprefix("custom-")
    if name != model and name not in world.part(Datacenter).cpu_models.sections:
        missing = f"Custom cputype '{name}' not found"
        raise bad_parameters({"cpu": f"invalid format - {missing}\n"})


def check_encoded_ssh_keys(sshkeys: object) -> None:
    """Refuse invalid SSH keys for cloud-init; the parameter is percent-encoded twice."""
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


# CPU flags that can be set for a VM, with descriptions.
_FLAGS = {
    "nested-virt": "Nested virtualization: svm on AMD, vmx on Intel. Migration needs the same flag on both sides.",
    "md-clear": "Lets the guest know whether MDS is mitigated.",
    "pcid": "Makes the Meltdown fix cheaper on Westmere, Sandy Bridge and Ivy Bridge.",
    "spec-ctrl": "Allows better Spectre mitigation with Intel CPUs.",
    "ssbd": "Protection against Speculative Store Bypass for Intel models.",
    "ibpb": "Allows better Spectre mitigation with AMD CPUs.",
    "virt-ssbd": "Basis of the protection against Speculative Store Bypass for AMD models.",
    "amd-ssbd": "Makes that protection cheaper with AMD CPUs; best with virt-ssbd.",
    "amd-no-ssb": "Tells the guest that the host is not vulnerable.",
    "pdpe1gb": "Lets the guest use pages of 1 GB, if the host has them.",
    "hv-tlbflush": "Better performance of overcommitted Windows guests.",
    "hv-evmcs": "Better performance of nested virtualization, on Intel only.",
    "aes": "The AES instruction set.",
}

_NEWEST_MACHINE = (10, 1)
_OLDEST_MACHINE = {"i440fx": (1, 4), "q35": (2, 4)}
# PVE's own revisions on top of QEMU's machine versions.
_OWN_VERSIONS = {
    "9.2": {"9.2+pve1": "Disables High Precision Event Timer for Windows guests."},
    "4.1": {
        "4.1+pve2": "Increases the number of SCSI drives supported.",
        "4.1+pve1": "Introduction of pveX versioning, no changes.",
    },
}
_LAST_MINOR = {1: 7, 2: 12, 3: 1, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 1}


def cpu_models() -> list[dict[str, Any]]:
    return [{"name": name, "vendor": vendor, "custom": 0} for vendor, names in MODELS.items() for name in names.split()]


def vendor(model: str) -> str:
    return next((vendor for vendor, names in MODELS.items() if model in names.split()), "default")


def cpu_flags() -> list[dict[str, str]]:
    return [{"name": name, "description": text} for name, text in _FLAGS.items()]


def machine_types() -> list[dict[str, str]]:
    """Both chipsets, newest first."""
    rows = []
    for major in range(_NEWEST_MACHINE[0], 0, -1):
        for minor in range(_LAST_MINOR[major], -1, -1):
            version = f"{major}.{minor}"
            kinds = [kind for kind, oldest in _OLDEST_MACHINE.items() if oldest <= (major, minor)]
            for own, changes in _OWN_VERSIONS.get(version, {}).items():
                rows += [_machine(kind, own) | {"changes": changes} for kind in kinds]
            rows += [_machine(kind, version) for kind in kinds]
    return rows


def _machine(kind: str, version: str) -> dict[str, str]:
    return {"id": f"pc-{kind}-{version}", "type": kind, "version": version}
