"""What a service is doing, in the same words for systemd, OpenRC and Windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    manager: str
    """systemd, openrc or windows"""
    state: str
    """active, inactive, failed, activating, deactivating or reloading: systemd's words"""
    detail: str = ""
    """The manager's own word for it: running, exited, auto-restart, crashed …"""
    enabled: str = ""
    """Whether it starts with the system: enabled, disabled, or the manager's own word."""
    description: str = ""
    pid: int = 0
    since: str = ""
    result: str = ""
    """How its latest run ended, if not well."""
    busy: bool = False
    """The manager is still at work on it."""
    log: list[str] = field(default_factory=list)

    @property
    def told(self) -> str:
        return f"{self.state} ({self.detail})" if self.detail and self.detail != self.state else self.state

    @property
    def failed(self) -> bool:
        return self.state == "failed" or self.detail == "auto-restart" or bool(self.result)


_WANTED: dict[str, Callable[[Service], bool]] = {
    # What runs once and ends well is inactive afterwards, too.
    "start": lambda service: not service.failed and (service.state == "active" or service.manager == "systemd"),
    "restart": lambda service: not service.failed and (service.state == "active" or service.manager == "systemd"),
    "reload": lambda service: service.state in ("active", "reloading"),
    "stop": lambda service: service.state in ("inactive", "failed"),
    "enable": lambda service: service.enabled not in ("disabled", "masked", ""),
    "disable": lambda service: not service.enabled.startswith("enabled"),
}


def is_as_wanted(service: Service, action: str) -> bool:
    return _WANTED[action](service)
