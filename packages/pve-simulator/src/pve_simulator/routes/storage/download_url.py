"""Downloads from URLs and registries to a storage."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pve_simulator.clock import log_time
from pve_simulator.guests.guest import GIB, MIB
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.storage import volume_access, volumes
from pve_simulator.storage.appliances import Appliance, ApplianceDisk
from pve_simulator.storage.storages import FILE_BASED, Storage, Volume
from pve_simulator.world import World

ALGORITHMS = ("sha512", "sha384", "sha256", "sha224", "sha1", "md5")

_ISO = "application/x-iso9660-image"
_BINARY = "application/octet-stream"
_DOTS_PER_LINE = 32 * MIB
_BYTES_PER_SECOND = 90 * MIB
_LONGEST_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on the simulated internet."""

    url: str
    size: int
    mimetype: str
    appliance: Appliance | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def checksum(self, algorithm: str) -> str:
        """The checksum of the file."""
        return hashlib.new(algorithm, self.url.encode(), usedforsecurity=False).hexdigest()


_IMAGES = (
    ("https://cdimage.debian.org/debian-cd/current/amd64/iso-cd/debian-13.1.0-amd64-netinst.iso", 783, _ISO),
    ("https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2", 332, _BINARY),
    ("https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2", 334, _BINARY),
    ("https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img", 597, _BINARY),
    ("https://cloud-images.ubuntu.com/jammy/current/jammy-server-cloudimg-amd64.img", 662, _BINARY),
    ("https://releases.ubuntu.com/24.04/ubuntu-24.04.3-live-server-amd64.iso", 3150, _ISO),
    ("https://dl-cdn.alpinelinux.org/alpine/v3.22/releases/x86_64/alpine-virt-3.22.2-x86_64.iso", 66, _ISO),
    ("https://fedorapeople.org/groups/virt/virtio-win/direct-downloads/stable-virtio/virtio-win.iso", 709, _ISO),
    (
        "https://cloud.centos.org/centos/10-stream/x86_64/images/CentOS-Stream-GenericCloud-10-latest.x86_64.qcow2",
        885,
        _BINARY,
    ),
    ("https://download.rockylinux.org/pub/rocky/10/isos/x86_64/Rocky-10-latest-x86_64-minimal.iso", 1570, _ISO),
    ("https://enterprise.proxmox.com/iso/proxmox-ve_9.1-1.iso", 1785, _ISO),
    ("https://enterprise.proxmox.com/iso/proxmox-backup-server_4.1-1.iso", 1510, _ISO),
)
CATALOGUE: dict[str, RemoteFile] = {
    url: RemoteFile(url, megabytes * MIB + 4096 * (index + 1), mimetype)
    for index, (url, megabytes, mimetype) in enumerate(_IMAGES)
}
_HOME_ASSISTANT = RemoteFile(
    "https://github.com/home-assistant/operating-system/releases/download/16.3/haos_ova-16.3.ova",
    498 * MIB,
    _BINARY,
    Appliance(
        "HomeAssistant",
        (ApplianceDisk("sata0", "haos_ova-16.3.vmdk", 32 * GIB),),
        cores=2,
        memory=4096,
        efi=True,
        networks=("e1000",),
    ),
)
CATALOGUE |= {_HOME_ASSISTANT.url: _HOME_ASSISTANT}
_HOSTS = frozenset(urlsplit(url).hostname for url in CATALOGUE)


class Unreachable(Exception):
    """A URL that cannot be fetched: wget's output, with the reason in the last line."""

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[-1])
        self.lines = lines


def look_up(url: str, now: float) -> RemoteFile:
    """The file of a URL, or wget's error."""
    file = CATALOGUE.get(url)
    if file is not None:
        return file
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in _HOSTS:
        raise Unreachable(
            "HTTP request sent, awaiting response... 404 Not Found", f"{log_time(now)} ERROR 404: Not Found."
        )
    address = _address(host)
    if address is None:
        raise Unreachable(
            f"Resolving {host} ({host})... failed: Name or service not known.",
            f"wget: unable to resolve host address '{host}'",
        )
    reason = "Connection refused" if address.is_loopback else "No route to host"
    raise Unreachable(f"Connecting to {_with_port(url)}... failed: {reason}.")


def unreachable_in_words_of_lwp(url: str, now: float) -> str:
    """The status line of a failed HEAD request in PVE's HTTP client (LWP)."""
    host = urlsplit(url).hostname or ""
    try:
        look_up(url, now)
    except Unreachable as error:
        if host in _HOSTS:
            return "404 Not Found"
        address = _address(host)
        reason = "Name or service not known" if address is None else str(error).rpartition("failed: ")[2].rstrip(".")
        return f"500 Can't connect to {_with_port(url)} ({reason})"
    return "200 OK"


def download(
    world: World,
    node: str,
    storage: Storage,
    content: str,
    name: str,
    url: str,
    *,
    source: RemoteFile | None = None,
    expected: tuple[str, str] | None = None,
    overwrite: bool = False,
) -> Work:
    """The work of a download task; `expected` is an algorithm and a checksum, `source` overrides the remote file."""
    volid = f"{storage.id}:{content}/{name}"
    path = volumes.path_of(storage, f"{content}/{name}")

    async def work(context: TaskContext) -> None:
        context.log(f"downloading {url} to {path}")
        present = storage.volume(node, volid)
        if present is not None and _is_already_right(context, present, expected, path, overwrite=overwrite):
            return
        remote = source or _find(context, url, world.clock.now())
        await _transfer(context, remote, path)
        if expected is not None:
            volume_access.verify(context, remote.checksum(expected[0]), expected[1])
        known = {algorithm: remote.checksum(algorithm) for algorithm in ALGORITHMS}
        full = "download failed: Cannot write to file (No space left on device)"
        volume_access.store_file(world, storage, node, volid, remote.size, known, full).appliance = remote.appliance
        context.log(f"download of '{url}' to '{path}' finished")

    return work


def _is_already_right(
    context: TaskContext, present: Volume, expected: tuple[str, str] | None, path: str, *, overwrite: bool
) -> bool:
    if expected is None:
        raise TaskError(f"refusing to override existing file '{path}'")
    algorithm, checksum = expected
    actual = _checksum_of(present, algorithm)
    if actual.lower() == checksum.lower():
        context.log("calculating checksum of existing file...OK, got correct file already, no need to download")
        return True
    mismatch = f"checksum mismatch: got '{actual}' != expect '{checksum}'"
    if not overwrite:
        context.log("calculating checksum of existing file...")
        raise TaskError(f"{mismatch}, aborting")
    context.log(f"calculating checksum of existing file...{mismatch}, re-download")
    return False


def _checksum_of(volume: Volume, algorithm: str) -> str:
    """The checksum of a file on a storage; if its content is unknown, one derived from its name."""
    known = (volume.checksums or {}).get(algorithm)
    return known or hashlib.new(algorithm, volume.volid.encode(), usedforsecurity=False).hexdigest()


def _find(context: TaskContext, url: str, now: float) -> RemoteFile:
    context.log(f"--{log_time(now)}--  {url}")
    try:
        remote = look_up(url, now)
    except Unreachable as error:
        for line in error.lines[:-1]:
            context.log(line)
        raise TaskError(f"download failed: {error.lines[-1]}") from error
    host = urlsplit(url).hostname
    context.log(f"Resolving {host} ({host})... 203.0.113.80")
    context.log(f"Connecting to {host} ({host})|203.0.113.80|:443... connected.")
    context.log("HTTP request sent, awaiting response... 200 OK")
    return remote


async def _transfer(context: TaskContext, remote: RemoteFile, path: str) -> None:
    """Transfer the file with wget's progress output."""
    context.log(f"Length: {remote.size} ({remote.size // MIB}M) [{remote.mimetype}]")
    context.log(f"Saving to: '{path}.tmp_dwnl.{context.task.upid.pid}'")
    lines = max(1, -(-remote.size // _DOTS_PER_LINE))
    seconds = min(_LONGEST_SECONDS, 0.5 + remote.size / _BYTES_PER_SECOND)
    rate = remote.size / seconds / MIB
    for line in range(lines):
        await context.sleep(seconds / lines)
        percent = min(100, (line + 1) * _DOTS_PER_LINE * 100 // remote.size)
        left = seconds * (lines - line - 1) / lines
        ending = f"{left:.0f}s" if line + 1 < lines else f"={seconds:.1f}s"
        context.log(f"{line * 32 * 1024:>6}K ........ ........ ........ ........ {percent:>3}% {rate:.1f}M {ending}")
    context.log(f"{log_time(context.clock.now())} ({rate:.1f} MB/s) - '{path}' saved [{remote.size}/{remote.size}]")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if host == "localhost":
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _with_port(url: str) -> str:
    parts = urlsplit(url)
    port = _port(url) or (443 if parts.scheme == "https" else 80)
    return f"{parts.hostname}:{port}"


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


_DECOMPRESSORS = ("gz", "lzo", "zst", "bz2")


@route("POST /nodes/{node}/storage/{storage}/download-url")
def download_url(call: Call) -> str:
    storage = _file_storage(call)
    content = call.params["content"]
    _check_content(storage, content)
    name = volume_access.normalized_file_name(call.params["filename"])
    volume_access.check_file_name(content, name)
    expected = None
    if call.params.get("checksum"):
        expected = (call.params["checksum-algorithm"], call.params["checksum"])
    work = download(call.world, call.node, storage, content, name, call.params["url"], expected=expected)
    return call.start_task("download", name, _decompressing(call, content, work))


def _decompressing(call: Call, content: str, work: Work) -> Work:
    """Wrap a download with decompression, which only ISO images support."""
    compression = call.params.get("compression")
    if compression is None:
        return work

    async def check_and_work(context: TaskContext) -> None:
        if content != "iso":
            raise TaskError(f"decompression not supported for {content}")
        if compression not in _DECOMPRESSORS:
            raise TaskError("no decompression method found")
        await work(context)

    return check_and_work


def _file_storage(call: Call) -> Storage:
    storage = volume_access.storage_of_path(call)
    if storage.type not in FILE_BASED:
        raise failure(f"can't upload to storage type '{storage.type}', not a file based storage!")
    return storage


def _check_content(storage: Storage, content: str) -> None:
    if content not in storage.content:
        raise failure(f"storage '{storage.id}' is not configured for content-type '{content}'")


@route("GET /nodes/{node}/query-url-metadata")
def url_metadata(call: Call) -> dict[str, Any]:
    url, now = call.params["url"], call.world.clock.now()
    try:
        file = look_up(url, now)
    except Unreachable as error:
        line = unreachable_in_words_of_lwp(url, now)
        raise failure(f"invalid server response: '{line}'") from error
    return {"filename": file.name, "mimetype": file.mimetype, "size": file.size}
