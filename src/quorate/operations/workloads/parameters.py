"""What the operations on workloads have in common."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quorate.homelab.workloads.model import EngineName

Name = Annotated[str, Meta(description="Name of the workload")]
EngineChoice = Annotated[EngineName, Meta(description="Needed only where the host has several")]
