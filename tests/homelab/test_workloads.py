"""Workloads on hosts, by an engine's API through SSH: what is sent, what is refused, what is put back."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quorate.config import Access, Approval
from tests.rigs.docker_engine import DockerEngine, docker_engine
from tests.rigs.homelab import house
from tests.rigs.host_tools import plain_tools

pytestmark = pytest.mark.anyio
TOOLSETS = ("hosts", "host_admin", "workloads")


@asynccontextmanager
async def with_docker(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Any, DockerEngine]]:
    """Quorate, and a host `box` with the engine; `host` are changes of its SSH server, `engine` of the engine."""
    path = plain_tools(tmp_path / "tools", *options.pop("absent", ()))
    async with docker_engine(tmp_path, **options.pop("engine", {})) as engine:
        environment = {"PATH": path, "DOCKER_HOST": f"unix://{engine.socket}"}
        box = {"environment": environment, **options.pop("host", {})}
        async with house(tmp_path / "house", {"box": box}, toolsets=TOOLSETS, **options) as built:
            yield built.quorate, engine


@pytest.fixture(autouse=True)
def _folders(tmp_path):
    (tmp_path / "house").mkdir()


async def test_a_workload_is_deployed_with_all_that_was_asked_for(tmp_path):
    async with with_docker(tmp_path) as (quorate, engine):
        facts = await quorate.facts(
            "workload_deploy",
            host="box",
            name="web",
            image="registry.lan:5000/nginx:1.27",
            ports=["8080:80", "127.0.0.1:5353:53/udp"],
            volumes=["pages:/data", "/srv/media:/media:ro"],
            env={"WORD": "so secret; $(reboot)"},
            command=["sh", "-c", "echo 'a\nb' \"$HOME\""],
            memory="512M",
            cpus=1.5,
            restart="on-failure",
            network="lan",
            labels={"role": "web"},
        )
        assert facts["workload"]["state"] == "running"
        assert facts["workload"]["digest"] == "sha256:feed"
        assert facts["workload"]["env"] == ["WORD"]
        [body] = engine.bodies
        assert body["Env"] == ["WORD=so secret; $(reboot)"]
        assert body["Cmd"] == ["sh", "-c", "echo 'a\nb' \"$HOME\""]
        limits = body["HostConfig"]
        assert (limits["Memory"], limits["NanoCpus"], limits["NetworkMode"]) == (512 * 1024**2, 1_500_000_000, "lan")
        assert limits["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 5}
        assert limits["PortBindings"] == {
            "80/tcp": [{"HostIp": "", "HostPort": "8080"}],
            "53/udp": [{"HostIp": "127.0.0.1", "HostPort": "5353"}],
        }
        assert limits["Mounts"] == [{"Type": "volume", "Source": "pages", "Target": "/data", "ReadOnly": False}]
        assert limits["Binds"] == ["/srv/media:/media:ro"]
        assert "images/create?fromImage=registry.lan%3A5000%2Fnginx&tag=1.27" in engine.changes[0]
        assert any("Downloading" in (message or "") for *_, message in quorate.progress)
        assert "so secret" not in (tmp_path / "house/audit.jsonl").read_text()
        assert "so secret" not in str(await quorate.facts("workload_get", host="box", name="web"))


async def test_a_dry_run_tells_the_plan_and_changes_nothing(tmp_path):
    async with with_docker(tmp_path, engine={"images": {"nginx"}}) as (quorate, engine):
        plan = await quorate.facts(
            "workload_deploy", host="box", name="web", image="nginx", env={"TOKEN": "abc123xyz"}, dry_run=True,
            volumes=["/var/run/docker.sock:/var/run/docker.sock"],
        )  # fmt: skip
        assert "--env TOKEN" in str(plan)
        assert "abc123xyz" not in str(plan)
        assert "control of the host" in str(plan)
        assert engine.changes == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": "../etc"}, "is not a valid workload name"),
        ({"name": "a b"}, "is not a valid workload name"),
        ({"name": "-rm"}, "is not a valid workload name"),
        ({"image": "--privileged"}, "is not an image name"),
        ({"image": "nginx?x=1"}, "is not an image name"),
        ({"ports": ["80;reboot"]}, "is not a port"),
        ({"ports": ["70000:80"]}, "out of range"),
        ({"ports": ["300.1.1.1:80:80"]}, "is not an IP address"),
        ({"volumes": ["data"]}, "is not a volume"),
        ({"volumes": ["../x:/data"]}, "is not a volume"),
        ({"volumes": ["a:/data", "b:/data/"]}, "the same path"),
        ({"env": {"A=B": "c"}}, "is not an environment variable"),
        ({"network": "a&b"}, "is not a valid workload name"),
        ({"memory": "1M"}, "too little memory"),
    ],
)
async def test_what_means_more_than_it_says_is_refused_before_anything_is_sent(tmp_path, wrong, says):
    async with with_docker(tmp_path, engine={"images": {"nginx"}}) as (quorate, engine):
        assert says in await quorate.refusal(
            "workload_deploy", **{"host": "box", "name": "x", "image": "nginx", **wrong}
        )
        assert engine.changes == []


async def test_a_port_that_another_workload_has_is_not_asked_for_twice(tmp_path):
    async with with_docker(tmp_path, engine={"images": {"nginx"}}) as (quorate, engine):
        engine.add("old", "nginx", ports=[{"PrivatePort": 80, "PublicPort": 8080, "Type": "tcp", "IP": "0.0.0.0"}])
        arguments = {"host": "box", "name": "new", "image": "nginx"}
        assert "belongs to docker old" in await quorate.refusal("workload_deploy", **arguments, ports=["8080:80"])
        assert (await quorate.facts("workload_deploy", **arguments, ports=["8080:80/udp"]))["workload"]["name"] == "new"


async def test_what_does_not_stay_up_is_taken_away_with_its_last_words(tmp_path):
    async with with_docker(tmp_path, engine={"images": {"broken"}}) as (quorate, engine):
        refusal = await quorate.refusal("workload_deploy", host="box", name="web", image="broken")
        assert "exit code 3" in refusal
        assert "no such file" in refusal
        assert engine.containers == {}


async def test_a_failed_replacement_leaves_the_old_one_running(tmp_path):
    async with with_docker(tmp_path, engine={"images": {"broken", "nginx"}}) as (quorate, engine):
        engine.add("web", "nginx")
        before = engine.containers["web"]["Id"]
        assert "already" in await quorate.refusal("workload_deploy", host="box", name="web", image="broken")
        refusal = await quorate.refusal("workload_deploy", host="box", name="web", image="broken", replace=True)
        assert "The old web is restored" in refusal
        assert [(name, container["Id"]) for name, container in engine.containers.items()] == [("web", before)]
        assert engine.containers["web"]["State"]["Status"] == "running"
        done = await quorate.facts("workload_deploy", host="box", name="web", image="nginx", replace=True)
        assert done["replaced"] == "nginx"
        assert list(engine.containers) == ["web"]
        assert engine.containers["web"]["Id"] != before


async def test_what_could_not_be_removed_again_is_reported_next_to_the_reason(tmp_path):
    async with with_docker(tmp_path, engine={"images": {"broken"}, "busy": True}) as (quorate, engine):
        refusal = await quorate.refusal("workload_deploy", host="box", name="web", image="broken")
        assert "did not stay up" in refusal
        assert "could not be removed again" in refusal
        assert "resource busy" in refusal
        assert engine.changes[-1] == "DELETE containers/web?force=true&v=true", "with the volumes made for it alone"


async def test_what_could_not_be_put_back_is_not_replaced(tmp_path):
    async with with_docker(tmp_path, engine={"images": {"nginx"}}) as (quorate, engine):
        engine.add("web", "nginx")
        engine.containers["web"]["HostConfig"]["AutoRemove"] = True
        refusal = await quorate.refusal("workload_deploy", host="box", name="web", image="nginx", replace=True)
        assert "is removed when it stops" in refusal
        assert engine.changes == []


async def test_a_container_of_a_compose_project_is_not_taken_from_it_unawares(tmp_path):
    async with with_docker(tmp_path) as (quorate, engine):
        engine.add("web", "nginx")
        engine.containers["web"]["Config"]["Labels"] = {"com.docker.compose.project": "shop"}
        assert "Compose project shop" in str(
            await quorate.facts("workload_remove", host="box", name="web", dry_run=True)
        )


async def test_an_answer_that_is_lost_leaves_the_outcome_unknown(tmp_path):
    async with with_docker(tmp_path) as (quorate, engine):
        engine.add("web", "nginx")
        engine.hangs_up_on = "stop"
        refusal = await quorate.refusal("workload_power", host="box", name="web", action="stop")
        assert "check before you repeat it" in refusal
        assert engine.changes == ["POST containers/web/stop?t=10"]


async def test_health_is_waited_for(tmp_path):
    async with with_docker(tmp_path, engine={"images": {"slow"}}) as (quorate, _):
        facts = await quorate.facts("workload_deploy", host="box", name="web", image="slow")
        assert facts["workload"]["health"] == "healthy"


async def test_replacing_is_more_than_an_operator_may(tmp_path):
    async with with_docker(tmp_path, engine={"images": {"nginx"}}, access=Access.OPERATE) as (quorate, engine):
        await quorate.facts("workload_deploy", host="box", name="web", image="nginx")
        assert "admin" in await quorate.refusal("workload_deploy", host="box", name="web", image="nginx", replace=True)
        assert "admin" in await quorate.refusal("workload_remove", host="box", name="web")
        assert list(engine.containers) == ["web"]


async def test_a_pull_that_takes_long_goes_on_and_tells_how_it_ended(tmp_path):
    async with with_docker(tmp_path) as (quorate, engine):
        engine.pulling.clear()
        engine.pull_error = "manifest unknown, said so-secret"
        arguments = {"host": "box", "name": "web", "image": "nginx", "env": {"WORD": "so-secret"}}
        begun = await quorate.facts("workload_deploy", **arguments, wait=0.5)
        assert "workload_get" in str(begun)
        facts = await quorate.facts("workload_get", host="box", name="web")
        assert (facts["state"], facts["deployment"]["state"]) == ("not there", "going on")
        engine.pulling.set()
        async with asyncio.timeout(20):
            while facts["deployment"]["state"] == "going on":
                facts = await quorate.facts("workload_get", host="box", name="web")
        assert facts["deployment"]["state"] == "failed"
        assert "manifest unknown, said ***" in facts["deployment"]["why"]
        assert "The image nginx could not be pulled" in facts["deployment"]["why"]


async def test_a_workload_is_seen_stopped_started_and_removed(tmp_path):
    async with with_docker(tmp_path) as (quorate, engine):
        engine.add("web", "nginx:1.27")
        [row] = await quorate.rows("workload_list", host="box")
        assert (row["engine"], row["name"], row["state"], row["image"]) == ("docker", "web", "running", "nginx:1.27")
        assert (await quorate.facts("workload_logs", host="box", name="web", lines=1))["log"] == ["no such file"]
        engine.log = [b"%d %s\n" % (number, b"x" * 1000) for number in range(1000)]
        newest = (await quorate.facts("workload_logs", host="box", name="web", lines=1000))["log"]
        assert [line.split()[0] for line in newest] == [str(number) for number in range(750, 1000)]
        assert (await quorate.facts("workload_power", host="box", name="web", action="stop"))["now"] == "exited"
        again = await quorate.facts("workload_power", host="box", name="web", action="stop")
        assert "already" in str(again)
        assert (await quorate.facts("workload_power", host="box", name="web", action="restart"))["now"] == "running"
        assert "Did you mean 'web'" in await quorate.refusal("workload_get", host="box", name="wep")
        await quorate.facts("workload_remove", host="box", name="web", volumes=True)
        assert engine.containers == {}
        assert engine.changes[-1] == "DELETE containers/web?force=true&v=true"


@pytest.mark.parametrize(
    ("reported", "spoken"),
    [
        ({"ApiVersion": "1.24", "MinAPIVersion": "1.12"}, "/v1.24/"),
        ({"ApiVersion": "1.52", "MinAPIVersion": "1.44"}, "/v1.44/"),
        ({"ApiVersion": "1.50", "MinAPIVersion": "1.24"}, "/v1.41/"),
    ],
)
async def test_the_version_of_the_api_is_one_that_both_sides_speak(tmp_path, reported, spoken):
    async with with_docker(tmp_path, engine={"version": reported}) as (quorate, engine):
        await quorate.facts("workload_list", host="box")
        assert engine.paths[-1].startswith(spoken)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_leads_to_the_socket_where_the_ssh_server_does_not(tmp_path):
    async with with_docker(tmp_path, host={"sockets": False}) as (quorate, engine):
        listed = await quorate.facts("workload_list", host="box")
        assert "by curl" in listed["engines"]["docker"]
        env = {"SECRET": "of \"all\" kinds: \\ 'é'"}
        facts = await quorate.facts("workload_deploy", host="box", name="web", image="nginx:1", env=env)
        assert facts["workload"]["state"] == "running"
        assert engine.bodies[0]["Env"] == ["SECRET=of \"all\" kinds: \\ 'é'"]
        assert any("Downloading" in (message or "") for *_, message in quorate.progress)


async def test_without_any_way_to_the_socket_the_refusal_says_what_to_do(tmp_path):
    async with with_docker(tmp_path, host={"sockets": False}, absent=("curl",)) as (quorate, _):
        assert "Install curl there" in await quorate.refusal("workload_list", host="box")


async def test_a_host_without_engines_says_so(tmp_path):
    path = plain_tools(tmp_path / "tools")
    async with house(tmp_path / "house", {"box": {"environment": {"PATH": path}}}, toolsets=TOOLSETS) as built:
        engines = [Path("/run/docker.sock"), Path("/var/lib/lxd/unix.socket"), Path("/var/lib/incus/unix.socket")]
        if any(map(os.path.exists, engines)):
            pytest.skip("this machine runs an engine of its own")
        assert "has no container engine" in await built.quorate.refusal("workload_list", host="box")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("workload_remove", {}), ("workload_deploy", {"image": "nginx", "replace": True})],
)
async def test_an_approval_is_for_one_workload_and_not_for_another_of_its_name(tmp_path, tool, arguments):
    async with with_docker(tmp_path, engine={"images": {"nginx"}}, approval=Approval.TOKEN) as (quorate, engine):
        engine.add("web", "nginx")
        plan = await quorate.facts(tool, host="box", name="web", **arguments, dry_run=True)
        engine.add("web", "nginx")
        refusal = await quorate.refusal(tool, host="box", name="web", **arguments, plan_token=plan["plan_token"])
        assert "is not valid for this call" in refusal
        assert engine.changes == []


@pytest.mark.parametrize("name", ["../images/nginx", "web/../old", "web?x=1", "-f", "web\r\nX: y", ""])
@pytest.mark.parametrize("tool", ["workload_remove", "workload_get", "workload_logs", "workload_power"])
async def test_a_name_is_no_path_and_no_option(tmp_path, tool, name):
    async with with_docker(tmp_path) as (quorate, engine):
        more = {"action": "stop"} if tool == "workload_power" else {}
        assert "is not a valid workload name" in await quorate.refusal(tool, host="box", name=name, **more)
        assert engine.paths == []
