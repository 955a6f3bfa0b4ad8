"""Devices that are changed or taken out of service: who depends on them is moved, or it is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quorate.homelab.infra.plans import describe_running, parse_connections
from quorate.inside.facts.model import Facts, Port, Services
from tests.rigs.homelab import house_with
from tests.rigs.infra_hosts import InfraLab, infra_lab
from tests.rigs.mcp_session import Rig, text_of
from tests.rigs.own_system import OwnSystem, own_system

pytestmark = pytest.mark.anyio


async def furnish(lab: InfraLab, **more) -> None:
    arguments = {"host": "one", "name": "web", "image": "nginx:1", "ports": ["8080:80"], "env": {"WORD": "x"}, **more}
    await lab.quorate.facts("workload_deploy", **arguments)


async def test_a_device_that_is_needed_is_not_taken_away(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        await furnish(lab)
        await lab.quorate.facts("host_update", host="two", jump="one")
        document = {"name": "lab", "workloads": {"db": {"host": "one", "image": "db:1"}}}
        await lab.quorate.facts("infra_apply", document=document)
        refusal = await lab.quorate.refusal("device_decommission", device="one")
        assert "docker web (running, nginx:1) runs there" in refusal
        assert "host two is reached through it" in refusal
        assert "the infrastructure document lab mentions it" in refusal
        assert "force=true" in refusal
        assert {"web", "db"} == set(lab.running("one"))
        assert {"one", "two"} == {row["name"] for row in await lab.quorate.rows("host_list", clusters=False)}


@pytest.mark.thorough
async def test_its_containers_are_moved_and_then_it_is_forgotten_and_marked(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        await furnish(lab)
        body = lab.engines["one"].bodies[0]
        await lab.quorate.facts("network_discover", hosts=["one"])
        [device] = [row["device"] for row in await lab.quorate.rows("network_discover", hosts=["one"])]
        done = await lab.quorate.facts("device_decommission", device=device, move_to="two")
        assert done["result"] == "done"
        assert lab.engines["one"].containers == {}
        assert lab.running("two") == {"web": "nginx:1"}
        [moved] = lab.engines["two"].bodies
        assert moved["Env"] == body["Env"]
        assert moved["HostConfig"]["PortBindings"] == body["HostConfig"]["PortBindings"]
        assert [row["name"] for row in await lab.quorate.rows("host_list", clusters=False)] == ["two"]
        assert "retired" in str(await lab.quorate.facts("network_changes"))


@pytest.mark.thorough
async def test_what_is_in_volumes_moves_before_the_start_and_only_if_asked_for(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        await furnish(lab, volumes=["pages:/srv/pages"])
        lab.engines["one"].files["web", "/srv/pages"] = b"a tar of pages"
        assert "data=true" in await lab.quorate.refusal("device_decommission", device="one", move_to="two")
        assert lab.running("one") == {"web": "nginx:1"}
        await lab.quorate.facts("device_decommission", device="one", move_to="two", data=True)
        assert lab.engines["two"].files == {("web", "/srv"): b"a tar of pages"}
        assert "PUT web created" in lab.engines["two"].changes
        assert lab.running("two") == {"web": "nginx:1"}


async def test_a_move_that_fails_leaves_it_running_where_it_was(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        lab.engines["one"].add("web", "broken:1")
        answer = await lab.quorate.call("device_decommission", device="one", move_to="two")
        assert answer.is_error
        assert "runs on its old host again" in text_of(answer)
        assert "web" in lab.engines["one"].containers
        assert lab.engines["two"].containers == {}
        assert {"one", "two"} == {row["name"] for row in await lab.quorate.rows("host_list", clusters=False)}


async def test_nodes_and_guests_are_refused_because_they_belong_to_their_cluster(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        node = lab.quorate.sim.world.nodes
        refusal = await lab.quorate.refusal("device_decommission", device=next(iter(node)))
        assert "not supported for this device" in refusal


def test_users_of_what_listens_there_are_found_by_their_connections():
    text = (
        "0 0 10.0.0.5:5432 10.0.0.9:40112\n0 0 10.0.0.5:22 10.0.0.2:50000\n0 0 10.0.0.5:41000 10.0.0.7:443\n"
        "0 0 [::ffff:10.0.0.5]:8080 [::ffff:10.0.0.8]:3345\n0 0 127.0.0.1:5432 127.0.0.1:9999\n--\n"
        "LISTEN 0 128 0.0.0.0:5432 0.0.0.0:*\nLISTEN 0 128 *:8080 *:*\nLISTEN 0 128 0.0.0.0:22 0.0.0.0:*\n"
    )
    assert parse_connections(text) == ["port 5432 is in use by 10.0.0.9", "port 8080 is in use by ::ffff:10.0.0.8"]


def test_what_listens_or_runs_on_a_machine_is_named_without_the_system_itself():
    facts = Facts(
        ports=(
            Port("tcp", "*", 22, "sshd"),
            Port("tcp", "*", 5432, "postgres"),
            Port("tcp", "127.0.0.1", 631, "cupsd"),
            Port("udp", "10.0.0.5", 53, "dnsmasq"),
            Port("tcp", "*", 9),
        ),
        services=Services("systemd", ("borgmatic", "cron", "ssh", "systemd-logind", "user@0")),
    )
    assert describe_running(facts) == [
        "dnsmasq listens on port 53",
        "postgres listens on port 5432",
        "something listens on port 9",
        "the service borgmatic is running",
    ]


@pytest.mark.thorough
async def test_containers_are_changed_and_switched_after_a_backup(tmp_path):
    async with infra_lab(tmp_path, "one", register=True, homelab={"services_folder": str(tmp_path / "srv")}) as lab:
        await furnish(lab)
        await furnish(lab, name="other", ports=[])
        changes = {"workloads": {"web": {"image": "nginx:2", "memory": "64M"}, "other": "stop"}}
        done = await lab.quorate.facts("device_update", device="one", changes=changes)
        assert lab.running("one") == {"web": "nginx:2"}
        body = lab.engines["one"].bodies[-1]
        assert body["HostConfig"]["Memory"] == 64 * 1024**2
        assert body["Env"] == ["WORD=x"]
        assert lab.quorate.audit()[-1]["risk"] == "destroy"
        [backup] = [step["backup"] for step in done["steps"] if "backup" in step]
        await lab.quorate.facts("infra_rollback", backup=backup, scope=["workloads"])
        assert lab.running("one") == {"web": "nginx:1", "other": "nginx:1"}


async def test_what_a_device_cannot_do_is_said_and_nothing_is_done(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        refused = lab.quorate.refusal
        assert "not supported for this device" in await refused(
            "device_update", device="one", changes={"resources": {"cores": 4}}
        )
        assert "cannot be read" in await refused("device_update", device="one", changes={"firewall": {}})
        assert "is not a valid hostname" in await refused(
            "device_update", device="one", changes={"network": {"hostname": "a; b"}}
        )
        assert "nothing to change" in await refused("device_update", device="one", changes={})
        assert lab.engines["one"].changes == []


async def test_hardware_of_a_guest_is_changed_by_its_cluster(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        changes = {"resources": {"cores": 3}}
        await lab.quorate.facts("device_update", device="demo/201", changes=changes, backup=False)
        assert (await lab.quorate.facts("guest_get", guest=201))["hardware"]["cores"] == 3


@asynccontextmanager
async def standing(tmp_path: Path, config: str) -> AsyncIterator[tuple[Rig, OwnSystem]]:
    """A system with an /etc and a host name of its own."""
    async with own_system(tmp_path / "box") as box:
        (box.folder / "etc/ssh/sshd_config.d").mkdir(parents=True)
        (box.folder / "etc/ssh/sshd_config").write_text(f"HostKey {box.folder}/host_key\n{config}")
        (box.folder / "etc/hostname").write_text("box\n")
        async with house_with(box, tmp_path, homelab={"services_folder": str(tmp_path / "srv")}) as built:
            yield built.quorate, box


async def test_name_and_logins_of_a_real_system_are_changed_and_rolled_back(tmp_path):
    async with standing(tmp_path, "Include /etc/ssh/sshd_config.d/*.conf\n") as (quorate, box):
        changes = {
            "network": {"hostname": "attic"},
            "security": {"ssh_password_login": False, "ssh_root_login": "prohibit-password"},
        }
        done = await quorate.facts("device_update", device="box", changes=changes)
        assert box.text("etc/hostname") == "attic\n"
        assert "PasswordAuthentication no" in box.text("etc/ssh/sshd_config.d/01-quorate.conf")
        [backup] = [step["backup"] for step in done["steps"] if "backup" in step]
        assert "proved" in await quorate.facts("infra_rollback", backup=backup, scope=["network", "ssh"])
        assert box.text("etc/hostname") == "box\n"
        assert not list((box.folder / "etc/ssh/sshd_config.d").iterdir())


async def test_settings_that_sshd_does_not_take_are_taken_back(tmp_path):
    async with standing(tmp_path, "PasswordAuthentication yes\n") as (quorate, box):
        changes = {"security": {"ssh_password_login": False}}
        refusal = await quorate.refusal("device_update", device="box", changes=changes, backup=False)
        assert "the old settings were restored" in refusal
        assert not list((box.folder / "etc/ssh/sshd_config.d").iterdir())
        locked_out = {"security": {"ssh_root_login": "no"}}
        assert "is root" in await quorate.refusal("device_update", device="box", changes=locked_out)


async def test_a_dead_device_is_taken_away_by_force_only(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        await lab.quorate.facts("host_register", host="dead", verify=False, **(lab.host("one") | {"port": 1}))
        assert "is unknown" in await lab.quorate.refusal("device_decommission", device="dead")
        done = await lab.quorate.facts("device_decommission", device="dead", force=True)
        assert "is unknown" in str(done["warnings"])
        assert [row["name"] for row in await lab.quorate.rows("host_list", clusters=False)] == ["one"]
