"""The demo cluster is consistent across tools."""

import base64
import io

import pytest
from PIL import Image

from pve_simulator.guests import consoles
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
