"""Docker by its own command, where nothing leads to its socket: what is on the command line, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.homelab import house
from tests.rigs.host_tools import plain_tools

pytestmark = pytest.mark.anyio
TOOLSETS = ("hosts", "host_admin", "workloads")

# It notes every call, an argument a line, and knows one container once it was created.
DOCKER = r"""#!/bin/sh
here=@HERE@
{ for one; do printf '%s\n' "$one"; done; echo ===; } >> "$here/calls"
about() { cat <<END
[{"Id": "c0ffee", "Name": "/web", "Image": "sha256:1", "RestartCount": 0, "Mounts": [], "NetworkSettings": {},
"State": {"Status": "running"}, "Config": {"Image": "nginx"}, "HostConfig": {}}]
END
}
case "$1 $2" in
--version*) echo "Docker version 28.0.0";;
"container inspect") [ -e "$here/made" ] || { echo "Error: No such container: $3" >&2; exit 1; }; about;;
"image inspect") echo '[{"Id": "sha256:1", "RepoDigests": ["nginx@sha256:feed"]}]';;
"ps --all") [ ! -e "$here/made" ] || echo c0ffee;;
create*) cat > "$here/environment"; touch "$here/made"; echo c0ffee;;
logs*) tail -n "$3" "$here/log";;
rm*) rm "$here/made";;
esac
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = plain_tools(tmp_path / "tools", "curl")
    for name in ("touch", "rm"):
        (tmp_path / "tools" / name).unlink(missing_ok=True)
        (tmp_path / "tools" / name).symlink_to(f"/bin/{name}")
    (tmp_path / "tools/docker").write_text(DOCKER.replace("@HERE@", str(tmp_path)))
    (tmp_path / "tools/docker").chmod(0o755)
    (tmp_path / "house").mkdir()
    return path


async def test_docker_is_driven_by_its_command_and_secrets_stay_off_it(tmp_path, path):
    async with house(tmp_path / "house", {"box": {"environment": {"PATH": path}}}, toolsets=TOOLSETS) as built:
        quorate = built.quorate
        facts = await quorate.facts(
            "workload_deploy", host="box", name="web", image="nginx", ports=["127.0.0.1:8080:80"], memory="64M",
            volumes=["/srv/a b:/data:ro"], env={"PASSWORD": "so secret"}, command=["sh", "-c", "a; $(b) 'c'"],
        )  # fmt: skip
        assert (facts["workload"]["state"], facts["workload"]["digest"]) == ("running", "sha256:feed")
        (tmp_path / "log").write_text("".join(f"{number} {'x' * 1000}\n" for number in range(1000)))
        newest = (await quorate.facts("workload_logs", host="box", name="web", lines=1000))["log"]
        assert [line.split()[0] for line in newest] == [str(number) for number in range(750, 1000)]
        calls = (tmp_path / "calls").read_text()
        [create] = [call.split("\n") for call in calls.split("===\n") if call.startswith("create")]
        assert create[:-1] == [
            "create", "--name", "web", "--restart", "unless-stopped", "--pull", "never",
            "--publish", "127.0.0.1:8080:80/tcp", "--mount", "type=bind,source=/srv/a b,target=/data,readonly",
            "--memory", "67108864b", "--env-file", "/dev/stdin", "nginx", "sh", "-c", "a; $(b) 'c'",
        ]  # fmt: skip
        assert (tmp_path / "environment").read_text() == "PASSWORD=so secret\n"
        assert "so secret" not in calls
        await quorate.facts("workload_remove", host="box", name="web")
        assert await quorate.rows("workload_list", host="box") == []


@pytest.mark.parametrize("wrong", [{"env": {"A": "b\nC=d"}}, {"volumes": ["/srv/a,readonly:/data"]}])
async def test_what_the_command_would_read_otherwise_is_refused(tmp_path, path, wrong):
    async with house(tmp_path / "house", {"box": {"environment": {"PATH": path}}}, toolsets=TOOLSETS) as built:
        refusal = await built.quorate.refusal("workload_deploy", host="box", name="web", image="nginx", **wrong)
        assert "Its command does not accept" in refusal
        assert "create" not in (tmp_path / "calls").read_text()
