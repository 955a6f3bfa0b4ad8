"""Downloads without internet: a catalog of known images, and wget's errors for the rest."""

from __future__ import annotations

import hashlib

import pytest

from pve_simulator.api_client import Api
from pve_simulator.routes.storage.aplinfo import APPLIANCES
from pve_simulator.routes.storage.download_url import CATALOGUE

_URL = "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2"
_DOWNLOAD = "/nodes/pve1/storage/local/download-url"


async def test_a_known_image_is_downloaded_with_progress_and_checksum(api: Api) -> None:
    checksum = hashlib.sha512(_URL.encode()).hexdigest()
    reply = await api.post(
        _DOWNLOAD,
        url=_URL,
        content="import",
        filename="debian-13.qcow2",
        checksum=checksum,
        **{"checksum-algorithm": "sha512"},
    )
    assert reply.data.split(":")[5:7] == ["download", "debian-13.qcow2"]
    assert await api.finish_task(reply) == "OK"
    lines = [line["t"] for line in (await api.log(reply.data, limit=0)).data]
    assert lines[0] == f"downloading {_URL} to /var/lib/vz/import/debian-13.qcow2"
    assert any(" 54%" in line or " 57%" in line for line in lines)
    assert "calculating checksum...OK, checksum verified" in lines
    row = (await api.get("/nodes/pve1/storage/local/content", content="import")).data[0]
    assert (row["volid"], row["size"]) == ("local:import/debian-13.qcow2", CATALOGUE[_URL].size)


@pytest.mark.parametrize(
    ("url", "ending"),
    [
        ("http://127.0.0.1:9/x.iso", "Connecting to 127.0.0.1:9... failed: Connection refused."),
        ("https://nowhere.example/x.iso", "wget: unable to resolve host address 'nowhere.example'"),
        ("http://10.9.8.7/x.iso", "Connecting to 10.9.8.7:80... failed: No route to host."),
        ("https://cloud.debian.org/nope.iso", "2026-01-15 08:00:00 ERROR 404: Not Found."),
    ],
)
async def test_what_cannot_be_reached_fails_in_the_task(api: Api, url: str, ending: str) -> None:
    reply = await api.post(_DOWNLOAD, url=url, content="iso", filename="x.iso")
    assert await api.finish_task(reply) == f"download failed: {ending}"


async def test_an_existing_file_is_only_replaced_by_nothing(api: Api) -> None:
    params = {"url": _URL, "content": "import", "filename": "d.qcow2"}
    await api.finish_task(await api.post(_DOWNLOAD, **params))
    plain = await api.finish_task(await api.post(_DOWNLOAD, **params))
    assert plain == "refusing to override existing file '/var/lib/vz/import/d.qcow2'"
    right = hashlib.md5(_URL.encode(), usedforsecurity=False).hexdigest()
    same = await api.post(_DOWNLOAD, **params, checksum=right, **{"checksum-algorithm": "md5"})
    assert await api.finish_task(same) == "OK"
    other = await api.post(_DOWNLOAD, **params, checksum="0", **{"checksum-algorithm": "md5"})
    assert await api.finish_task(other) == f"checksum mismatch: got '{right}' != expect '0', aborting"


async def test_a_wrong_checksum_leaves_no_file(api: Api) -> None:
    reply = await api.post(
        _DOWNLOAD, url=_URL, content="import", filename="d.qcow2", checksum="0", **{"checksum-algorithm": "md5"}
    )
    assert (await api.finish_task(reply)).startswith("checksum mismatch: got '")
    assert (await api.get("/nodes/pve1/storage/local/content", content="import")).data == []


async def test_what_is_refused_before_the_download_begins(api: Api) -> None:
    ending = await api.post(_DOWNLOAD, url=_URL, content="iso", filename="x.exe")
    assert ending.errors == {"filename": "wrong file extension"}
    block = await api.post("/nodes/pve1/storage/local-lvm/download-url", url=_URL, content="iso", filename="x.iso")
    assert block.reason == "can't upload to storage type 'lvmthin', not a file based storage!"
    content = await api.post("/nodes/pve1/storage/nas/download-url", url=_URL, content="import", filename="x.qcow2")
    assert content.reason == "storage 'nas' is not configured for content-type 'import'"
    pair = await api.post(_DOWNLOAD, url=_URL, content="iso", filename="x.iso", checksum="0")
    assert pair.errors == {"checksum-algorithm": "missing property required by 'checksum'"}
    packed = await api.post(_DOWNLOAD, url=_URL, content="import", filename="x.qcow2", compression="gz")
    assert await api.finish_task(packed) == "decompression not supported for import"


async def test_metadata_of_a_url_and_its_absence(api: Api) -> None:
    path = "/nodes/pve1/query-url-metadata"
    metadata = (await api.get(path, url=_URL)).data
    assert metadata["filename"] == "debian-13-genericcloud-amd64.qcow2"
    assert metadata["size"] == CATALOGUE[_URL].size
    lost = await api.get(path, url="https://nowhere.example/x")
    assert lost.reason == (
        "invalid server response: '500 Can't connect to nowhere.example:443 (Name or service not known)'"
    )


async def test_an_appliance_of_the_list_can_be_fetched(api: Api) -> None:
    rows = (await api.get("/nodes/pve1/aplinfo")).data
    assert {row["section"] for row in rows} == {"system", "turnkeylinux"}
    template = next(row["template"] for row in rows if row["package"] == "ubuntu-24.04-standard")
    reply = await api.post("/nodes/pve1/aplinfo", storage="local", template=template)
    assert await api.finish_task(reply) == "OK"
    volid = f"local:vztmpl/{template}"
    kept = {row["volid"]: row for row in (await api.get("/nodes/pve1/storage/local/content", content="vztmpl")).data}
    assert kept[volid]["size"] == APPLIANCES[template].file.size
    again = await api.post("/nodes/pve1/aplinfo", storage="local", template=template)
    assert await api.finish_task(again) == "OK"
    assert "no need to download" in (await api.log(again.data)).text
    unknown = await api.post("/nodes/pve1/aplinfo", storage="local", template="nope.tar.zst")
    assert unknown.errors == {"template": "no such template"}
    wrong = await api.post("/nodes/pve1/aplinfo", storage="local-lvm", template=template)
    assert wrong.reason == "storage 'local-lvm' does not support templates"
