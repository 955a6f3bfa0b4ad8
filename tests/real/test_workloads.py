"""Workloads with the real engines: Docker, Podman and LXD on a host of their own."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from tests.real.engine_host import IMAGE, PULLED, EngineHost, engine_host, serving

pytestmark = pytest.mark.anyio
# A web server that ends on request, as those of real images do.
SERVE = ["sh", "-c", "trap 'exit 0' TERM; httpd -f -v -p 80 -h /bin & wait"]


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    with engine_host("workloads") as built:
        yield built


@pytest.fixture(scope="module")
def podman(host: EngineHost) -> EngineHost:
    host.start_podman()
    return host


@pytest.fixture(scope="module")
def lxd(host: EngineHost) -> EngineHost:
    host.start_lxd()
    return host


def fetched(host: EngineHost, port: int, path: str = "/busybox") -> int:
    with urllib.request.urlopen(f"http://{host.host}:{port}{path}", timeout=10) as answer:
        return len(answer.read())


async def test_docker_pulls_an_image_runs_it_and_takes_it_away(host, tmp_path):
    async with serving(host, tmp_path, "workloads") as quorate:
        made = await quorate.facts(
            "workload_deploy", engine="docker", host="box", name="web", image=PULLED, command=SERVE, ports=["8080:80"],
            volumes=["pages:/data"], env={"GREETING": "hello"}, labels={"role": "web"}, pull="always", wait=50,
        )  # fmt: skip
        made = made["workload"]
        assert (made["state"], made["ports"], made["volumes"]) == ("running", ["8080:80/tcp"], ["pages:/data"])
        assert made["digest"].startswith("sha256:")
        assert any("tiny:1" in (message or "") for *_, message in quorate.progress)
        assert fetched(host, 8080) > 100_000
        workload = await quorate.facts("workload_get", host="box", name="web")
        assert (workload["env"][0], workload["restart"], workload["labels"]) == (
            "GREETING",
            "unless-stopped",
            {"role": "web"},
        )
        told = await quorate.facts("workload_logs", host="box", name="web")
        assert "response:200" in told["log"][-1]
        assert (await quorate.facts("workload_power", host="box", name="web", action="stop"))["now"] == "exited"
        assert (await quorate.facts("workload_power", host="box", name="web", action="start"))["now"] == "running"
        refusal = await quorate.refusal(
            "workload_deploy", engine="docker", host="box", name="two", image=IMAGE, ports=["8080:81"]
        )
        assert "belongs to docker web" in refusal
        listed = await quorate.facts("workload_list", host="box", engine="docker")
        assert "by socket" in listed["engines"]["docker"]
        await quorate.facts("workload_remove", host="box", name="web")
        assert host.docker("ps", "--all", "--quiet") == ""
        assert "pages" in host.docker("volume", "ls")


async def test_docker_keeps_the_old_one_until_the_new_one_runs(host, tmp_path):
    async with serving(host, tmp_path, "workloads") as quorate:
        site = {"host": "box", "engine": "docker", "name": "site", "image": IMAGE, "ports": ["8081:80"]}
        await quorate.facts("workload_deploy", **site, command=SERVE)
        before = host.docker("inspect", "--format", "{{.Id}}", "site")
        broken = await quorate.refusal("workload_deploy", **site, command=["ls", "/nowhere"], replace=True)
        assert "did not stay up" in broken
        assert "The old site is restored" in broken
        assert "No such file" in broken
        assert host.docker("inspect", "--format", "{{.Id}}", "site") == before
        assert fetched(host, 8081) > 100_000
        done = await quorate.facts(
            "workload_deploy", **site, command=[*SERVE[:-1], SERVE[-1].replace("/bin", "/")], replace=True
        )
        assert done["replaced"] == IMAGE
        assert fetched(host, 8081, "/bin/busybox") > 100_000
        assert host.docker("ps", "--all", "--format", "{{.Names}}").split() == ["site"]
        await quorate.facts("workload_remove", host="box", name="site")


async def test_an_image_that_is_nowhere_changes_nothing(host, tmp_path):
    async with serving(host, tmp_path, "workloads") as quorate:
        refusal = await quorate.refusal(
            "workload_deploy", engine="docker", host="box", name="none", image="127.0.0.1:5000/none:1"
        )
        assert "none" in refusal
        assert "manifest unknown" in refusal
        assert await quorate.rows("workload_list", host="box", engine="docker") == []


@pytest.mark.parametrize("way", ["curl", "command"])
async def test_docker_is_reached_without_forwarding(host, tmp_path, way):
    with host.without_forwarding():
        if way == "curl":
            await _lives_and_dies(host, tmp_path, "docker", IMAGE, "by curl", command=SERVE, ports=["8082:80"])
        else:
            with host.without_curl():
                options = {"command": SERVE, "ports": ["8082:80"]}
                await _lives_and_dies(host, tmp_path, "docker", IMAGE, "the command docker", **options)


async def test_podman_by_its_command(podman, tmp_path):
    image = f"localhost/{IMAGE}"
    await _lives_and_dies(podman, tmp_path, "podman", image, "the command podman", network="host", command=SERVE)


async def test_podman_by_its_api(podman, tmp_path):
    podman.serve_podman()
    await _lives_and_dies(podman, tmp_path, "podman", f"localhost/{IMAGE}", "by socket", network="host", command=SERVE)


@pytest.mark.parametrize("way", ["by socket", "by curl", "by query"])
async def test_lxd(lxd, tmp_path, way):
    if way == "by socket":
        await _lives_and_dies(lxd, tmp_path, "lxd", "tiny", way)
        return
    with lxd.without_forwarding():
        if way == "by curl":
            await _lives_and_dies(lxd, tmp_path, "lxd", "tiny", way)
        else:
            with lxd.without_curl():
                await _lives_and_dies(lxd, tmp_path, "lxd", "tiny", way, env=None)


async def _lives_and_dies(host, folder, engine, image, way, *, env=("A", "b c"), **more):
    """Deployed, seen, stopped, started, replaced, taken away: what every engine can do."""
    async with serving(host, folder, "workloads") as quorate:
        thing = {"host": "box", "name": "thing", "engine": engine}
        variables = {} if env is None else {"env": {env[0]: env[1]}}
        made = await quorate.facts(
            "workload_deploy", **thing, image=image, volumes=["things:/data"], **variables, **more
        )
        assert made["workload"]["state"] == "running"
        assert way in (await quorate.facts("workload_list", host="box", engine=engine))["engines"][engine]
        workload = await quorate.facts("workload_get", **thing)
        assert workload["volumes"] == ["things:/data"]
        assert env is None or env[0] in workload["env"]
        assert "b c" not in str(workload)
        assert [row["name"] for row in await quorate.rows("workload_list", host="box", engine=engine)] == ["thing"]
        said = await quorate.facts("workload_logs", **thing)
        assert (
            said.get("note") == "It has printed nothing" if engine != "lxd" else "the instance is up" in said["log"][0]
        )
        stopped = await quorate.facts("workload_power", **thing, action="stop")
        assert stopped["now"] in ("exited", "stopped")
        assert (await quorate.facts("workload_power", **thing, action="restart"))["now"] == "running"
        replaced = await quorate.facts("workload_deploy", **thing, image=image, replace=True, **variables, **more)
        assert (replaced["workload"]["state"], "replaced" in replaced) == ("running", True)
        assert replaced["workload"]["id"] != workload["id"]
        await quorate.facts("workload_remove", **thing)
        assert await quorate.rows("workload_list", host="box", engine=engine) == []
