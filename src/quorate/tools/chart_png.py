"""Draw charts: panels of lines over time as one PNG.

Only this module knows matplotlib, which is large and optional; it is imported for the first chart.
"""

from __future__ import annotations

import datetime
import io
import threading
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from quorate.tools.charts import Chart, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Safe for color-blind readers (Okabe and Ito), without the yellow that vanishes on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195", "#333333")
_GRAY = "#777777"
_DASHED = (0, (4, 1.6))

_WIDTH, _PANEL_HEIGHT, _FRAME_HEIGHT, _DPI = 10.0, 2.3, 0.9, 100
_PALETTE = 96
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so charts look the same everywhere
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "text.parse_math": False,  # names may contain a dollar sign
}
# For ticks that are years, months, days, hours, minutes or seconds apart: their label, the label of the first one of a
# year, month, day and so on, and the label next to the axis.
_TICKS = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
_FIRST_TICKS = ["%Y", "%b\n%Y", "%d %b", "%d %b", "%H:%M", "%H:%M:%S"]
_OFFSET_TICKS = ["", "", "%Y", "%d %b %Y", "%d %b %Y", "%d %b %Y"]
_one_at_a_time = threading.Lock()  # matplotlib's settings are global


def draw(chart: Chart, *, svg: bool = False) -> bytes:
    """The chart as PNG or SVG."""
    with _one_at_a_time, mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _FRAME_HEIGHT + _PANEL_HEIGHT * len(chart.panels)), dpi=_DPI)
        figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
        figure.suptitle(chart.title, fontsize=12, fontweight="bold")
        axes = figure.subplots(len(chart.panels), 1, sharex=True, squeeze=False)[:, 0]
        for place, panel in zip(axes, chart.panels, strict=True):
            _draw_panel(place, panel, chart.zone)
        _time_axis(axes[-1], chart)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg" if svg else "png", metadata={"Date": None} if svg else None)
    return drawn.getvalue() if svg else _smaller(drawn)


def _smaller(drawn: io.BytesIO) -> bytes:
    """A chart has few colors: a palette reduces it to a third of the size."""
    picture = io.BytesIO()
    Image.open(drawn).convert("RGB").quantize(_PALETTE).save(picture, format="PNG", optimize=True)
    return picture.getvalue()


def _draw_panel(axes: Axes, panel: Panel, zone: datetime.tzinfo) -> None:
    for line in panel.lines:
        axes.plot(
            [datetime.datetime.fromtimestamp(time, zone) for time in line.times],  # type: ignore[arg-type]
            line.values,
            color=COLORS[line.color % len(COLORS)],
            linestyle=_DASHED if line.dashed else "-",
            linewidth=1.3,
            solid_joinstyle="round",
        )
    if panel.limit is not None:
        axes.axhline(panel.limit[1], color=_GRAY, linestyle=":", linewidth=1.1)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.set_ylabel(panel.unit)
    has_height = panel.limit is not None or any(value > 0 for line in panel.lines for value in line.values)
    axes.set_ylim(bottom=0, top=None if has_height else 1)
    axes.margins(x=0.01)
    _legend(axes, panel)


def _legend(axes: Axes, panel: Panel) -> None:
    """Next to the panel, where it never hides a line."""
    handles = [
        Line2D([], [], color=COLORS[line.color % len(COLORS)], linestyle=_DASHED if line.dashed else "-")
        for line in panel.lines
    ]
    labels = [line.label for line in panel.lines]
    if panel.limit is not None:
        handles.append(Line2D([], [], color=_GRAY, linestyle=":"))
        labels.append(panel.limit[0])
    axes.legend(
        handles,
        labels,
        title=panel.legend_title,
        title_fontsize=8,
        alignment="left",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.09),
        frameon=False,
        fontsize=8,
        handlelength=2.2,
        labelspacing=0.35,
    )


def _time_axis(axes: Axes, chart: Chart) -> None:
    locator = AutoDateLocator(tz=chart.zone, minticks=5, maxticks=11)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(  # type: ignore[no-untyped-call]
            locator, tz=chart.zone, formats=_TICKS, zero_formats=_FIRST_TICKS, offset_formats=_OFFSET_TICKS
        )
    )
    begin, end = (datetime.datetime.fromtimestamp(time, chart.zone) for time in chart.span)
    axes.set_xlim(begin, end)  # type: ignore[arg-type]
    axes.set_xlabel(chart.zone_label)
