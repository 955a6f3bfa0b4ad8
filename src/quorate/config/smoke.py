"""Settings of the smoke test, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from quorate.config.settings import ConfigError
from quorate.config.sources import environment

YES = ("1", "true", "yes", "on")
MODES = ("snapshot", "suspend", "stop")
ACTIONS = ("start", "stop", "restart")


@dataclass(frozen=True, slots=True)
class SmokeSettings:
    """Without any of these the test only reads."""

    pool: str = "mcp-smoke"
    """Guests are created in this pool, and nothing outside it is deleted."""
    create: bool = False
    """Create a scratch container, start it, stop it and delete it."""
    backup_storage: str | None = None
    """Back the scratch container up to this storage."""
    backup_mode: str = "snapshot"
    rollback: bool = False
    """Roll the scratch container back to a snapshot."""
    source: int | None = None
    """Clone this VM, start the clone, wait for its address, stop and delete it."""
    target: int | None = None
    clone_name: str | None = None
    most_gib: int = 64
    allow_running: bool = False
    inside: int | None = None
    """Look at a service inside this guest."""
    service: str = "basic.target"
    service_action: str | None = None
    template_storage: str = "local"
    root_storage: str = "local-lvm"
    network_seconds: int = 120

    @property
    def makes_guests(self) -> bool:
        return self.create or self.source is not None


def read_smoke(environ: Mapping[str, str] | None = None) -> SmokeSettings:
    """Read the settings; raises a ConfigError if a required opt-in is missing."""
    given = _variables(environ)
    if not _is_set(given, "PROXMOX_ENABLE_LIVE_SMOKE"):
        raise ConfigError("A smoke test runs on your real cluster: set PROXMOX_ENABLE_LIVE_SMOKE=1 to allow it.")
    settings = smoke_settings(given)
    _require_opt_ins(settings, given)
    return settings


def smoke_settings(environ: Mapping[str, str] | None = None) -> SmokeSettings:
    """The settings, whether or not they are allowed."""
    given = _variables(environ)
    return SmokeSettings(
        pool=given.get("PROXMOX_SMOKE_POOL", "mcp-smoke"),
        create=_is_set(given, "PROXMOX_SMOKE_CREATE"),
        backup_storage=given.get("PROXMOX_SMOKE_BACKUP_STORAGE", "local") if _is_set(given, "PROXMOX_SMOKE_BACKUP")
        else None,
        backup_mode=_one_of(given, "PROXMOX_SMOKE_BACKUP_MODE", MODES) or "snapshot",
        rollback=_is_set(given, "PROXMOX_SMOKE_SNAPSHOT_ROLLBACK"),
        source=_number(given, "PROXMOX_SMOKE_QEMU_SOURCE_VMID"),
        target=_number(given, "PROXMOX_SMOKE_QEMU_TARGET_VMID"),
        clone_name=given.get("PROXMOX_SMOKE_QEMU_NAME"),
        most_gib=_number(given, "PROXMOX_SMOKE_QEMU_MAX_SOURCE_DISK_GB") or 64,
        allow_running=_is_set(given, "PROXMOX_SMOKE_QEMU_ALLOW_RUNNING_SOURCE"),
        inside=_number(given, "PROXMOX_SMOKE_SYSTEMD_VMID"),
        service=given.get("PROXMOX_SMOKE_SERVICE", "basic.target"),
        service_action=_one_of(given, "PROXMOX_SMOKE_SERVICE_ACTION", ACTIONS),
        template_storage=given.get("PROXMOX_SMOKE_TEMPLATE_STORAGE", "local"),
        root_storage=given.get("PROXMOX_SMOKE_ROOT_STORAGE", "local-lvm"),
        network_seconds=(_number(given, "PROXMOX_SMOKE_GUEST_NETWORK_TIMEOUT_MS") or 120_000) // 1000,
    )  # fmt: skip


def _variables(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return environment(os.environ if environ is None else environ).variables


def _require_opt_ins(settings: SmokeSettings, given: Mapping[str, str]) -> None:
    if settings.makes_guests and not _is_set(given, "PROXMOX_ENABLE_DESTRUCTIVE"):
        raise ConfigError(
            "The smoke test would create a guest that it may not delete: set PROXMOX_ENABLE_DESTRUCTIVE=1 as well."
        )
    if (settings.backup_storage or settings.rollback) and not settings.create:
        raise ConfigError("Backup and rollback are tried on the scratch container: set PROXMOX_SMOKE_CREATE=1 as well.")
    if settings.service_action and not _is_set(given, "PROXMOX_SMOKE_SERVICE_ACTION_CONFIRM"):
        raise ConfigError(
            f"The smoke test would {settings.service_action} {settings.service} in guest {settings.inside}: set "
            "PROXMOX_SMOKE_SERVICE_ACTION_CONFIRM=1 to allow it."
        )


def _is_set(given: Mapping[str, str], name: str) -> bool:
    return given.get(name, "").strip().lower() in YES


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name, "").strip()
    if text and not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ConfigError(f"{name} must be a whole number above 0.")
    return int(text) if text else None


def _one_of(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str | None:
    word = given.get(name, "").strip().lower()
    if word and word not in words:
        raise ConfigError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}.")
    return word or None
