"""A host as another place describes it, before it is registered."""

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
    """False where its source takes logins from the configuration, which has none."""
    missing: list[str] = field(default_factory=list)
    """What the source says or does not say that keeps it from working here."""
