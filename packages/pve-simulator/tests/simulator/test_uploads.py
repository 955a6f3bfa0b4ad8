"""Uploads, parsed as PVE's HTTP server does."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest

from pve_simulator.api_client import Api, Reply
from pve_simulator.routes.storage.upload import BadUpload, Upload, boundary_of

_BOUNDARY = "a-boundary"
_DATA = b"not really an image\r\n--not a boundary\r\n" * 400


def _field(name: str, value: str) -> bytes:
    return f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def _file(file_name: str, data: bytes = _DATA, field: str = "filename") -> bytes:
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="{file_name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return head.encode() + data + b"\r\n"


_END = f"--{_BOUNDARY}--\r\n".encode()


async def _upload(api: Api, body: bytes, storage: str = "local", **headers: str) -> Reply:
    sent = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}", **headers}
    return await api.request("POST", f"/nodes/pve1/storage/{storage}/upload", data=body, headers=sent)


async def test_a_file_arrives_complete_and_the_log_shows_the_steps(api: Api) -> None:
    reply = await _upload(api, _field("content", "iso") + _file("my image.iso") + _END)
    assert reply.data.split(":")[5:7] == ["imgcopy", ""]
    assert await api.finish_task(reply) == "OK"
    rows = (await api.get("/nodes/pve1/storage/local/content", content="iso")).data
    sizes = {row["volid"]: row["size"] for row in rows}
    assert sizes["local:iso/my_image.iso"] == len(_DATA)
    lines = [line["t"] for line in (await api.log(reply.data)).data]
    assert lines[0].startswith("starting file import from: /var/tmp/pveupload-")
    assert f"file size is: {len(_DATA)}" in lines
    assert lines[-2:] == ["finished file import successfully", "TASK OK"]


async def test_checksums_are_checked_in_the_task(api: Api) -> None:
    right = hashlib.sha256(_DATA).hexdigest()
    fields = _field("content", "iso") + _field("checksum-algorithm", "sha256")
    good = await _upload(api, fields + _field("checksum", right.upper()) + _file("a.iso") + _END)
    assert await api.finish_task(good) == "OK"
    bad = await _upload(api, fields + _field("checksum", "0" * 64) + _file("b.iso") + _END)
    assert await api.finish_task(bad) == f"checksum mismatch: got '{right}' != expect '{'0' * 64}'"
    names = [row["volid"] for row in (await api.get("/nodes/pve1/storage/local/content")).data]
    assert "local:iso/a.iso" in names
    assert "local:iso/b.iso" not in names


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("disk.qcow2", b"QFI\xfb\0\0\0\3" + bytes(16) + (3 << 30).to_bytes(8, "big") + bytes(480)),
        ("disk.vmdk", b"KDMV\1\0\0\0\3\0\0\0" + (3 << 21).to_bytes(8, "little") + bytes(492)),
    ],
)
async def test_an_image_makes_a_disk_of_the_size_that_it_says(api: Api, name: str, image: bytes) -> None:
    reply = await _upload(api, _field("content", "import") + _file(name, image) + _END)
    assert await api.finish_task(reply) == "OK"
    rows = (await api.get("/nodes/pve1/storage/local/content", content="import")).data
    assert next(row["size"] for row in rows if row["volid"] == f"local:import/{name}") == len(image)
    volume = (await api.get(f"/nodes/pve1/storage/local/content/local:import/{name}")).data
    assert volume["size"] == 3 << 30
    await api.put("/nodes/pve1/qemu/108/config", scsi5=f"local-lvm:0,import-from=local:import/{name}")
    assert (await api.get("/nodes/pve1/qemu/108/config")).data["scsi5"].endswith("size=3G")


@pytest.mark.parametrize(
    ("content", "name", "error"),
    [
        ("iso", "x.exe", "wrong file extension"),
        ("vztmpl", "x.iso", "wrong file extension"),
        ("import", "x.iso", "invalid filename or wrong extension"),
    ],
)
async def test_the_ending_must_fit_the_content(api: Api, content: str, name: str, error: str) -> None:
    reply = await _upload(api, _field("content", content) + _file(name) + _END)
    assert reply.status == 400
    assert reply.errors == {"filename": error}


async def test_an_upload_that_breaks_off_was_never_begun(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    whole = _field("content", "iso") + _file("cut.iso") + _END

    async def half() -> AsyncIterator[bytes]:
        yield whole[: len(whole) // 2]
        raise ConnectionAbortedError

    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}", "Content-Length": str(len(whole))}
    with caplog.at_level(logging.ERROR):
        with pytest.raises((aiohttp.ClientError, ConnectionAbortedError)):
            await api.request("POST", "/nodes/pve1/storage/local/upload", data=half(), headers=headers)
        names = [row["volid"] for row in (await api.get("/nodes/pve1/storage/local/content")).data]
    assert "local:iso/cut.iso" not in names
    assert "POST" not in {method for method, _ in api.cluster.requests}
    assert not caplog.records


async def test_storages_refuse_what_they_cannot_hold(api: Api) -> None:
    body = _field("content", "iso") + _file("x.iso") + _END
    assert (await _upload(api, body, "local-lvm")).reason == "can't upload to storage type 'lvmthin'"
    await api.post("/storage", storage="disks", type="dir", path="/x", content="images")
    assert (await _upload(api, body, "disks")).reason == "storage 'disks' does not support 'iso' content"
    assert (await _upload(api, body, "nope")).reason == "storage 'nope' does not exist"


async def test_the_order_and_names_of_the_fields_matter(api: Api) -> None:
    late = await _upload(api, _file("x.iso") + _field("content", "iso") + _END)
    assert (late.status, late.reason, late.text) == (400, "Bad Request", "")
    other = await _upload(api, _field("content", "iso") + _file("x.iso", field="file") + _END)
    assert other.status == 500
    assert other.reason == "wrong field name 'file' for file upload, expected 'filename'"
    cut = await _upload(api, _field("content", "iso") + _file("x.iso"))
    assert (cut.status, cut.reason) == (501, "upload failed")
    swapped = _field("content", "iso") + _field("checksum", "0") + _field("checksum-algorithm", "md5")
    reply = await _upload(api, swapped + _file("x.iso") + _END)
    assert (reply.status, reply.reason, reply.text) == (400, "Bad Request", "")


async def test_a_file_whose_headers_begin_with_the_type_is_not_found(api: Api) -> None:
    """PVE looks for the disposition right after the boundary; some HTTP libraries write the type first."""
    head = (
        f"--{_BOUNDARY}\r\nContent-Type: application/octet-stream\r\n"
        'Content-Disposition: form-data; name="filename"; filename="x.iso"\r\n\r\n'
    )
    reply = await _upload(api, _field("content", "iso") + head.encode() + b"data\r\n" + _END)
    assert (reply.status, reply.reason) == (501, "upload failed")


async def test_other_bodies_and_no_body_are_refused(api: Api) -> None:
    path = "/nodes/pve1/storage/local/upload"
    form = await api.post(path, content="iso", filename="x.iso")
    assert form.status == 506
    empty = await api.request("POST", path)
    assert set(empty.errors) == {"content", "filename"}
    body = _field("content", "iso") + _file("x.iso") + _END
    assert (await _upload(api.as_token("bob@pve!monitor"), body)).status == 403
    user = await _upload(api, _field("content", "backup") + _file("x.iso") + _END)
    assert list(user.errors) == ["content"]


async def test_an_upload_to_another_node_lands_there_though_this_one_does_the_work(api: Api) -> None:
    sent = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    body = _field("content", "iso") + _file("far.iso") + _END
    reply = await api.request("POST", "/nodes/pve2/storage/local/upload", data=body, headers=sent)
    assert reply.data.split(":")[1] == "pve1"
    assert await api.finish_task(reply) == "OK"
    assert (await api.get("/nodes/pve2/storage/local/content/local:iso/far.iso")).status == 200
    assert (await api.get("/nodes/pve1/storage/local/content/local:iso/far.iso")).status == 500


async def test_a_full_storage_takes_no_more_files(api: Api) -> None:
    space = api.cluster.world.storages["local"].space("pve1")
    space.base_used = space.total
    reply = await _upload(api, _field("content", "iso") + _file("x.iso") + _END)
    assert "No space left on device" in await api.finish_task(reply)


def test_the_file_is_counted_and_hashed_without_being_kept() -> None:
    body = _field("content", "iso") + _field("checksum-algorithm", "md5") + _file("x.iso") + _END
    whole = hashlib.md5(_DATA, usedforsecurity=False).hexdigest()
    for piece in (1, 7, 64, 1000, len(body)):
        upload = Upload(_BOUNDARY)
        largest = 0
        for start in range(0, len(body), piece):
            upload.feed(body[start : start + piece])
            largest = max(largest, len(upload._buffer))
        upload.finish()
        assert (upload.size, upload.checksum) == (len(_DATA), whole)
        assert upload.fields["filename"] == "x.iso"
        assert largest <= piece + 300


def test_a_body_without_end_is_no_upload() -> None:
    upload = Upload(_BOUNDARY)
    upload.feed(b"nothing of the sort")
    with pytest.raises(BadUpload):
        upload.finish()
    with pytest.raises(BadUpload):
        Upload(_BOUNDARY).feed(f"--{_BOUNDARY}--".encode())
    assert boundary_of("application/json") is None
    assert boundary_of('multipart/form-data; boundary="x"') == "x"
