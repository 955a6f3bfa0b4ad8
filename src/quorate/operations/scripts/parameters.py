"""What the operations on community scripts have in common."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.scripts.index import REFRESH, Index, current
from quorate.operations.units import duration

ScriptName = Annotated[str, Meta(description="As script_search names it, or ct/NAME.sh")]


def index_of(home: Homelab) -> Index:
    return current(home.settings.scripts_index)


def provenance(home: Homelab, index: Index) -> dict[str, Any]:
    """How old the index is: what it says of a script may have changed."""
    if index.taken is None:
        return {"index": f"the package's own, which knows a part of the scripts; {REFRESH}"}
    return {"index": f"fetched {duration(max(0.0, home.clock.time() - index.taken))} ago"}
