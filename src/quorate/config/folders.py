"""Default locations of Quorate's own files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def usual_config_file(variables: Mapping[str, str]) -> Path:
    return _standard_folder(variables, "XDG_CONFIG_HOME", ".config") / "config.toml"


def usual_audit_file(variables: Mapping[str, str] = os.environ) -> Path:
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "audit.jsonl"


def usual_state(variables: Mapping[str, str] = os.environ) -> str:
    return str(_standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "state.sqlite")


def usual_cache(variables: Mapping[str, str] = os.environ) -> Path:
    """Caches, which may be deleted."""
    return _standard_folder(variables, "XDG_CACHE_HOME", ".cache")


def usual_pins(variables: Mapping[str, str] = os.environ) -> Path:
    """Trusted SSH host keys."""
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "known_hosts"


def usual_vault(variables: Mapping[str, str] = os.environ) -> Path:
    """Encrypted host secrets."""
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "secrets.json"


def usual_work(variables: Mapping[str, str] = os.environ) -> Path:
    """Work folders of Terraform and Ansible."""
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "work"


def usual_scripts_index(variables: Mapping[str, str] = os.environ) -> Path:
    """The fetched index of community scripts."""
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "scripts.json"


def usual_secrets_folder(variables: Mapping[str, str] = os.environ) -> Path:
    return _standard_folder(variables, "XDG_CONFIG_HOME", ".config") / "secrets"


def usual_catalogue(variables: Mapping[str, str] = os.environ) -> Path:
    """The operator's own service templates."""
    return _standard_folder(variables, "XDG_CONFIG_HOME", ".config") / "services"


def home(variables: Mapping[str, str]) -> Path:
    return Path(variables["HOME"]) if variables.get("HOME") else Path.home()


def _standard_folder(variables: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Our folder by the XDG rules, which ignore relative paths."""
    base = Path(variables.get(variable, ""))
    return (base if base.is_absolute() else home(variables) / fallback) / "quorate"
