"""The map as PNG. Imported only when needed, because matplotlib is large and optional."""

from __future__ import annotations

import io
import threading
import warnings
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyBboxPatch
from PIL import Image

from quorate.homelab.map_drawing import Box, Dot, Picture, Words

_DPI = 100
_POINTS = 72 / _DPI
_STYLE: dict[Any, Any] = {"font.family": "DejaVu Sans", "text.parse_math": False}
_one_at_a_time = threading.Lock()  # matplotlib's settings are global


def png(picture: Picture) -> bytes:
    drawn = io.BytesIO()
    with _one_at_a_time, mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font does not have are drawn as boxes
        figure = Figure(figsize=(picture.width / _DPI, picture.height / _DPI), dpi=_DPI)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, picture.width)
        axes.set_ylim(picture.height, 0)
        for depth, shape in enumerate(picture.shapes):
            if isinstance(shape, Box):
                style = f"round,pad=0,rounding_size={min(shape.radius, shape.width / 2)}"
                axes.add_patch(
                    FancyBboxPatch(
                        (shape.x, shape.y), shape.width, shape.height, boxstyle=style, facecolor=shape.fill,
                        edgecolor=shape.edge, linewidth=0.9, zorder=depth,
                        linestyle=(0, (5, 3)) if shape.dashed else "-",
                    )
                )  # fmt: skip
            elif isinstance(shape, Words):
                axes.text(
                    shape.x, shape.y, shape.text, fontsize=shape.size * _POINTS, color=shape.color, zorder=depth,
                    fontweight="bold" if shape.bold else "normal", ha="right" if shape.right else "left", va="baseline",
                )  # fmt: skip
            elif isinstance(shape, Dot):
                axes.add_patch(Circle((shape.x, shape.y), shape.radius, color=shape.color, linewidth=0, zorder=depth))
            else:
                xs, ys = zip(*shape.points, strict=True)
                axes.add_line(Line2D(xs, ys, color=shape.color, linewidth=shape.width * _POINTS, zorder=depth))
        figure.savefig(drawn, format="png")
    small = io.BytesIO()
    few = Image.open(drawn).convert("RGB").quantize(palette=_palette(picture), dither=Image.Dither.NONE)
    few.save(small, format="PNG", optimize=True)
    return small.getvalue()


def _palette(picture: Picture) -> Image.Image:
    """The picture's colors, each in steps to white for smooth edges: a third of the size."""
    names = dict.fromkeys(
        name
        for shape in picture.shapes
        for name in ((shape.fill, shape.edge) if isinstance(shape, Box) else (shape.color,))
        if name != "none"
    )
    steps = max(1, 256 // len(names))
    mixed = [
        round(255 + (part - 255) * (steps - step) / steps)
        for name in list(names)[:256]
        for step in range(steps)
        for part in bytes.fromhex(name[1:])
    ]
    palette = Image.new("P", (1, 1))
    palette.putpalette(mixed)
    return palette
