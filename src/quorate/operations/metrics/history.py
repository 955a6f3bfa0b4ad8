"""The history of load, as numbers or as a chart."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from msgspec import Meta

from quorate.operations.metrics import charts, numbers, series
from quorate.operations.metrics.series import Consolidation, Series, Timeframe
from quorate.operations.metrics.subjects import chosen, listed
from quorate.operations.misplaced import refuse_beside
from quorate.operations.registry import GuestRefs, Illustrated, Risk, Table, operation
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument
from quorate.pve.tasks import gather_bounded

SUBJECTS_AT_MOST = 8
READS_AT_ONCE = 8


@operation(risk=Risk.READ)
async def metrics_get(
    pve: Cluster,
    guest: GuestRefs | None = None,
    node: Annotated[str | list[str], Meta(description="Beside storage: whose")] | None = None,
    storage: Annotated[str | list[str], Meta(description="name or node/name")] | None = None,
    chart: Annotated[bool, Meta(description="Draw it; several are compared in one picture")] = False,
    show: Annotated[
        str | list[str], Meta(description="cpu, memory, disk, diskio, network, or fields such as netin, loadavg")
    ]
    | None = None,
    timeframe: Annotated[Timeframe, Meta(description="Default hour, of a chart day; decade: nodes only")] | None = None,
    cf: Consolidation = "AVERAGE",
    points: Annotated[int, Meta(ge=0, le=300, description="Also this many points, thinned")] = 0,
    timezone: Annotated[str, Meta(description="Of a chart, such as Europe/Berlin; default: the server's")]
    | None = None,
) -> Table | Illustrated:
    """Load of a guest, node or storage over time: min, mean, p95, max, last and trend per field, or a chart of it."""
    if chart:
        refuse_beside("chart=true", {"points": points or None}, "It is for numbers; leave chart out")
    else:
        refuse_beside("numbers", {"timezone": timezone}, "It is for charts; give chart=true")
    subjects = await chosen(pve, guest, node, storage)
    if len(subjects) > (SUBJECTS_AT_MOST if chart else 1):
        raise _too_many(len(subjects), chart=chart)
    span = timeframe or ("day" if chart else "hour")
    found: list[Series] = await gather_bounded(
        READS_AT_ONCE, [partial(series.read, pve, subject, span, cf) for subject in subjects]
    )
    if chart:
        return await charts.illustrated(found, span, cf, listed(show), timezone)
    return numbers.table(found[0], span, cf, listed(show), points)


def _too_many(count: int, *, chart: bool) -> BadArgument:
    if not chart:
        return BadArgument(
            f"Numbers are told of one at a time, not of {count}",
            next_step="chart=true compares several; metrics_top finds the guests that use most",
        )
    return BadArgument(
        f"{count} lines are too many to tell apart",
        next_step=f"Give at most {SUBJECTS_AT_MOST}; metrics_top finds the ones that matter",
    )
