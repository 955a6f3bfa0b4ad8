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


def home(variables: Mapping[str, str]) -> Path:
    return Path(variables["HOME"]) if variables.get("HOME") else Path.home()


def _standard_folder(variables: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Our folder by the XDG rules, which tell us to ignore a path that is not absolute."""
    base = Path(variables.get(variable, ""))
    return (base if base.is_absolute() else home(variables) / fallback) / "quorate"
