"""The history of load, as numbers or as a chart."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import METRICS_TOP, OMITTED, Advice, ArgumentHint
from quorate.operations.argument_checks import refuse_combination
from quorate.operations.metrics import charts, numbers, series
from quorate.operations.metrics.series import Consolidation, Series, Timeframe
from quorate.operations.metrics.subjects import as_list, find_subjects
from quorate.operations.registry import GuestRefs, IllustratedFacts, Risk, Table, operation
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import gather_bounded

SUBJECTS_AT_MOST = 8
READS_AT_ONCE = 8


@operation(
    risk=Risk.READ,
    search_words="graph chart history load cpu memory traffic over time busy last night week day month trend",
    example="guest=docker01",
)
async def metrics_get(
    pve: Cluster,
    guest: GuestRefs | None = None,
    node: Annotated[str | list[str], Meta(description="With storage: its node")] | None = None,
    storage: Annotated[str | list[str], Meta(description="name or node/name")] | None = None,
    chart: Annotated[bool | Literal["svg"], Meta(description="Draw it; several are compared in one picture")] = False,
    show: Annotated[
        str | list[str], Meta(description="cpu, memory, disk, diskio, network, or fields such as netin, loadavg")
    ]
    | None = None,
    timeframe: Annotated[Timeframe, Meta(description="Default: hour, for a chart day")] | None = None,
    cf: Consolidation = "AVERAGE",
    points: Annotated[int, Meta(ge=0, le=300, description="Also return this many points")] = 0,
    timezone: Annotated[str, Meta(description="Of a chart: Europe/Berlin")] | None = None,
) -> Table | IllustratedFacts | dict[str, Any]:
    """Load of a guest, node or storage over time: min, mean, p95, max, last and trend per field, or a chart of it."""
    if chart:
        refuse_combination(
            ArgumentHint("chart", True),
            {"points": points or None},
            Advice("It is for numbers; leave {chart} out", chart=OMITTED),
        )
    else:
        refuse_combination("numbers", {"timezone": timezone}, Advice("It is for charts; give {chart}", chart=True))
    subjects = await find_subjects(pve, guest, node, storage)
    if len(subjects) > (SUBJECTS_AT_MOST if chart else 1):
        raise _too_many(len(subjects), chart=bool(chart))
    span = timeframe or ("day" if chart else "hour")
    found: list[Series] = await gather_bounded(
        READS_AT_ONCE, [partial(series.read, pve, subject, span, cf) for subject in subjects]
    )
    if chart:
        return await charts.draw_charts(found, span, cf, as_list(show), timezone, svg=chart == "svg")
    return numbers.table(found[0], span, cf, as_list(show), points)


def _too_many(count: int, *, chart: bool) -> BadArgument:
    if not chart:
        return BadArgument(
            f"Numbers are shown for one at a time, not for {count}",
            next_step=Advice("{chart} compares several", chart=True).then(
                Advice("find the guests that use most", METRICS_TOP), "; "
            ),
        )
    return BadArgument(
        f"{count} lines are too many to tell apart",
        next_step=Advice(f"Give at most {SUBJECTS_AT_MOST}; find the ones that matter", METRICS_TOP),
    )
