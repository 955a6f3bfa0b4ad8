"""The views inside an MCP client, with a page that plays the client: a sandboxed frame and messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quorate.operations.registry import find_operation
from quorate.surfaces.views import view_of
from tests.browser.conftest import surfing
from tests.rigs.console import console
from tests.rigs.web_server import Web

pytestmark = pytest.mark.anyio
HOST = """
async (page) => {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  frame.srcdoc = page.html;
  frame.style = "width: 700px; height: 900px";
  window.calls = [];
  addEventListener("message", async (event) => {
    const message = event.data;
    const answer = (result) => frame.contentWindow.postMessage({jsonrpc: "2.0", id: message.id, result: result}, "*");
    if (message.method === "ui/initialize") { answer({protocolVersion: "2026-01-26", hostContext: {theme: "light"}}); }
    if (message.method === "ui/notifications/initialized") {
      for (const [method, params] of [["tool-input", {arguments: page.arguments}], ["tool-result", page.result]]) {
        frame.contentWindow.postMessage({jsonrpc: "2.0", method: "ui/notifications/" + method, params: params}, "*");
      }
    }
    if (message.method === "tools/call") {
      window.calls.push(message.params);
      answer(await window.call_tool(message.params.name, message.params.arguments));
    }
  });
  document.body.replaceChildren(frame);
}
"""


async def _show(quorate: Web, surfer: Any, tool: str, arguments: dict[str, Any]) -> Any:
    async with quorate.client() as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert listed[tool].meta is None  # this client knows no views
        answer = await client.call_tool(tool, arguments)

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return json.loads(
                (await client.call_tool(name, arguments)).model_dump_json(by_alias=True, exclude_none=True)
            )

        operation = find_operation(tool)
        assert operation is not None
        view = view_of(operation)
        assert view is not None
        read = await client.read_resource(view.uri)
        html = read.contents[0].text  # type: ignore[union-attr]
        await surfer.page.expose_function("call_tool", call)
        await surfer.page.goto("about:blank")
        result = json.loads(answer.model_dump_json(by_alias=True, exclude_none=True))
        await surfer.page.evaluate(HOST, {"html": html, "arguments": arguments, "result": result})
        frame = surfer.page.frames[-1]
        await frame.wait_for_selector("#view > :not(.empty)")
        return frame


async def test_a_dry_run_is_shown_as_a_card_with_what_would_be_lost(tmp_path):
    async with console(tmp_path, toolsets=("all", "homelab")) as quorate, surfing(quorate) as surfer:
        frame = await _show(quorate, surfer, "guest_delete", {"guest": "test-vm", "dry_run": True})
        text = await frame.inner_text("body")
        assert "What will be lost" in text
        assert "vm-108-disk-0" in text
        assert "DELETE /nodes/pve1/qemu/108" in text
        await surfer.picture("view-plan")


async def test_load_is_shown_as_charts(tmp_path):
    async with console(tmp_path, toolsets=("all", "homelab")) as quorate, surfing(quorate) as surfer:
        frame = await _show(quorate, surfer, "metrics_get", {"guest": "docker01"})
        await frame.wait_for_selector("canvas")
        assert await frame.locator("canvas").count() >= 2
        await surfer.picture("view-chart")


async def test_the_map_is_shown_as_a_picture(tmp_path):
    async with console(tmp_path, toolsets=("all", "homelab")) as quorate, surfing(quorate) as surfer:
        frame = await _show(quorate, surfer, "network_map", {})
        await frame.wait_for_selector("img.map")
        assert await frame.evaluate("document.querySelector('img.map').decode().then(() => true)")
        await surfer.picture("view-map")
