"""A surface: one way in which the operations are shown to MCP clients."""

from __future__ import annotations

import base64
from typing import Any, Protocol

from mcp.types import CallToolResult, ImageContent, TextContent, Tool

from quorate.hints import Naming
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.invocation import Result
from quorate.surfaces import rendering


class Surface(Protocol):
    def tools(self, caller: Caller) -> list[Tool]:
        """What this caller sees, in a stable order."""
        ...

    def knows(self, name: str) -> bool:
        """Whether a tool of this name belongs here, seen or not."""
        ...

    def instructions(self) -> str:
        """What an assistant reads once, at the start."""
        ...

    def naming(self, caller: Caller) -> Naming:
        """How this caller makes a call that advice refers to."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], exchange: Exchange) -> CallToolResult:
        """Raises Problem when there is no answer to give."""
        ...


def answer(result: Result, name: Naming = str) -> CallToolResult:
    """The same facts as text and as structure, and the pictures."""
    text, structure = rendering.text_and_structure(result.data, name)
    return CallToolResult(
        content=[TextContent(type="text", text=text), *map(image, result.pictures)],
        structured_content=structure,
        is_error=result.failed,
    )


def text_of(shown: CallToolResult) -> str:
    return "\n".join(block.text for block in shown.content if isinstance(block, TextContent))


def pictures_of(shown: CallToolResult) -> list[bytes]:
    return [base64.b64decode(block.data) for block in shown.content if isinstance(block, ImageContent)]


def image(png: bytes) -> ImageContent:
    return ImageContent(type="image", data=base64.b64encode(png).decode(), mime_type="image/png")
