"""Draw the session in the README: the dialog is scripted, every result comes from a real run.

The run uses the simulated cluster and a manual clock, so the same code always draws the same picture.
"""

from __future__ import annotations

import asyncio
import tempfile
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.types import ElicitRequestParams, ElicitResult, Implementation
from tests.rigs.mcp_session import DrivenTime, text_of

from pve_simulator.clock import ManualClock
from pve_simulator.simulator import SimulatedCluster
from quorate.app import build, simulated_cluster
from quorate.config import Access, Approval, Settings
from quorate.pipeline.approval import READING_SECONDS
from quorate.surfaces.rendering import align

WIDTH, MARGIN, GUTTER = 920, 24, 108
LINE, LETTER = 19.0, 7.8  # of 13 px type; lines of type are stretched to it, whatever font the reader has
ANSWER_LINES = 4

LIGHT = {
    "page": "#ffffff", "frame": "#d1d9e0", "text": "#1f2328", "dim": "#59636e", "panel": "#f6f8fa", "you": "#0969da",
    "ask": "#fff8e5", "edge": "#d4a72c", "done": "#1a7f37", "not": "#cf222e", "field": "#ffffff",
}  # fmt: skip
DARK = {
    "page": "#0d1117", "frame": "#3d444d", "text": "#e6edf3", "dim": "#9198a1", "panel": "#161b22", "you": "#1f6feb",
    "ask": "#221c10", "edge": "#9e6a03", "done": "#3fb950", "not": "#f85149", "field": "#0d1117",
}  # fmt: skip


# -- the session -------------------------------------------------------------------------------------------------------


@dataclass
class UserMessage:
    text: str


@dataclass
class ToolCall:
    tool: str
    arguments: dict[str, Any]


@dataclass
class Question:
    question: str
    typed: str | None


@dataclass
class ToolResult:
    text: str
    refused: bool


Event = UserMessage | ToolCall | Question | ToolResult


async def _session() -> list[Event]:
    events: list[Event] = []
    typed: list[str | None] = [None, "dev-sandbox"]
    clock = ManualClock()

    async def person(context: Any, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG001
        name = typed.pop(0)
        events.append(Question(params.message, name))
        await clock.advance(READING_SECONDS)
        if name is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"typed": name})

    async def call(tool: str, **arguments: Any) -> None:
        events.append(ToolCall(tool, arguments))
        answer = await client.call_tool(tool, arguments)
        events.append(ToolResult(align(text_of(answer)), bool(answer.is_error)))

    async with _client(person, clock) as client:
        events.append(UserMessage("What is switched off in the lab? Delete what nobody needs."))
        await call("guest_list", pool="lab", status="stopped")
        await call("guest_delete", guest="test-vm")
        events.append(UserMessage("Not test-vm! Only the sandbox."))
        await call("guest_delete", guest="dev-sandbox")
    return events


@asynccontextmanager
async def _client(person: ElicitationFnT, clock: ManualClock) -> AsyncIterator[Client]:
    """A client of a server with full access to a simulated cluster."""
    with tempfile.TemporaryDirectory() as folder:
        async with SimulatedCluster(clock=clock, auth_delay=0.0) as cluster:
            settings = Settings(
                clusters=(simulated_cluster(cluster),),
                access=Access.ADMIN,
                approval=Approval.ASK,
                audit_file=Path(folder) / "audit.jsonl",
                state=str(Path(folder) / "state.sqlite"),
            )
            app = build(settings, clock=DrivenTime(clock))
            desktop = Implementation(name="desktop", version="1")
            try:
                async with Client(app.server(), client_info=desktop, elicitation_callback=person) as client:
                    yield client
            finally:
                await app.close()


# -- the drawing -------------------------------------------------------------------------------------------------------


class Drawing:
    def __init__(self) -> None:
        self.y = float(MARGIN)
        self._parts: list[str] = []

    def draw_message(self, message: UserMessage) -> None:
        self._label("you")
        width = 7.1 * len(message.text)
        self._box(width + 32, LINE + 16, "you", rounded=18)
        place = f'x="{GUTTER + 16}" y="{self.y + 23:g}" textLength="{width:g}"'
        self._parts.append(f'<text class="white" {place}>{escape(message.text)}</text>')
        self.y += LINE + 16 + 14

    def draw_call(self, call: ToolCall) -> None:
        words = " ".join(f"{name}={value}" for name, value in call.arguments.items())
        self._label("assistant", 14.5)
        self._type(GUTTER, call.tool, "strong")
        self._type(GUTTER + LETTER * (len(call.tool) + 1), words, "dim")
        self.y += LINE + 7

    def draw_question(self, question: Question) -> None:
        """The first question is shown in full, later ones are shortened."""
        first, *between, last = _wrapped(question.question.splitlines())
        lines = [first, *between, last] if question.typed is None else [first, "…", last]
        self._label("Quorate asks")
        self._box(WIDTH - MARGIN - GUTTER, LINE * len(lines) + 31, "ask", edge="edge")
        self.y += 10
        for line in lines[:-1]:
            self._type(GUTTER + 16, line, "strong" if line == first else "dim")
            self.y += LINE
        self.y += 6
        self._type(GUTTER + 16, last, "strong")
        self._field(question.typed)
        self.y += LINE + 15 + 10

    def draw_result(self, result: ToolResult) -> None:
        lines = _shortened(result.text)
        self._label("Quorate")
        self._box(WIDTH - MARGIN - GUTTER, LINE * len(lines) + 20, "panel", edge="not" if result.refused else "frame")
        self.y += 10
        for line in lines:
            style = "not" if result.refused else "done" if line == "result: done" else "text"
            self._type(GUTTER + 16, line, style)
            self.y += LINE
        self.y += 10 + 16

    def svg(self) -> str:
        height = self.y - 16 + MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
            f'height="{height:g}" role="img" aria-labelledby="title">\n'
            '<title id="title">A session: an assistant lists guests, wants to delete one and is stopped by the person '
            "who is asked, and deletes another after its name was typed.</title>\n"
            f"<style>\n{_styles()}</style>\n"
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="12"/>\n'
            + "".join(f"{part}\n" for part in self._parts)
            + "</svg>\n"
        )

    def _label(self, who: str, below: float = 23) -> None:
        self._parts.append(f'<text class="who" x="{MARGIN}" y="{self.y + below:g}">{who}</text>')

    def _box(
        self, width: float, height: float, fill: str, *, edge: str = "", rounded: int = 8, x: float = GUTTER
    ) -> None:
        shape = f'x="{x:g}" y="{self.y:g}" width="{width:g}" height="{height:g}" rx="{rounded}"'
        self._parts.append(f'<rect class="fill-{fill} {f"edge-{edge}" if edge else ""}" {shape}/>')

    def _type(self, x: float, text: str, style: str) -> None:
        self._parts.append(
            f'<text class="type {style}" x="{x:g}" y="{self.y + 14.5:g}" textLength="{LETTER * len(text):g}" '
            f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
        )

    def _field(self, typed: str | None) -> None:
        """The input field and the two buttons next to the last line; the pressed one is highlighted."""
        left = WIDTH - MARGIN - 16 - 154 - 10 - 150
        self.y -= 4
        self._box(150, 28, "field", edge="frame", rounded=6, x=left)
        for place, (label, pressed) in enumerate((("Approve", typed is not None), ("Decline", typed is None))):
            x = left + 160 + 80 * place
            self._box(74, 28, "you" if pressed else "field", edge="you" if pressed else "frame", rounded=6, x=x)
            style = "white" if pressed else "dim"
            self._parts.append(f'<text class="button {style}" x="{x + 37}" y="{self.y + 18.5:g}">{label}</text>')
        self.y += 4
        if typed is not None:
            self._type(left + 10, typed, "text")


def _shortened(text: str) -> list[str]:
    """The first lines, with a mark where the rest is cut."""
    lines = _wrapped(text.splitlines())
    return lines if len(lines) <= ANSWER_LINES else [*lines[: ANSWER_LINES - 1], "…"]


def _wrapped(lines: list[str]) -> list[str]:
    room = int((WIDTH - MARGIN - GUTTER - 32) / LETTER)
    return [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False)]


def _styles() -> str:
    return (
        "text { font: 15px -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif; }\n"
        ".type { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; "
        "white-space: pre; }\n"
        ".who { font-size: 12px; }\n"
        ".button { font-size: 13px; text-anchor: middle; }\n"
        ".strong { font-weight: 600; }\n"
        f"{_colors(LIGHT)}@media (prefers-color-scheme: dark) {{\n{_colors(DARK)}}}\n"
    )


def _colors(palette: dict[str, str]) -> str:
    """Colors written out in each rule, because not every SVG renderer supports variables."""

    def classes(prefix: str, paint: str, *names: str) -> str:
        return "".join(f".{prefix}{name} {{ {paint}: {palette[name]}; }}\n" for name in names)

    return (
        f"text {{ fill: {palette['text']}; }}\n.who {{ fill: {palette['dim']}; }}\n"
        f".page {{ fill: {palette['page']}; stroke: {palette['frame']}; }}\n"
        + classes("", "fill", "dim", "done", "not")
        + classes("fill-", "fill", "panel", "you", "ask", "field")
        + classes("edge-", "stroke", "frame", "edge", "not", "you")
        + ".white { fill: #ffffff; }\n"
    )


def session_picture() -> str:
    drawing = Drawing()
    for event in asyncio.run(_session()):
        match event:
            case UserMessage():
                drawing.draw_message(event)
            case ToolCall():
                drawing.draw_call(event)
            case Question():
                drawing.draw_question(event)
            case ToolResult():
                drawing.draw_result(event)
    return drawing.svg()
