"""The Python client `proxmoxer` against the simulator."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from proxmoxer import AuthenticationError, ProxmoxAPI, ResourceException  # type: ignore[import-untyped]
from proxmoxer.tools import Files, Tasks  # type: ignore[import-untyped]

from pve_simulator.clock import ManualClock
from pve_simulator.simulator import SimulatedCluster

pytestmark = pytest.mark.anyio

PASSWORD = "a-password"
STOPPED_VM = ("pve1", 108)
IMAGE = b"not much of an image" * 100

_Result = TypeVar("_Result")


class Cluster:
    """A simulated cluster whose time advances while the blocking client waits in its thread."""

    def __init__(self, sim: SimulatedCluster, clock: ManualClock) -> None:
        self.sim = sim
        self._clock = clock

    async def use(self, work: Callable[[ProxmoxAPI], _Result], **login: Any) -> _Result:
        """Log in (by default with the token) and let `work` use the client in a thread."""
        running = asyncio.ensure_future(asyncio.to_thread(self._run_connected, work, login))
        while not (await asyncio.wait({running}, timeout=0.005))[0]:
            await self._clock.advance(0.25)
        return running.result()

    def _run_connected(self, work: Callable[[ProxmoxAPI], _Result], login: dict[str, Any]) -> _Result:
        user, _, name = self.sim.token_id.partition("!")
        token = {"user": user, "token_name": name, "token_value": self.sim.token_secret}
        host = self.sim.url.removeprefix("https://")
        client = ProxmoxAPI(host, verify_ssl=self.sim.ca_file, **(login or token))
        try:
            return work(client)
        finally:
            client._store["session"].close()


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    clock = ManualClock()
    async with SimulatedCluster(clock=clock, auth_delay=0.0) as sim:
        sim.world.access.users["root@pam"].password = PASSWORD
        yield Cluster(sim, clock)


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client polls once a second; simulated seconds are shorter."""
    really_sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: really_sleep(min(seconds, 0.005)))


async def test_a_token_logs_in_and_reads():
    async with cluster() as it:
        nodes = await it.use(lambda api: api.nodes.get())
        assert {node["node"] for node in nodes} == set(it.sim.world.nodes)
        guests = await it.use(lambda api: api.cluster.resources.get(type="vm"))
        assert {guest["vmid"] for guest in guests} == set(it.sim.world.guests)


async def test_a_password_logs_in_and_writes_with_its_csrf_token():
    def start(api: ProxmoxAPI) -> Any:
        node, vmid = STOPPED_VM
        return api.nodes(node).qemu(vmid).status.start.post()

    async with cluster() as it:
        upid = await it.use(start, user="root@pam", password=PASSWORD)
        assert Tasks.decode_upid(upid)["type"] == "qmstart"


async def test_a_ticket_is_renewed_with_itself():
    def renew(api: ProxmoxAPI) -> Any:
        api._store["session"].auth.renew_age = 0
        return api.version.get()

    async with cluster() as it:
        assert (await it.use(renew, user="root@pam", password=PASSWORD))["version"] == "9.1.8"
        assert it.sim.requests.count(("POST", "/access/ticket")) == 2


async def test_a_wrong_password_is_an_authentication_error():
    async with cluster() as it:
        with pytest.raises(AuthenticationError, match="code: 401"):
            await it.use(lambda api: api.version.get(), user="root@pam", password="wrong")


async def test_a_refused_parameter_reaches_the_caller_with_its_error_map():
    async with cluster() as it:
        with pytest.raises(ResourceException) as caught:
            await it.use(lambda api: api.cluster.resources.get(type="nonsense"))
    assert caught.value.status_code == 400
    assert caught.value.errors is not None
    assert "type" in caught.value.errors


async def test_what_does_not_exist_is_a_500_with_its_reason():
    async with cluster() as it:
        with pytest.raises(ResourceException) as caught:
            await it.use(lambda api: api.nodes("pve1").qemu(999).config.get())
    assert caught.value.status_code == 500
    assert "nodes/pve1/qemu-server/999.conf' does not exist" in str(caught.value)


@pytest.mark.usefixtures("_no_waiting")
async def test_the_tasks_tool_follows_a_task_and_reads_its_log():
    def start_and_follow(api: ProxmoxAPI) -> tuple[Any, str]:
        node, vmid = STOPPED_VM
        upid = api.nodes(node).qemu(vmid).status.start.post()
        status = Tasks.blocking_status(api, upid, timeout=30)
        return status, Tasks.decode_log(api.nodes(node).tasks(upid).log.get())

    async with cluster() as it:
        status, log = await it.use(start_and_follow)
        assert status["status"] == "stopped"
        assert status["exitstatus"] == "OK"
        assert log.splitlines()[-1] == "TASK OK"


@pytest.mark.usefixtures("_no_waiting")
async def test_a_guest_lives_from_its_creation_to_its_end():
    def live(api: ProxmoxAPI) -> list[str]:
        node = api.nodes("pve1")

        def follow(upid: str) -> str:
            return str(Tasks.blocking_status(api, upid, timeout=30)["exitstatus"])

        ends = [follow(node.qemu.post(vmid=900, name="made", memory=512, scsi0="local-lvm:4"))]
        node.qemu(900).config.put(description="by proxmoxer", tags="made;here")
        assert node.qemu(900).config.get()["tags"] == "here;made"
        ends.append(follow(node.qemu(900).snapshot.post(snapname="before")))
        ends.append(follow(node.qemu(900).status.start.post()))
        ends.append(follow(node.qemu(900).status.stop.post()))
        ends.append(follow(node.qemu(900).delete()))
        return ends

    async with cluster() as it:
        assert await it.use(live) == ["OK"] * 5
        assert 900 not in it.sim.world.guests


async def test_a_command_in_the_guest_is_split_into_its_arguments():
    def run(api: ProxmoxAPI) -> Any:
        agent = api.nodes("pve1").qemu(102).agent
        process = agent.exec.post(command="echo hello world")
        while True:
            status = agent("exec-status").get(pid=process["pid"])
            if status["exited"]:
                return status

    async with cluster() as it:
        assert (await it.use(run))["out-data"] == "hello world\n"


@pytest.mark.usefixtures("_no_waiting")
async def test_the_files_tool_uploads_a_local_file_with_its_checksum(tmp_path: Path):
    image = tmp_path / "small.iso"
    image.write_bytes(IMAGE)

    def upload(api: ProxmoxAPI) -> Any:
        return Files(api, "pve1", "local").upload_local_file_to_storage(str(image))

    async with cluster() as it:
        status = await it.use(upload)
        assert status["exitstatus"] == "OK"
        volume = it.sim.world.storages["local"].volume("pve1", "local:iso/small.iso")
        assert volume is not None
        assert volume.size == len(IMAGE)


async def test_a_plain_file_object_can_be_uploaded(tmp_path: Path):
    image = tmp_path / "plain.iso"
    image.write_bytes(IMAGE)

    def upload(api: ProxmoxAPI) -> Any:
        with image.open("rb") as file:
            return api.nodes("pve1").storage("local").upload.post(content="iso", filename=file)

    async with cluster() as it:
        assert Tasks.decode_upid(await it.use(upload))["type"] == "imgcopy"


@pytest.mark.usefixtures("_no_waiting")
async def test_the_files_tool_downloads_from_a_url_and_checks_what_came():
    name = "alpine-virt-3.22.2-x86_64.iso"
    address = f"https://dl-cdn.alpinelinux.org/alpine/v3.22/releases/x86_64/{name}"
    digest = hashlib.sha256(address.encode()).hexdigest()

    def download(api: ProxmoxAPI) -> list[Any]:
        files = Files(api, "pve1", "local")
        assert files.get_file_info(address)["filename"] == name
        right = files.download_file_to_storage(address, checksum=digest, checksum_type="sha256")
        wrong = files.download_file_to_storage(address, checksum="0" * 64, checksum_type="sha256")
        return [right["exitstatus"], wrong["exitstatus"]]

    async with cluster() as it:
        right, wrong = await it.use(download)
        assert right == "OK"
        assert "checksum" in wrong
        assert it.sim.world.storages["local"].volume("pve1", f"local:iso/{name}") is not None
