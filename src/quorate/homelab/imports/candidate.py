"""A host described by another source, before it is registered."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Candidate:
    name: str
    address: str
    port: int | None = None
    user: str | None = None
    key: str | None = None
    jump: str | None = None
    """The name of another candidate, or of a registered host."""
    labels: tuple[str, ...] = ()
    login_configured: bool = True
    """False if the source relies on configured logins and there are none."""
    missing: list[str] = field(default_factory=list)
    """Reasons why it will not work here yet, such as options that cannot be imported."""
