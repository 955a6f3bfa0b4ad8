"""Where our own files stand unless the operator says otherwise."""

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


def usual_pins(variables: Mapping[str, str] = os.environ) -> Path:
    """The SSH host keys that the operator has agreed to."""
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "known_hosts"


def usual_vault(variables: Mapping[str, str] = os.environ) -> Path:
    """Hosts' secrets, encrypted."""
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "secrets.json"


def usual_work(variables: Mapping[str, str] = os.environ) -> Path:
    """What Terraform and Ansible keep while and after they work."""
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "work"


def usual_scripts_index(variables: Mapping[str, str] = os.environ) -> Path:
    """The index of community scripts that was fetched."""
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "scripts.json"


def usual_secrets_folder(variables: Mapping[str, str] = os.environ) -> Path:
    return _standard_folder(variables, "XDG_CONFIG_HOME", ".config") / "secrets"


def usual_catalogue(variables: Mapping[str, str] = os.environ) -> Path:
    """The operator's own service templates."""
    return _standard_folder(variables, "XDG_CONFIG_HOME", ".config") / "services"


def home(variables: Mapping[str, str]) -> Path:
    return Path(variables["HOME"]) if variables.get("HOME") else Path.home()


def _standard_folder(variables: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Our folder by the XDG rules, which tell us to ignore a path that is not absolute."""
    base = Path(variables.get(variable, ""))
    return (base if base.is_absolute() else home(variables) / fallback) / "quorate"
