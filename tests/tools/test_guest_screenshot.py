"""Screenshots of VMs: the right picture, a reason where there is no screen, and no harm from a hostile server."""

import base64
import io
import struct
import zlib
from functools import partial
from typing import Any

import pytest
from mcp.types import ImageContent
from PIL import Image

from pve_simulator.guests import consoles
from pve_simulator.guests.consoles import Consoles
from quorate.config import Access
from quorate.problems import Problem
from quorate.pve import screens as pve_screens
from quorate.pve.screens import Picture, RfbClient, count_new_lines, look, response_to
from tests.pve.test_client import by_password, client_of
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio

BLACK = (0, 0, 0)


async def screenshot(quorate, **arguments):
    """The facts and the picture of a screenshot that must succeed."""
    answer = await quorate.call("guest_screenshot", **arguments)
    assert not answer.is_error, answer.content
    images = [block for block in answer.content if isinstance(block, ImageContent)]
    assert [image.mime_type for image in images] == ["image/png"]
    return answer.structured_content, Image.open(io.BytesIO(base64.b64decode(images[0].data)))


def screens(quorate):
    return quorate.sim.world.part(Consoles)


def consoles_opened(quorate):
    return [task for node in ("pve1", "pve2", "pve3") for task in quorate.sim.world.tasks.newest_first(node)
            if task.upid.type == "vncproxy"]  # fmt: skip


# -- the picture -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
async def test_the_screen_of_a_vm_is_seen_as_it_is(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        facts, picture = await screenshot(quorate, guest="docker01")
        assert facts == {"guest": "vm 102 docker01", "size": "640x400"}
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (640, 400))
        picture.load()
        for place, letter in enumerate("docker01"):
            left = place * consoles.STEP + consoles.STEP - consoles.BLOCK
            assert picture.getpixel((left, consoles.STEP)) == consoles.color_of(letter)
            assert picture.getpixel(
                (left + consoles.BLOCK - 1, consoles.STEP + consoles.BLOCK - 1)
            ) == consoles.color_of(letter)
            assert picture.getpixel((left - 1, consoles.STEP)) == BLACK
        assert picture.getpixel((639, 399)) == BLACK


async def test_nothing_is_left_behind(tmp_path):
    async with rig(tmp_path) as quorate:
        await screenshot(quorate, guest=102)
        await quorate.clock.advance(1)
        (task,) = consoles_opened(quorate)
        assert task.exitstatus == "OK"
        assert not screens(quorate).vnc_ports
        assert quorate.audit() == []


async def test_the_screen_of_a_vm_on_another_node_comes_through_the_node_that_was_asked(tmp_path):
    async with rig(tmp_path, endpoints=3) as quorate:
        facts, _ = await screenshot(quorate, guest="k3s-agent")
        assert facts["guest"] == "vm 105 k3s-agent"
        assert consoles_opened(quorate)[0].upid.node == "pve1"


async def test_the_connection_goes_to_the_node_that_opened_the_console():
    async with client_of(endpoints=3) as (client, sim):
        await sim.stop_endpoint(0)
        for _ in range(3):
            picture = await look(client, "/nodes/pve3/qemu/105")
            client._preferred += 1  # another call found its node gone
            assert (picture.width, picture.height) == (640, 400)


async def test_a_wide_screen_is_made_smaller_unless_all_of_it_is_wanted(tmp_path):
    async with rig(tmp_path) as quorate:
        screens(quorate).serve_vnc = partial(consoles.serve_vnc, size=(1920, 1080))
        facts, picture = await screenshot(quorate, guest=102)
        assert picture.size == (960, 540)
        assert facts["size"] == "1920x1080"
        assert facts["shown"] == "1/2 of each side; max_width=1920 shows every pixel"
        assert picture.getpixel((4, 12)) == consoles.color_of("d")
        _, whole = await screenshot(quorate, guest=102, max_width=1920)
        assert whole.size == (1920, 1080)


async def test_a_blank_screen_is_a_picture_too_with_a_note(tmp_path):
    async with rig(tmp_path) as quorate:
        screens(quorate).serve_vnc = partial(consoles.serve_vnc, size=(720, 20))
        facts, picture = await screenshot(quorate, guest=102)
        assert facts["note"].startswith("The whole screen has one color")
        assert picture.getcolors() == [(720 * 20, BLACK)]


async def test_a_paused_vm_still_has_its_screen(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[102].paused = True
        quorate.sim.world.guests[102].touch()
        _, picture = await screenshot(quorate, guest=102)
        assert picture.size == (640, 400)


async def test_a_picture_too_small_to_see_anything_is_refused(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_screenshot", guest=102, max_width=0)
        assert "max_width=0 is too small to show anything. Give at least 256." in text


@pytest.mark.parametrize("factor", [1, 2, 3, 5, 16])
def test_a_smaller_picture_is_the_average_of_its_pixels(factor):
    picture = Picture(37, 34)
    for y in range(34):
        picture.put(0, y, bytes(value for x in range(37) for value in (x * 6, y * 7, (x * y) % 256, 99)))
    smaller = Image.open(io.BytesIO(picture.png(factor)))
    assert smaller.size == (37 // factor, 34 // factor)
    for left, top in ((0, 0), (37 // factor - 1, 34 // factor - 1)):
        square = [(left * factor + x, top * factor + y) for x in range(factor) for y in range(factor)]
        exact = [
            sum(values) / factor**2 for values in zip(*[(x * 6, y * 7, (x * y) % 256) for x, y in square], strict=True)
        ]
        seen: Any = smaller.getpixel((left, top))
        assert all(abs(a - b) <= 1 for a, b in zip(seen, exact, strict=True))


@pytest.mark.parametrize("factor", range(1, 17))
def test_white_stays_white_however_small(factor):
    picture = Picture(32, 16)
    for y in range(16):
        picture.put(0, y, b"\xff" * 128)
    assert Image.open(io.BytesIO(picture.png(factor))).getextrema() == ((255, 255),) * 3


def draw(rows: list[str], *, cursor: bool = False) -> Picture:
    """A text console; the cursor is after the last row."""
    picture = Picture(640, consoles.GLYPH[1] * (len(rows) + 2))
    pixels = consoles._console([*rows[:-1], rows[-1] + "_" * cursor], 640, picture.height)
    for y in range(picture.height):
        picture.put(0, y, pixels[y * 2560 : (y + 1) * 2560])
    return picture


BOOTED = ["Debian GNU/Linux 13 web01 tty1", "", "web01 login:"]


def test_lines_of_text_are_distinguished_from_pictures():
    assert len(draw(BOOTED).text_lines()) == 2
    logo = Picture(320, 200)
    for y in range(200):
        logo.put(0, y, b"".join(bytes((x % 256, y, 90, 0)) if 60 < y < 140 else bytes(4) for x in range(320)))
    assert logo.text_lines() == []
    assert Picture(0, 0).text_lines() == []


@pytest.mark.parametrize(
    ("rows", "cursor", "new"),
    [
        (BOOTED, False, 0),
        (BOOTED, True, 0),  # a blinking cursor is not an answer
        ([*BOOTED, BOOTED[-1]], True, 1),
        (["[  OK  ] Reached target multi-user.target", "", *BOOTED[1:]], False, 1),
        (["Kernel panic - not syncing: VFS"], False, 1),
    ],
)
def test_new_lines_are_counted_wherever_they_are(rows, cursor, new):
    assert count_new_lines(draw(BOOTED).text_lines(), draw(rows, cursor=cursor).text_lines()) == new


def test_a_picture_is_read_back_from_its_png():
    picture = draw(BOOTED)
    assert Picture.from_png(picture.png()).png() == picture.png()


# -- who has none ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guest", "words"),
    [
        (200, "ct 200 pihole is a container and has no screen"),
        (107, "vm 107 win11 is not running, so it has no screen. Start it first: guest_power guest=107 action=start"),
        (9000, "vm 9000 debian-13-cloud is a template and never runs"),
        ("docker09", "Did you mean"),
    ],
)
async def test_a_guest_without_a_screen_is_refused_with_the_reason(tmp_path, guest, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("guest_screenshot", guest=guest)
        assert consoles_opened(quorate) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vga": "none"}, "Its option vga is none"),
        ({"vga": "type=none"}, "Its option vga is none"),
        ({"vga": "serial0", "serial0": "socket"}, "vga is serial0: the console is a serial line with text"),
        ({"hostpci0": "0000:01:00,pcie=1,x-vga=1"}, "goes to a graphics card of the node (hostpci0)"),
    ],
)
async def test_a_vm_without_a_display_is_refused_with_the_option_that_says_so(tmp_path, options, words):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[102].config.update(options)
        assert words in await quorate.refusal("guest_screenshot", guest=102)
        assert consoles_opened(quorate) == []


async def test_a_second_display_next_to_a_passed_through_card_is_captured(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[102].config.update({"hostpci0": "0000:01:00,x-vga=1", "vga": "std,memory=32"})
        await screenshot(quorate, guest=102)


async def test_a_missing_privilege_is_named_with_the_command_that_grants_it(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.access.grant("/vms/102", "PVEAuditor", "alice@pve")
        async with second_server(quorate, tmp_path / "alice.jsonl", token="alice@pve!cli") as alice:
            text = await alice.refusal("guest_screenshot", guest=102)
            assert "alice@pve!cli may not see the screen of vm 102 docker01" in text
            assert "needs the privilege VM.Console on /vms/102" in text
            assert "pveum acl modify /vms/102" in text
            quorate.sim.world.access.grant("/vms/102", "PVEVMUser", "alice@pve")
            await screenshot(alice, guest=102)


async def test_looking_at_screens_needs_the_level_operate(tmp_path):
    async with rig(tmp_path, access=Access.READ) as quorate:
        text = await quorate.refusal("guest_screenshot", guest=102)
        assert "It can look inside guests and hosts, which needs operate" in text


# -- what can go wrong -------------------------------------------------------------------------------------------------


def hostile(*answers):
    """A server that says these things, whatever it hears, and waits for the viewer to leave."""

    async def speak(stream, _password, _guest):
        for answer in answers:
            await stream.write(answer)
        await stream.read(1_000_000)

    return speak


VERSION = b"RFB 003.008\n"
LOGGED_IN = VERSION + bytes([1, 2]) + bytes(16) + bytes(4)


def screen(width, height, name=b""):
    return LOGGED_IN + struct.pack(">HH16xI", width, height, len(name)) + name


def update(*rectangles):
    return struct.pack(">BxH", 0, len(rectangles)) + b"".join(rectangles)


def rectangle(x, y, width, height, encoding=0, data=b""):
    return struct.pack(">HHHHi", x, y, width, height, encoding) + data


HOSTILE = {
    "a huge screen": (screen(65535, 65535), "The screen claims to be 65535x65535"),
    "an empty screen": (screen(0, 400), "The screen claims to be 0x400"),
    "a huge name": (LOGGED_IN + struct.pack(">HH16xI", 8, 8, 2**32 - 1), "a text of 4294967295 bytes"),
    "garbage": (bytes(range(256)) * 9, "violates the VNC protocol"),
    "a page": (b"HTTP/1.1 200 OK\r\n\r\nhello", "It started with b'HTTP/1.1 200'"),
    "an old version": (b"RFB 003.003\n", "It started with b'RFB 003.003"),
    "another login": (VERSION + bytes([2, 1, 19]), "offers only the security types 1, 19"),
    "no login": (VERSION + b"\0" + struct.pack(">I", 7) + b"go away", "It said: go away"),
    "a huge reason": (VERSION + bytes([1, 2]) + bytes(16) + struct.pack(">II", 1, 2**31), "text of 2147483648 bytes"),
    "pixels outside": (screen(8, 8) + update(rectangle(4, 4, 8, 8)), "It sent 8x8 pixels at 4,4 of a screen of 8x8"),
    "a strange encoding": (screen(8, 8) + update(rectangle(0, 0, 8, 8, 16)), "in encoding 16"),
    "a strange message": (screen(8, 8) + b"\xfa", "of unknown type 250"),
    "a growing screen": (screen(8, 8) + update(rectangle(0, 0, 9999, 8, -223)), "claims to be 9999x8"),
    "a restless screen": (screen(8, 8) + update(*[rectangle(0, 0, 4000, 4000, -223)] * 999), "4000x4000"),
    "empty updates": (screen(8, 8) + update() * 999, "200 messages did not make a whole picture"),
    "empty rectangles": (
        screen(8, 8) + update(*[rectangle(0, 0, 0, 8)] * 60000, rectangle(0, 0, 8, 8, 5)),
        "in encoding 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_server_that_sends_garbage_is_reported(tmp_path, name):
    messages, words = HOSTILE[name]
    async with rig(tmp_path) as quorate:
        screens(quorate).serve_vnc = hostile(messages)
        assert words in await quorate.refusal("guest_screenshot", guest=102)


async def test_a_password_that_is_not_accepted_is_reported(tmp_path):
    async def other_password(stream, password, guest):
        await consoles.serve_vnc(stream, password[::-1], guest)

    async with rig(tmp_path) as quorate:
        screens(quorate).serve_vnc = other_password
        text = await quorate.refusal("guest_screenshot", guest=102)
        assert (
            "The console did not accept the password that PVE generated for it. It said: Authentication failed." in text
        )


async def test_a_console_that_closes_too_early_is_reported(tmp_path):
    async def hang_up(stream, _password, _guest):
        await stream.write(VERSION)

    async with rig(tmp_path) as quorate:
        screens(quorate).serve_vnc = hang_up
        text = await quorate.refusal("guest_screenshot", guest=102)
        assert "The console was closed before its picture was complete" in text


async def test_a_console_that_says_nothing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(pve_screens, "SECONDS", 0.3)
    async with rig(tmp_path) as quorate:
        screens(quorate).serve_vnc = hostile()
        text = await quorate.refusal("guest_screenshot", guest=102)
        assert "did not send a complete picture within 0.3 s" in text
        await quorate.clock.advance(1)
        assert not consoles_opened(quorate)[0].running


async def test_a_vm_that_stops_at_that_moment_is_reported(tmp_path):
    async def stop_first(stream, _password, guest):
        guest.stop_running()

    async with rig(tmp_path) as quorate:
        screens(quorate).serve_vnc = stop_first
        assert "The console was closed" in await quorate.refusal("guest_screenshot", guest=102)


async def test_a_ticket_that_is_not_accepted_is_reported_without_the_ticket(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.faults.add("401:GET:/nodes/*/vncwebsocket")
        text = await quorate.refusal("guest_screenshot", guest=102)
        assert "PVE did not open the console. It answered GET /nodes/pve1/qemu/102/vncwebsocket with 401" in text
        assert "PVEVNC" not in text


async def test_a_connection_that_breaks_is_reported(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.faults.add("drop:before:GET:/nodes/*/vncwebsocket")
        text = await quorate.refusal("guest_screenshot", guest=102)
        assert "The connection broke during GET /nodes/pve1/qemu/102/vncwebsocket" in text


async def test_a_console_whose_answer_is_lost_is_not_an_unknown_change(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.faults.add("drop:after:POST:/nodes/*/vncproxy")
        text = await quorate.refusal("guest_screenshot", guest=102)
        assert "PVE did not answer when asked for the console" in text
        assert "not known whether" not in text


# -- the console of the simulator, where it refuses --------------------------------------------------------------------

VM = "/nodes/pve1/qemu/102"


async def opened(client, **asked):
    data = (await client.request("POST", f"{VM}/vncproxy", {"websocket": 1, **asked})).data
    return {"port": data["port"], "vncticket": data["ticket"]}


async def test_a_ticket_is_good_for_one_vm_one_port_and_a_short_time():
    async with client_of() as (client, sim):
        way, endpoint = await opened(client), sim.urls[0]
        for wrong in (
            {**way, "vncticket": way["vncticket"][:-9] + "AAAAAAAAA"},
            {**way, "port": 5950},
        ):
            with pytest.raises(Problem, match="did not open the console"):
                await client._connect(endpoint, f"{VM}/vncwebsocket", wrong)
        with pytest.raises(Problem, match="did not open the console"):
            await client._connect(endpoint, "/nodes/pve1/qemu/101/vncwebsocket", way)
        await sim.clock.advance(11)
        with pytest.raises(Problem, match="connection broke"):
            await client._connect(endpoint, f"{VM}/vncwebsocket", way)


async def test_the_port_is_open_on_the_node_that_was_asked_and_for_one_viewer():
    async with client_of(endpoints=2) as (client, sim):
        way = await opened(client)
        with pytest.raises(Problem, match="connection broke"):
            await client._connect(sim.urls[1], f"{VM}/vncwebsocket", way)
        socket = await client._connect(sim.urls[0], f"{VM}/vncwebsocket", way)
        assert await socket.receive_bytes() == VERSION
        with pytest.raises(Problem, match="connection broke"):
            await client._connect(sim.urls[0], f"{VM}/vncwebsocket", way)
        await socket.close()


async def test_without_a_password_of_its_own_the_ticket_begins_with_it():
    async with client_of() as (client, sim):
        way = await opened(client)
        socket = await client._connect(sim.urls[0], f"{VM}/vncwebsocket", way)
        rfb = RfbClient(way["vncticket"])
        while rfb.picture is None:
            if answer := rfb.feed(await socket.receive_bytes()):
                await socket.send_bytes(answer)
        await socket.close()


async def test_a_user_who_logs_in_by_password_sees_screens_as_well():
    async with client_of(change=by_password()) as (client, sim):
        sim.world.access.users["root@pam"].password = "quorate"
        assert (await look(client, VM)).width == 640


async def test_the_raw_api_still_opens_no_console(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("api_call", method="POST", path="/nodes/pve1/qemu/102/vncproxy")
        assert "opens a console" in text


# -- the protocol alone ------------------------------------------------------------------------------------------------


def test_the_answer_to_a_challenge_is_the_one_that_openssl_gives():
    expected = "b866924125c8eebb9debc1db61c538e2"
    assert response_to(bytes(range(16)), "password").hex() == expected
    assert response_to(bytes(range(16)), "password and more").hex() == expected
    assert len(response_to(bytes(16), "x")) == 16


WHOLE = (
    screen(2, 2, b"QEMU")
    + b"\x02"
    + struct.pack(">B3xI", 3, 4)
    + b"clip"
    + struct.pack(">BxHH", 1, 0, 1)
    + bytes(6)
    + update(rectangle(0, 0, 3, 1, -223))
    + update(rectangle(0, 0, 2, 1, 0, b"\x01\x02\x03\x00\x04\x05\x06\x00"))
    + update(rectangle(2, 0, 1, 1, 0, b"\x07\x08\x09\x00"))
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_messages_may_be_cut_anywhere(size):
    rfb = RfbClient("password")
    heard = b"".join(rfb.feed(WHOLE[start : start + size]) for start in range(0, len(WHOLE), size))
    assert rfb.picture is not None
    picture = Image.open(io.BytesIO(rfb.picture.png()))
    assert [picture.getpixel((x, 0)) for x in range(3)] == [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    assert heard.startswith(VERSION + b"\x02" + response_to(bytes(16), "password") + b"\x01")
    asked = [struct.pack(">BBHHHH", 3, 0, 0, 0, *size) for size in ((2, 2), (3, 1), (3, 1))]
    assert heard.endswith(b"".join(asked))


def test_a_server_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(pve_screens, "MOST_BYTES", 10_000)
    rfb = RfbClient("password")
    rfb.feed(screen(100, 100))
    with pytest.raises(Problem, match="violates the VNC"):
        rfb.feed(update(rectangle(0, 0, 100, 1, 0, bytes(400))) * 30)


def test_the_png_is_whole():
    picture = Picture(1, 1)
    picture.put(0, 0, b"\x10\x20\x30\x40")
    png = picture.png()
    assert png[-12:] == bytes(4) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    assert Image.open(io.BytesIO(png)).getpixel((0, 0)) == (0x10, 0x20, 0x30)
