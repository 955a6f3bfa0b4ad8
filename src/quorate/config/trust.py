"""How a cluster's certificate is trusted: by the system's CAs, a CA file, a fingerprint, or not checked."""

from __future__ import annotations

import re

from quorate.config.raw import RawSetting, RawSettings, highest_rank, strongest
from quorate.config.settings import ConfigError
from quorate.config.values import as_flag, as_path, as_text, require_agreement
from quorate.pve.connection import Trust


def read_trust(found: RawSettings) -> Trust:
    verify = found.get("verify", [])
    ca_files = [*found.get("ca_file", []), *(given for given in verify if _is_path(given))]
    pins = strongest([*ca_files, *found.get("fingerprint", [])])
    if verify and not require_agreement(verify, _verifies):
        if highest_rank(pins) < highest_rank(verify):
            return Trust(verify=False)
        if highest_rank(pins) == highest_rank(verify):
            raise ConfigError(
                f"{verify[0].label} disables certificate checks, but {pins[0].label} requires one: "
                "keep only one of them."
            )
    ca_files = [pin for pin in pins if pin in ca_files]
    fingerprints = [pin for pin in pins if pin not in ca_files]
    return Trust(
        ca_file=require_agreement(ca_files, _existing_file) if ca_files else None,
        fingerprint=require_agreement(fingerprints, _fingerprint) if fingerprints else None,
    )


def _is_path(verify: RawSetting) -> bool:
    return verify.spelling != "PROXMOX_TLS_INSECURE" and as_flag(verify) is None


def _verifies(given: RawSetting) -> bool:
    flag = as_flag(given)
    if given.spelling != "PROXMOX_TLS_INSECURE":
        return flag is not False
    if flag is None:
        raise ConfigError(f"{given.label} must be true or false.")
    return not flag


def _existing_file(given: RawSetting) -> str:
    path = as_path(given)
    if not path.is_file():
        names_a_file = given.spelling.lower().endswith("ca_file")
        what = "the path of a CA file" if names_a_file else "true, false or a CA file"
        raise ConfigError(f"{given.label} must be {what}, but {path} does not exist.")
    return str(path)


def _fingerprint(given: RawSetting) -> str:
    return as_fingerprint(as_text(given), given.label)


def as_fingerprint(text: str, label: str) -> str:
    # The output of openssl may be pasted whole: "sha256 Fingerprint=AB:CD:..."
    digits = text.strip().rpartition("=")[2].replace(":", "").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise ConfigError(f"{label} must be a SHA-256 fingerprint, 64 hexadecimal digits with or without colons.")
    return digits
