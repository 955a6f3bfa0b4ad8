"""The state of a service, in the same words for every service manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quorate.hints import see, tools
from quorate.problems import NotFound


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    manager: str
    """systemd, openrc, runit, s6, init (scripts) or windows"""
    state: str
    """active, inactive, failed, activating, deactivating or reloading: systemd's words"""
    detail: str = ""
    """The manager's own word: running, exited, auto-restart, crashed …"""
    enabled: str = ""
    """enabled or disabled at the start of the system, or the manager's own word."""
    description: str = ""
    pid: int = 0
    since: str = ""
    result: str = ""
    """How its latest run ended, if it failed."""
    busy: bool = False
    """Whether the manager is still changing its state."""
    log: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        return f"{self.state} ({self.detail})" if self.detail and self.detail != self.state else self.state

    @property
    def failed(self) -> bool:
        return self.state == "failed" or self.detail == "auto-restart" or bool(self.result)


_REACHED: dict[str, Callable[[Service], bool]] = {
    # A unit that runs once and succeeds is inactive afterwards, too.
    "start": lambda service: not service.failed and (service.state == "active" or service.manager == "systemd"),
    "restart": lambda service: not service.failed and (service.state == "active" or service.manager == "systemd"),
    "reload": lambda service: service.state in ("active", "reloading"),
    "stop": lambda service: service.state in ("inactive", "failed"),
    "enable": lambda service: service.enabled not in ("disabled", "masked", ""),
    "disable": lambda service: not service.enabled.startswith("enabled"),
}


def has_taken_effect(service: Service, action: str) -> bool:
    return _REACHED[action](service)


def no_service(name: str) -> NotFound:
    return NotFound(
        f"There is no service {name!r}", next_step=see("List the services", tools.host_service, tools.guest_service)
    )
