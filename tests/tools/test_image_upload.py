"""Uploads from a file or from the call itself: checked, bounded in memory, with clear errors when interrupted."""

import asyncio
import base64
import hashlib
import tracemalloc
from contextlib import asynccontextmanager
from pathlib import PosixPath

import pytest

from pve_simulator.http.certificates import create_identity
from quorate.config import Access
from quorate.problems import BadArgument, OutcomeUnknown, TimedOut
from quorate.pve.client import PveClient
from quorate.pve.connection import Connection, Limits, Secret, Token, Trust
from tests.rigs.mcp_session import rig
from tests.rigs.tcp_server import hang, tcp_server

pytestmark = pytest.mark.anyio

MIB = 1024**2
CONTENT = b"an image, or so it says" * 1000


def volume(quorate, volid, node="pve1"):
    return quorate.sim.world.storages[volid.partition(":")[0]].volume(node, volid)


SIGNATURES = {"qcow2": b"QFI\xfb", "vmdk": b"KDMV", "ova": bytes(257) + b"ustar"}


def image(tmp_path, name="tools.iso", content=None):
    content = SIGNATURES.get(name.rpartition(".")[2], b"") + CONTENT if content is None else content
    path = tmp_path / name
    path.write_bytes(content)
    return path


async def test_a_local_file_arrives_whole_and_is_checked_by_pve(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("image_upload", file=str(image(tmp_path)), storage="local", node="pve2")
        assert facts["result"] == "done"
        assert facts["volume"] == "local:iso/tools.iso"
        stored = volume(quorate, "local:iso/tools.iso", "pve2")
        assert stored.size == len(CONTENT)
        assert stored.checksums == {"sha256": hashlib.sha256(CONTENT).hexdigest()}


@pytest.mark.parametrize(
    ("name", "content"),
    [("disk.qcow2", "import"), ("base.tar.zst", "vztmpl"), ("disk.img", "iso"), ("vm.ova", "import")],
)
async def test_the_file_extension_decides_the_content_type(tmp_path, name, content):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("image_upload", file=str(image(tmp_path, name)), node="pve1", storage="local")
        assert volume(quorate, f"local:{content}/{name}").content == content
        assert facts["volume"] == f"local:{content}/{name}"


async def test_small_content_comes_with_the_call_and_stays_out_of_the_audit_trail(tmp_path):
    async with rig(tmp_path) as quorate:
        data = base64.b64encode(CONTENT).decode()
        await quorate.facts("image_upload", data=data, filename="my tools.iso", storage="nas")
        assert volume(quorate, "nas:iso/my_tools.iso").size == len(CONTENT)
        entry = quorate.audit()[-1]
        assert entry["outcome"] == "done"
        assert len(entry["arguments"]["data"]) < 200


async def test_without_wishes_it_goes_to_the_roomiest_storage_and_says_so(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("image_upload", file=str(image(tmp_path)))
        assert facts["volume"] == "nas:iso/tools.iso"
        assert volume(quorate, "nas:iso/tools.iso") is not None


async def test_a_file_of_the_same_name_is_replaced_only_on_request_and_only_at_access_admin(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        assert "image_upload" in [tool.name for tool in (await quorate.client.list_tools()).tools]
        await quorate.facts("image_upload", file=str(image(tmp_path)), storage="nas")
        text = await quorate.refusal("image_upload", file=str(image(tmp_path, content=b"new")), storage="nas")
        assert "already exists" in text
        assert "overwrite=true" in text
        text = await quorate.refusal("image_upload", file=str(image(tmp_path)), storage="nas", overwrite=True)
        assert "--access admin" in text
    async with rig(tmp_path) as quorate:
        await quorate.facts("image_upload", file=str(image(tmp_path)), storage="nas")
        newer = str(image(tmp_path, content=b"new"))
        facts = await quorate.facts("image_upload", file=newer, storage="nas", overwrite=True)
        assert "is lost" in facts["warnings"][0]
        assert volume(quorate, "nas:iso/tools.iso").size == 3
        assert quorate.audit()[-1]["risk"] == "destroy"


async def test_at_access_read_uploading_is_not_listed(tmp_path):
    async with rig(tmp_path, access=Access.READ) as quorate:
        assert "image_upload" not in [tool.name for tool in (await quorate.client.list_tools()).tools]


async def test_a_wrong_checksum_is_noticed_before_anything_is_sent(tmp_path):
    async with rig(tmp_path) as quorate:
        path = str(image(tmp_path))
        good = hashlib.sha512(CONTENT).hexdigest()
        assert (await quorate.facts("image_upload", file=path, checksum=good))["sha512"] == good
        text = await quorate.refusal("image_upload", file=path, filename="b.iso", checksum="sha256:" + "0" * 64)
        assert hashlib.sha256(CONTENT).hexdigest() in text
        assert "hex digits" in await quorate.refusal("image_upload", file=path, filename="b.iso", checksum="12ab")
        assert [method for method, _ in quorate.sim.requests].count("POST") == 1


async def test_a_dry_run_shows_checksum_and_target_and_sends_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("image_upload", file=str(image(tmp_path)), storage="nas", dry_run=True)
        assert facts["sha256"] == hashlib.sha256(CONTENT).hexdigest()
        assert "/storage/nas/upload" in facts["steps"][0]["call"]
        assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_what_cannot_be_uploaded_is_refused_with_the_reason(tmp_path):
    async with rig(tmp_path) as quorate:
        secret = image(tmp_path, "id_ed25519")
        (tmp_path / "link.iso").symlink_to(secret)
        for arguments, words in (
            ({}, "One of file and data"),
            ({"file": str(tmp_path / "none.iso")}, "No such file"),
            ({"file": str(secret), "filename": "key.iso"}, "does not have the extension of an image"),
            ({"file": str(tmp_path / "link.iso")}, "does not have the extension of an image"),
            ({"file": str(image(tmp_path, "empty.iso", b""))}, "is empty"),
            ({"file": str(image(tmp_path, "false.qcow2", b"PK\x03\x04 packed"))}, "Image is not in qcow2 format"),
            ({"data": base64.b64encode(CONTENT).decode(), "filename": "false.vmdk"}, "is not a vmdk image"),
            ({"file": str(image(tmp_path)), "content": "import"}, ".qcow2"),
            ({"file": str(image(tmp_path)), "storage": "local-lvm"}, "does not take iso"),
            ({"file": str(image(tmp_path)), "storage": "nowhere"}, "no storage 'nowhere'"),
            ({"data": "!!!", "filename": "a.iso"}, "not base64"),
            ({"data": "YQ=="}, "needs a filename"),
            ({"data": "YQ==", "filename": "a.exe"}, "does not have the extension of an image"),
            ({"data": "A" * (12 * MIB), "filename": "a.iso"}, "8M at most"),
        ):
            assert words in await quorate.refusal("image_upload", **arguments), words
        (tmp_path / "folder.iso").mkdir()
        assert "is not a file" in await quorate.refusal("image_upload", file=str(tmp_path / "folder.iso"))
        assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_a_file_that_does_not_fit_is_refused_before_it_is_sent(tmp_path):
    async with rig(tmp_path) as quorate:
        path = tmp_path / "huge.iso"
        with path.open("wb") as file:
            file.truncate(200 * 1024**3)
        text = await quorate.refusal("image_upload", file=str(path), storage="local", node="pve1")
        assert "free, not 200G" in text


@pytest.mark.thorough
async def test_a_large_file_takes_little_memory_and_shows_progress(tmp_path):
    async with rig(tmp_path) as quorate:
        path = tmp_path / "large.iso"
        with path.open("wb") as file:
            file.truncate(256 * MIB)
        tracemalloc.start()
        try:
            await quorate.facts("image_upload", file=str(path), storage="nas")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 32 * MIB  # both sides of the connection live in this process
        assert volume(quorate, "nas:iso/large.iso").size == 256 * MIB
        shown = [done for done, _, _ in quorate.progress]
        assert shown == sorted(set(shown))
        assert len([done for done in shown if 0 < done < 90]) > 10
        assert shown[-1] == 100
        assert any("of 256 MiB sent" in (line or "") for _, _, line in quorate.progress)


async def test_an_upload_whose_answer_is_lost_is_found_by_its_task_on_the_node_that_took_it(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/upload"]) as quorate:
        facts = await quorate.facts("image_upload", file=str(image(tmp_path)), storage="local", node="pve3")
        assert "answer was lost" in facts["note"]
        assert ":imgcopy:" in facts["task"]
        assert volume(quorate, "local:iso/tools.iso", "pve3").size == len(CONTENT)
        assert [method for method, _ in quorate.sim.requests].count("POST") == 1


async def test_an_upload_that_never_arrived_is_reported_and_not_repeated(tmp_path):
    async with rig(tmp_path, faults=["drop:before:POST:/nodes/*/upload"]) as quorate:
        text = await quorate.refusal("image_upload", file=str(image(tmp_path)), storage="nas")
        assert "No task for it was found" in text or "Nothing was stored" in text
        assert volume(quorate, "nas:iso/tools.iso") is None
        assert [method for method, _ in quorate.sim.requests].count("POST") == 1


async def test_a_failed_import_is_an_error_with_its_reason(tmp_path):
    async with rig(tmp_path, faults=["task-fails:imgcopy:import failed: No space left on device"]) as quorate:
        text = await quorate.refusal("image_upload", file=str(image(tmp_path)), storage="nas")
        assert "No space left on device" in text


# -- on the wire -------------------------------------------------------------------------------------------------------

FIELDS = {"filename": "x.iso", "checksum": "ab" * 32, "checksum-algorithm": "sha256", "content": "iso"}
PATH = "/nodes/pve1/storage/local/upload"
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{"data":"OK"}'


@asynccontextmanager
async def peer(tmp_path, serve, **limits):
    """A client whose other side does what `serve` says, over real TLS."""
    identity = create_identity(tmp_path, ["pve1"])
    token = Token("root@pam!t", Secret("00000000-0000-0000-0000-000000000000"))
    async with tcp_server(serve, identity.context) as port:
        trusted = Trust(ca_file=str(identity.ca_file))
        client = PveClient(Connection((f"https://127.0.0.1:{port}",), token, trusted, Limits(**limits)))
        client.note_nodes({"pve1": True})
        try:
            yield client
        finally:
            await client.close()


async def test_the_body_has_the_form_and_the_length_that_pve_insists_on(tmp_path):
    received = bytearray()

    async def serve(reader, writer):
        while not (received.endswith(b"--\r\n") or reader.at_eof()):
            received.extend(await reader.read(65536))
        writer.write(ANSWER)
        await writer.drain()

    async with peer(tmp_path, serve) as client:
        assert (await client.upload(PATH, FIELDS, image(tmp_path))).data == "OK"
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert int(headers["Content-Length"]) == len(body)
    assert "Transfer-Encoding" not in headers
    boundary = headers["Content-Type"].partition("boundary=")[2]
    parts = body.split(f"--{boundary}".encode())
    names = [part.partition(b'name="')[2].partition(b'"')[0].decode() for part in parts[1:-1]]
    assert names == ["content", "checksum-algorithm", "checksum", "filename"]
    file_headers, _, content = parts[4].partition(b"\r\n\r\n")
    assert file_headers.startswith(
        b'\r\nContent-Disposition: form-data; name="filename"; filename="x.iso"\r\nContent-Type'
    )
    assert content == CONTENT + b"\r\n"


async def test_a_connection_cut_in_the_middle_leaves_no_doubt_that_nothing_was_stored(tmp_path):
    async def serve(reader, writer):
        await reader.readexactly(3 * MIB)

    async with peer(tmp_path, serve) as client:
        with pytest.raises(TimedOut, match="interrupted after") as error:
            await client.upload(PATH, FIELDS, image(tmp_path, content=bytes(64 * MIB)))
        assert "Nothing was stored" in str(error.value)


@pytest.mark.parametrize("received", [1, 3 * MIB])
async def test_wherever_the_connection_breaks_the_file_is_closed(tmp_path, received):
    opened = []

    class Watched(PosixPath):
        def open(self, *arguments, **more):
            opened.append(super().open(*arguments, **more))
            return opened[-1]

    async def serve(reader, writer):
        await reader.readexactly(received)

    path = Watched(image(tmp_path, content=bytes(64 * MIB)))
    async with peer(tmp_path, serve) as client:
        with pytest.raises(TimedOut, match="Nothing was stored"):
            await client.upload(PATH, FIELDS, path)
        assert [file.closed for file in opened] == [True]


async def test_a_connection_cut_after_the_last_byte_leaves_the_fate_unknown(tmp_path):
    async def serve(reader, writer):
        received = b""
        while not (received.endswith(b"--\r\n") or reader.at_eof()):
            received += await reader.read(65536)

    async with peer(tmp_path, serve) as client:
        with pytest.raises(OutcomeUnknown, match="not known whether"):
            await client.upload(PATH, FIELDS, CONTENT)


async def test_an_answer_that_cannot_be_read_leaves_the_fate_of_an_upload_unknown(tmp_path):
    async def serve(reader, writer):
        received = b""
        while not (received.endswith(b"--\r\n") or reader.at_eof()):
            received += await reader.read(65536)
        writer.write(ANSWER.replace(b'{"data":"OK"}', b"<html></html>"))
        await writer.drain()

    async with peer(tmp_path, serve) as client:
        with pytest.raises(OutcomeUnknown, match="not from the PVE API"):
            await client.upload(PATH, FIELDS, CONTENT)


async def test_an_upload_that_makes_no_progress_is_aborted(tmp_path):
    async def serve(reader, writer):
        await reader.readexactly(MIB)
        await hang(reader, writer)

    async with peer(tmp_path, serve, request_seconds=0.3) as client:
        with pytest.raises(TimedOut, match="interrupted after"):
            await client.upload(PATH, FIELDS, image(tmp_path, content=bytes(64 * MIB)))


async def test_an_upload_may_take_longer_than_any_other_request_as_long_as_it_moves(tmp_path):
    async def serve(reader, writer):
        for _ in range(5):
            await reader.readexactly(3 * MIB)
            await asyncio.sleep(0.5)  # the length of the upload is what is tested
        while not (await reader.read(MIB)).endswith(b"--\r\n"):
            pass
        writer.write(ANSWER)
        await writer.drain()

    async with peer(tmp_path, serve, request_seconds=2.0) as client:
        begun = asyncio.get_running_loop().time()
        assert (await client.upload(PATH, FIELDS, image(tmp_path, content=bytes(24 * MIB)))).data == "OK"
        assert asyncio.get_running_loop().time() - begun > 2.0


async def test_a_file_that_shrinks_while_it_is_sent_is_reported(tmp_path):
    path = image(tmp_path, content=bytes(32 * MIB))

    async def serve(reader, writer):
        await reader.readexactly(MIB)
        path.write_bytes(b"short")
        while await reader.read(65536):
            pass

    async with peer(tmp_path, serve) as client:
        with pytest.raises(BadArgument, match="could not be read completely"):
            await client.upload(PATH, FIELDS, path)


async def test_a_file_goes_to_the_node_that_has_it_already_and_is_then_a_question_of_overwriting(tmp_path):
    async with rig(tmp_path) as quorate:
        for node in ("pve1", "pve2", "pve3"):
            path = str(image(tmp_path, f"on-{node}.iso"))
            await quorate.facts("image_upload", file=path, storage="local", node=node)
            text = await quorate.refusal("image_upload", file=path, storage="local")
            assert f"on {node} already exists" in text
            assert "node= for a copy on another node" in text
            facts = await quorate.facts("image_upload", file=path, storage="local", overwrite=True)
            assert facts["node"] == node
            holders = [
                place for place in ("pve1", "pve2", "pve3") if volume(quorate, f"local:iso/on-{node}.iso", place)
            ]
            assert holders == [node]


async def test_the_node_that_was_chosen_for_a_local_storage_is_named_with_a_warning(tmp_path):
    async with rig(tmp_path) as quorate:
        path = str(image(tmp_path))
        facts = await quorate.facts("image_upload", file=path, storage="local")
        others = {"pve1", "pve2", "pve3"} - {facts["node"]}
        assert volume(quorate, "local:iso/tools.iso", facts["node"]).size == len(CONTENT)
        assert f"{facts['node']} was chosen" in facts["warnings"][0]
        assert all(node in facts["warnings"][0] for node in others)
        shared = await quorate.facts("image_upload", file=path, storage="nas")
        assert "warnings" not in shared
