"""The demo cluster is consistent across tools."""

import base64
import io
from typing import Any

import pytest
from mcp import Client
from PIL import Image

from pve_simulator.guests import consoles
from quorate.app import build, demo_settings
from quorate.config import Settings
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


async def test_every_backup_was_made_by_a_task_in_the_history(tmp_path):
    async with rig(tmp_path) as quorate:
        backups = {(str(row["guest"]), row["made"]) for row in await quorate.rows("backup_list")}
        tasks = {(str(row["id"]), row["started"]) for row in await quorate.rows("task_list", type="vzdump")}
        assert len(backups) == 7
        assert backups == tasks


async def test_the_map_has_segments_and_the_addresses_of_the_guests(tmp_path):
    async with rig(tmp_path, toolsets=("all", "homelab")) as quorate:
        shown = await quorate.facts("network_map")
        assert set(shown["segments"]) == {"192.168.10.0/24", "192.168.20.0/24"}
        addresses = {row[2]: row[3] for row in shown["rows"]}
        for name in ("pve1", "pihole", "docker01", "nextcloud", "k3s-server"):
            assert addresses[name].startswith("192.168."), name
        assert addresses["docker01"] in str(await quorate.facts("guest_network", guest="docker01"))


async def test_the_screen_shows_text(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.call("guest_screenshot", guest="docker01")
        picture = Image.open(
            io.BytesIO(base64.b64decode(next(block.data for block in answer.content if block.type == "image")))
        )
        lines = consoles.screen_text(quorate.sim.world.guests[102])
        assert lines[-1] == "docker01 login: _"
        wide, high = consoles.GLYPH
        below = consoles.STEP + consoles.BLOCK + high
        for number, line in enumerate(lines):
            lit = {
                x // wide - 1
                for x in range(picture.width)
                for y in range(high)
                if picture.getpixel((x, below + number * high + y)) != (0, 0, 0)
            }
            assert lit == {column for column, letter in enumerate(line) if letter != " "}


async def test_the_backup_server_of_the_demo_has_the_backups_of_its_storage(tmp_path):
    usual = Settings(toolsets=("all",), audit_file=tmp_path / "audit.jsonl", state=str(tmp_path / "state.sqlite"))
    async with demo_settings(usual) as settings:
        app = build(settings)
        try:
            async with Client(app.server()) as client:

                async def facts(tool: str, **arguments: Any) -> Any:
                    answer = await client.call_tool(tool, arguments)
                    assert not answer.is_error, answer.content
                    return answer.structured_content

                async def column(name: str, tool: str, **arguments: Any) -> list[Any]:
                    table = await facts(tool, **arguments)
                    return [dict(zip(table["columns"], row, strict=True))[name] for row in table["rows"]]

                backups = await column("backup", "backup_list", storage="pbs")
                assert len(backups) == 6
                on_server = {f"pbs:backup/{name}" for name in await column("backup", "pbs_backup_list")}
                assert on_server == set(backups)
                shown = await facts("backup_show", backup=backups[0])
                assert (shown["backup_server"]["server"], shown["backup_server"]["verified"]) == ("vault", "ok")
                assert set(await column("id", "pbs_task_list")) == {
                    "homelab:vm/102",
                    "homelab:ct/202",
                    "homelab:ct/203",
                }
                assert await column("datastore", "pbs_status") == ["homelab"]
        finally:
            await app.close()
