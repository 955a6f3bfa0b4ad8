"""Charts of load: real pictures that show the right values, and cost nothing until requested."""

import base64
import io
import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from mcp.types import ImageContent
from PIL import Image

from quorate.tools.metric_series import label, zone
from tests.rigs.cli import quorate
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n"

LISTING_TOOLS = """
import asyncio, json, sys
from mcp import Client
from quorate.app import build
from quorate.config import load

async def main():
    async with Client(build(load(tolerate=True, toolsets="all")).server()) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    heavy = [name for name in ("matplotlib", "numpy", "PIL", "quorate.tools.chart_png") if name in sys.modules]
    print(json.dumps({"listed": "metrics_get" in names, "heavy": heavy}))

asyncio.run(main())
"""


async def chart(quorate, **arguments):
    """The facts and the picture of a chart that must succeed."""
    answer = await quorate.call("metrics_get", chart=True, **arguments)
    assert not answer.is_error, answer.content
    images = [block for block in answer.content if isinstance(block, ImageContent)]
    assert [image.mime_type for image in images] == ["image/png"]
    return answer.structured_content, Image.open(io.BytesIO(base64.b64decode(images[0].data)))


def darkened(picture):
    """How many pixels are not paper."""
    return sum(count for count, colour in picture.convert("RGB").getcolors(100_000) if colour != (255, 255, 255))


@pytest.mark.thorough
def test_listing_the_tools_imports_no_chart_code(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", LISTING_TOOLS], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(ran.stdout) == {"listed": True, "heavy": []}


async def test_other_tools_do_not_need_matplotlib_and_a_chart_says_how_to_get_it(tmp_path, monkeypatch):
    async with rig(tmp_path) as quorate:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.delitem(sys.modules, "quorate.tools.chart_png", raising=False)
        text = await quorate.refusal("metrics_get", chart=True, guest=102)
        assert "pip install 'quorate[charts]'" in text
        assert "metrics_get" in text
        assert await quorate.facts("metrics_get", guest=102)


async def test_a_guest_is_drawn_with_a_panel_for_every_metric(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, small = await chart(quorate, guest=102)
        assert list(facts["shown"]) == [
            "CPU load, share of the cores (mean / max, %)",
            "Memory in use (mean / max, GiB)",
        ]
        facts, large = await chart(quorate, guest=102, show=["cpu", "memory", "diskio", "network"])
        assert facts["shown"]["Network traffic (mean / max, kB/s)"].keys() == {"in", "out"}
        assert large.size[0] == small.size[0]
        assert large.size[1] > 1.5 * small.size[1]
        assert darkened(large) > darkened(small) > 5000


async def test_guests_are_compared_by_their_names(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, _ = await chart(quorate, guest=["docker01", 103, "docker01"], timeframe="week")
        assert facts["chart"] == "docker01 (102), docker02 (103): last week"
        assert list(facts["shown"]["Memory in use (mean / max, GiB)"]) == ["docker01 (102)", "docker02 (103)"]


@pytest.mark.thorough
async def test_in_a_large_comparison_both_directions_become_one_line(tmp_path):
    async with rig(tmp_path) as quorate:
        few, _ = await chart(quorate, guest=[102, 103], show="network")
        assert len(few["shown"]["Network traffic (mean / max, kB/s)"]) == 4
        many, _ = await chart(quorate, guest=[100, 102, 103, 104], show="network")
        lines = many["shown"]["Network traffic, in + out (mean / max, kB/s)"]
        assert list(lines) == ["router (100)", "docker01 (102)", "docker02 (103)", "k3s-server (104)"]
        means = [float(few["shown"]["Network traffic (mean / max, kB/s)"][f"docker01 (102) {way}"].split(" / ")[0])
                 for way in ("in", "out")]  # fmt: skip
        assert float(lines["docker01 (102)"].split(" / ")[0]) == pytest.approx(sum(means), abs=0.1)


@pytest.mark.thorough
async def test_nodes_and_storages_are_drawn_with_their_own_fields(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, _ = await chart(quorate, node=["pve1", "pve2"], timeframe="hour", show=["cpu", "memory", "disk"])
        assert list(facts["shown"]["Disk space in use (mean / max, GiB)"]) == ["pve1", "pve2"]
        facts, _ = await chart(quorate, storage=["nas", "pve1/local-lvm"], timeframe="year")
        assert list(facts["shown"]) == ["Disk space in use (mean / max, TiB)"]


@pytest.mark.thorough
async def test_lines_of_local_storages_name_their_node(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, _ = await chart(quorate, storage=["local-lvm", "nas"], node=["pve1", "pve2"])
        (lines,) = facts["shown"].values()
        assert list(lines) == ["pve1/local-lvm", "pve2/local-lvm", "nas"]


@pytest.mark.thorough
async def test_a_field_that_pve_records_is_drawn_under_its_own_name(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, _ = await chart(quorate, node="pve1", show=["loadavg", "iowait", "humidity"])
        assert list(facts["shown"]) == ["loadavg (mean / max)", "iowait (mean / max, %)"]
        assert facts["not_recorded"] == ["humidity"]


@pytest.mark.thorough
async def test_peaks_are_labeled(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, _ = await chart(quorate, guest=102, cf="MAX")
        assert facts["chart"].endswith("last day, peaks")


@pytest.mark.thorough
async def test_the_time_is_local_and_the_zone_is_named(tmp_path, monkeypatch):
    async with rig(tmp_path) as quorate:
        monkeypatch.setenv("TZ", "Europe/Vienna")
        assert (await chart(quorate, guest=102))[0]["time"] == "Time in Europe/Vienna (CET, UTC+1)"
        facts, _ = await chart(quorate, guest=102, timezone="Asia/Kolkata")
        assert facts["time"] == "Time in Asia/Kolkata (IST, UTC+5:30)"
        text = await quorate.refusal("metrics_get", chart=True, guest=102, timezone="Mars/Olympus")
        assert "There is no time zone 'Mars/Olympus'" in text


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "", "Europe"])
async def test_a_time_zone_is_a_name_and_no_path(tmp_path, name):
    async with rig(tmp_path) as quorate:
        assert "no time zone" in await quorate.refusal("metrics_get", chart=True, guest=102, timezone=name)


def test_a_year_with_summer_time_names_both():
    berlin = zone("Europe/Berlin")
    assert label(berlin, 1735689600, 1767225600) == "Europe/Berlin (CET, UTC+1 / CEST, UTC+2)"
    assert label(zone("Etc/UTC"), 0, 1) == "UTC"


@pytest.mark.thorough
async def test_a_stopped_guest_in_a_comparison_is_named_instead_of_missing_silently(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, _ = await chart(quorate, guest=[102, "win11"])
        assert facts["without_data"] == ["win11 (107)"]


@pytest.mark.thorough
async def test_a_metric_without_recorded_values_is_named(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, _ = await chart(quorate, guest=102, show=["cpu", "disk"])
        assert facts["not_recorded"] == ["disk"]


@pytest.mark.thorough
async def test_names_that_look_like_formulas_are_drawn_as_they_are(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[102]
        guest.config["name"] = "_$\\frac$" + "x" * 60
        guest.touch()
        await quorate.clock.advance(10)
        facts, _ = await chart(quorate, guest=[102, 103])
        assert any("…" in label for lines in facts["shown"].values() for label in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "No guest, node or storage was specified"),
        ({"guest": [100, 101, 102, 103, 104, 105, 106, 200, 201]}, "9 lines are too many"),
        ({"guest": 102, "show": list("abcdefghi")}, "9 panels are too many"),
        ({"guest": 102, "points": 5}, "points cannot be combined with chart=true"),
        ({"guest": 107}, "nothing to draw"),
        ({"storage": "nas", "show": ["cpu"]}, "a storage has only disk"),
        ({"guest": 102, "timeframe": "decade"}, "for nodes only"),
        ({"guest": "docker09"}, "Did you mean"),
        ({"guest": 102, "show": ["cpus"]}, "cpus was not recorded"),
    ],
)
async def test_what_cannot_be_drawn_is_refused_with_the_reason(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("metrics_get", chart=True, **arguments)


# -- at the shell ------------------------------------------------------------------------------------------------------


def call(*arguments, cwd):
    return quorate("call", *arguments, "--demo", "--toolsets", "all", cwd=cwd)


def test_the_command_saves_the_picture_and_says_where(tmp_path):
    drawn = call("metrics_get", "chart=true", "guest=docker01", "show=cpu", cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    assert "image written to metrics_get.png" in drawn.stderr
    assert (tmp_path / "metrics_get.png").read_bytes().startswith(PNG)
    again = call("metrics_get", "chart=true", "node=pve1", "--output", "here.png", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["chart"] == "pve1: last day"
    assert (tmp_path / "here.png").read_bytes().startswith(PNG)


def test_a_picture_is_never_written_over_one_that_was_not_named(tmp_path):
    (tmp_path / "metrics_get.png").write_bytes(b"mine")
    drawn = call("metrics_get", "chart=true", "guest=102", "show=cpu", cwd=tmp_path)
    assert "metrics_get-2.png" in drawn.stderr
    assert (tmp_path / "metrics_get.png").read_bytes() == b"mine"


def test_a_picture_that_cannot_be_written_is_a_failure(tmp_path):
    drawn = call("metrics_get", "chart=true", "guest=102", "show=cpu", "--output", "no/such/folder.png", cwd=tmp_path)
    assert drawn.returncode == 1
    assert "cannot write the image to no/such/folder.png: No such file or directory" in drawn.stderr


def test_an_output_file_for_a_tool_without_pictures_is_refused(tmp_path):
    listed = call("guest_list", "limit=1", "--output", "x.png", cwd=tmp_path)
    assert listed.returncode == 1
    assert "returned no image" in listed.stderr
    assert not (tmp_path / "x.png").exists()


async def test_a_chart_is_drawn_as_svg_without_anything_from_outside(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("metrics_get", guest="docker01", chart="svg")
        drawn = ElementTree.fromstring(facts["svg"])
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        links = [value for element in drawn.iter() for name, value in element.attrib.items() if name.endswith("href")]
        assert all(link.startswith("#") for link in links)
