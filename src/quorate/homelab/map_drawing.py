"""Lays out the network map as a picture, and writes it as SVG.

The layout needs no drawing library: it consists of rectangles, lines, dots and words, which SVG and PNG can both show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from quorate.homelab.devices.sitemap import MapDevice, Segment, Sitemap

MAX_DEVICES = 300
MAX_GUESTS = 60
"""Guests shown per hypervisor."""

# Distinguishable for color-blind people, too (Okabe and Ito).
ROLE_COLORS = {
    "router": "#7A5195", "hypervisor": "#D55E00", "host": "#0072B2", "guest": "#009E73", "device": "#8A8F98",
}  # fmt: skip
STATE_COLORS = {"up": "#2E9E4F", "away": "#C8202F", "stopped": "#B5BAC2", "retired": "#B5BAC2", "unknown": "#B5BAC2"}
_INK, _FAINT, _PAPER, _LANE, _EDGE = "#1F2933", "#66707C", "#FFFFFF", "#F4F6F9", "#D5DAE1"

_WIDTH, _MARGIN, _SPINE = 1400.0, 28.0, 44.0
_CARD_WIDTH, _CARD_HEIGHT, _GAP, _PAD = 240.0, 66.0, 12.0, 18.0
_LANE_HEAD, _TITLE_HEIGHT, _FOOT = 46.0, 74.0, 46.0
_CHIP_HEIGHT, _CHIP_GAP, _BLOCK_HEAD = 42.0, 8.0, 64.0
_LANE_X = _MARGIN + _SPINE
_LANE_WIDTH = _WIDTH - _MARGIN - _LANE_X
_INNER = _LANE_WIDTH - 2 * _PAD
_COLUMNS = int((_INNER + _GAP) // (_CARD_WIDTH + _GAP))
_CARD = (_INNER - (_COLUMNS - 1) * _GAP) / _COLUMNS
_BLOCK_COLUMNS, _CHIP_COLUMNS = 2, 3
_BLOCK = (_INNER - _GAP) / _BLOCK_COLUMNS


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = "none"
    radius: float = 6.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    x: float
    y: float
    """The y of the baseline."""
    text: str
    size: float = 12.0
    color: str = _INK
    bold: bool = False
    right: bool = False
    """The text ends at x instead of starting there."""


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    color: str
    radius: float = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    points: tuple[tuple[float, float], ...]
    color: str = _FAINT
    width: float = 2.0
    dashed: bool = False


Shape = Box | Words | Dot | Line


@dataclass
class Picture:
    title: str
    width: float = _WIDTH
    height: float = 0.0
    shapes: list[Shape] = field(default_factory=list)


def draw_map(map_: Sitemap, title: str, subtitle: str) -> Picture:
    """One lane for each segment, from top to bottom; the line on the left connects those with a router."""
    picture = Picture(title)
    picture.shapes += [
        Words(_MARGIN, _MARGIN + 20, fit_text(title, _WIDTH - 2 * _MARGIN - 420, 22, bold=True), 22, bold=True),
        Words(_MARGIN, _MARGIN + 40, subtitle, 12.5, _FAINT),
        *_legend(),
    ]
    y = _MARGIN + _TITLE_HEIGHT
    joined: list[float] = []
    for segment in map_.segments:
        if segment.gateways or any(device.role == "router" for device in (*segment.devices, *segment.visitors)):
            joined.append(y + _LANE_HEAD / 2)
        y = _lane(picture, y, _head(segment), segment) + _GAP + 6
    if map_.unplaced:
        y = _lane(picture, y, ("No address known", ""), Segment("", devices=map_.unplaced)) + _GAP + 6
    _spine(picture, joined)
    picture.height = y + _FOOT - 30
    return picture


def _head(segment: Segment) -> tuple[str, str]:
    inside = [
        guest
        for spot in segment.devices
        for guest in spot.guests
        if not guest.address or guest.address_in(segment.network)
    ]
    count = len(segment.devices) + len(segment.visitors) + len(inside)
    parts = [f"{count} device{'' if count == 1 else 's'}"]
    parts += [f"gateway {', '.join(segment.gateways)}"] if segment.gateways else []
    parts += ["prefix assumed"] if segment.assumed else []
    return segment.network, " · ".join(parts)


def _lane(picture: Picture, top: float, head: tuple[str, str], segment: Segment) -> float:
    """Draw a lane with everything in it; returns the y where it ends."""
    at = len(picture.shapes)
    x, y = _LANE_X + _PAD, top + _LANE_HEAD
    cards = sorted(
        [
            *((device, "") for device in segment.devices if not device.guests),
            *((device, segment.network) for device in segment.visitors),
        ],
        key=lambda card: card[0].role != "router",
    )
    for number, (spot, visited) in enumerate(cards):
        row, column = divmod(number, _COLUMNS)
        _card(picture, x + column * (_CARD + _GAP), y + row * (_CARD_HEIGHT + _GAP), spot, visited)
    y += -(-len(cards) // _COLUMNS) * (_CARD_HEIGHT + _GAP)
    ends = [y] * _BLOCK_COLUMNS
    for spot in sorted((device for device in segment.devices if device.guests), key=lambda device: -len(device.guests)):
        column = ends.index(min(ends))
        ends[column] = _block(picture, x + column * (_BLOCK + _GAP), ends[column], spot) + _GAP
    bottom = max(ends) + _PAD - _GAP
    picture.shapes[at:at] = [
        Box(_LANE_X, top, _LANE_WIDTH, bottom - top, _LANE, _EDGE, 10),
        Words(_LANE_X + _PAD, top + 29, head[0], 16, bold=True),
        Words(_LANE_X + _LANE_WIDTH - _PAD, top + 29, head[1], 12.5, _FAINT, right=True),
    ]
    return bottom


def _card(picture: Picture, x: float, y: float, spot: MapDevice, visited: str = "") -> None:
    """`visited` is a further segment in which it has an address."""
    there = spot.state in ("up", "unknown")
    color = ROLE_COLORS[spot.role]
    room = _CARD - 50
    address = spot.address_in(visited) if visited else spot.address or "no address known"
    if address == spot.name:
        address = spot.mac or "no name known"
    first = (
        f"{address} · {spot.containers} container{'' if spot.containers == 1 else 's'}" if spot.containers else address
    )
    elsewhere = visited and spot.address != address
    second = f"also {spot.address}" if elsewhere else " · ".join(filter(None, (spot.system, *_size(spot)))) or spot.role
    picture.shapes += [
        Box(
            x,
            y,
            _CARD,
            _CARD_HEIGHT,
            _PAPER,
            _EDGE if there else STATE_COLORS["away"],
            7,
            dashed=bool(visited) or not there,
        ),
        Box(x, y + 8, 5, _CARD_HEIGHT - 16, color, radius=2),
        Words(x + 17, y + 23, fit_text(spot.name, room, 13.5, bold=True), 13.5, _INK if there else _FAINT, bold=True),
        Words(x + 17, y + 40, fit_text(first, room, 11.5), 11.5, _INK if there else _FAINT),
        Words(x + 17, y + 56, fit_text(second, room + 16, 11), 11, _FAINT),
        Dot(x + _CARD - 17, y + 18, STATE_COLORS[spot.state]),
    ]


def _block(picture: Picture, x: float, y: float, spot: MapDevice) -> float:
    """Draw a hypervisor around its guests; returns the y where it ends."""
    shown = spot.guests[:MAX_GUESTS]
    more = len(spot.guests) - len(shown)
    rows = -(-(len(shown) + bool(more)) // _CHIP_COLUMNS)
    height = _BLOCK_HEAD + rows * (_CHIP_HEIGHT + _CHIP_GAP) + 6
    running = sum(guest.state == "up" for guest in spot.guests)
    details = " · ".join(filter(None, (spot.address, spot.system, *_size(spot))))
    there = spot.state == "up"
    picture.shapes += [
        Box(x, y, _BLOCK, height, _PAPER, _EDGE if there else STATE_COLORS["away"], 7, dashed=not there),
        Box(x, y + 10, 5, height - 20, ROLE_COLORS[spot.role], radius=2),
        Words(x + 18, y + 26, fit_text(spot.name, _BLOCK - 240, 15, bold=True), 15, bold=True),
        Words(x + 18, y + 46, fit_text(details, _BLOCK - 60, 11.5), 11.5, _FAINT),
        Words(x + _BLOCK - 34, y + 26, f"{running} of {len(spot.guests)} guests running", 11.5, _FAINT, right=True),
        Dot(x + _BLOCK - 19, y + 22, STATE_COLORS[spot.state]),
    ]
    width = (_BLOCK - 36 - (_CHIP_COLUMNS - 1) * _CHIP_GAP) / _CHIP_COLUMNS
    for number in range(len(shown) + bool(more)):
        row, column = divmod(number, _CHIP_COLUMNS)
        at = (x + 18 + column * (width + _CHIP_GAP), y + _BLOCK_HEAD - 4 + row * (_CHIP_HEIGHT + _CHIP_GAP))
        if number < len(shown):
            _chip(picture, *at, width, shown[number])
        else:
            picture.shapes.append(Words(at[0] + 8, at[1] + 25, f"and {more} more", 11.5, _FAINT))
    return y + height


def _chip(picture: Picture, x: float, y: float, width: float, guest: MapDevice) -> None:
    there = guest.state == "up"
    details = " · ".join(filter(None, (guest.address, *_size(guest)))) or guest.state
    picture.shapes += [
        Box(x, y, width, _CHIP_HEIGHT, "#EFF7F4" if there else "#F3F4F6", "#BFE0D4" if there else _EDGE, 5),
        Words(
            x + 10, y + 18, fit_text(guest.name, width - 34, 12, bold=True), 12, _INK if there else _FAINT, bold=True
        ),
        Words(x + 10, y + 34, fit_text(details, width - 16, 10.5), 10.5, _FAINT),
        Dot(x + width - 13, y + 13, STATE_COLORS[guest.state], 4),
    ]


def _size(spot: MapDevice) -> Iterator[str]:
    if spot.cores:
        yield f"{spot.cores} core{'' if spot.cores == 1 else 's'}"
    if spot.memory:
        yield f"{spot.memory / 2**30:.0f} GiB" if spot.memory >= 2**30 else f"{spot.memory / 2**20:.0f} MiB"


def _spine(picture: Picture, joined: list[float]) -> None:
    if not joined:
        return
    x, color = _MARGIN + 12, ROLE_COLORS["router"]
    picture.shapes.append(Line(((x, joined[0]), (x, joined[-1])), color, 3))
    for y in joined:
        picture.shapes += [Line(((x, y), (_LANE_X, y)), color, 3), Dot(x, y, color, 6)]


def _legend() -> Iterator[Shape]:
    for row, names in enumerate((tuple(ROLE_COLORS), ("up", "away", "stopped"))):
        x = _WIDTH - _MARGIN - sum(_width(name, 12) + 26 for name in names) + 10
        y = _MARGIN + 14 + row * 22
        for name in names:
            yield Dot(x, y - 4, STATE_COLORS[name]) if row else Box(x - 2, y - 10, 5, 12, ROLE_COLORS[name], radius=2)
            yield Words(x + 10, y, name, 12, _FAINT)
            x += _width(name, 12) + 26


# -- text metrics ------------------------------------------------------------------------------------------------------

_NARROW, _WIDE = "iljtfrI.,:;'|!()[] ·-", "mwMW@%"


def _width(text: str, size: float, *, bold: bool = False) -> float:
    """The approximate width in a common sans-serif font."""
    ems = sum(
        0.36 if letter in _NARROW else 0.95 if letter in _WIDE else 1.0 if ord(letter) > 0x2E7F else 0.62
        for letter in text
    )
    return ems * size * (1.17 if bold else 1.0)


def fit_text(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """The text on one line, without invisible characters, cut to fit."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    if _width(plain, size, bold=bold) <= room:
        return plain
    while plain and _width(plain + "…", size, bold=bold) > room:
        plain = plain[:-1]
    return plain.rstrip() + "…"


# -- as SVG ------------------------------------------------------------------------------------------------------------


def render_svg(picture: Picture) -> str:
    width, height = picture.width, picture.height
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="DejaVu Sans, Verdana, sans-serif" role="img">',
        f"<title>{escape(fit_text(picture.title, 1000, 12))}</title>",
        f'<rect width="{width:g}" height="{height:g}" fill="{_PAPER}"/>',
        *(_svg_shape(shape) for shape in picture.shapes),
        "</svg>",
    ]
    return "\n".join(lines)


def _svg_shape(shape: Shape) -> str:
    if isinstance(shape, Box):
        dash = ' stroke-dasharray="5 3"' if shape.dashed else ""
        return (
            f'<rect x="{shape.x:.0f}" y="{shape.y:.0f}" width="{shape.width:.0f}" height="{shape.height:.0f}" '
            f'rx="{shape.radius:g}" fill="{shape.fill}" stroke="{shape.edge}"{dash}/>'
        )
    if isinstance(shape, Words):
        more = (' font-weight="bold"' if shape.bold else "") + (' text-anchor="end"' if shape.right else "")
        return (
            f'<text x="{shape.x:.0f}" y="{shape.y:.0f}" font-size="{shape.size:g}" fill="{shape.color}"{more}>'
            f"{escape(shape.text)}</text>"
        )
    if isinstance(shape, Dot):
        return f'<circle cx="{shape.x:.0f}" cy="{shape.y:.0f}" r="{shape.radius:g}" fill="{shape.color}"/>'
    dash = ' stroke-dasharray="6 4"' if shape.dashed else ""
    points = " ".join(f"{x:.0f},{y:.0f}" for x, y in shape.points)
    stroke = f'fill="none" stroke="{shape.color}" stroke-width="{shape.width:g}"{dash}'
    return f'<polyline points="{points}" {stroke}/>'
