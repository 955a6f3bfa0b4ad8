"""What users of washyu's server do with it in their homes, on machines that are not all alike."""

import json
import os
import socket

import asyncssh
import pytest

from tests.homelab.test_small_services import SYSV, put
from tests.rigs.mcp_session import second_server, text_of
from tests.rigs.ssh_server import HOST
from tests.surfaces.compat.rows import homelabs
from tests.surfaces.compat.rows.homelabs import PASSWORD
from tests.surfaces.compat.test_spellings import first_text

pytestmark = pytest.mark.anyio

# mypy: disable-error-code="union-attr"

ACCOUNT = "mcp_admin"
UNIT = "[Unit]\nDescription=A word\n[Service]\nExecStart=/bin/sleep {}\n[Install]\nWantedBy=multi-user.target\n"
# As much of systemd as is asked for: units are files, with their states next to them. What runs /bin/false fails.
SYSTEMCTL = """#!/bin/sh
states=/run/states; mkdir -p "$states"
for last; do :; done
file=/etc/systemd/system/$last
was() { cat "$states/$last.$1" 2>/dev/null || echo "$2"; }
case "$*" in
daemon-reload) exit 0;;
show*)
  [ -f "$file" ] && load=loaded || load=not-found
  echo "Id=$last"; echo "LoadState=$load"; echo "ActiveState=$(was active inactive)"
  echo "UnitFileState=$(was enabled disabled)"; echo "SubState=running"; echo "Result=$(was result success)"; exit 0;;
*" enable "*) echo enabled > "$states/$last.enabled";;
*" disable "*) echo disabled > "$states/$last.enabled";;
*" stop "*) echo inactive > "$states/$last.active"; echo success > "$states/$last.result";;
*" start "*|*" restart "*)
  if grep -q /bin/false "$file"; then echo failed > "$states/$last.active"; echo exit-code > "$states/$last.result"
  else echo active > "$states/$last.active"; echo success > "$states/$last.result"; fi;;
*) exit 1;;
esac
"""


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """The home directory of the user that the server runs as."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def washyu_account(box, own_home, *, key_is_here=True):
    """As washyu's own server leaves it on a machine, and its key where it runs."""
    key = asyncssh.generate_private_key("ssh-rsa", comment="mcp_admin@homelab", key_size=2048)
    with (box.folder / "etc/passwd").open("a") as accounts:
        accounts.write(f"{ACCOUNT}:x:1700:100::/home/{ACCOUNT}:/bin/sh\n")
    with (box.folder / "etc/shadow").open("a") as passwords:
        passwords.write(f"{ACCOUNT}:*:20000:0:99999:7:::\n")
    ssh = box.folder / f"home/{ACCOUNT}/.ssh"
    ssh.mkdir(parents=True, exist_ok=True)
    (ssh / "authorized_keys").write_bytes(key.export_public_key())
    for path in (ssh.parent, ssh, ssh / "authorized_keys"):
        os.chown(path, 1700, 100)
        path.chmod(0o600 if path.is_file() else 0o700)
    (box.folder / f"etc/sudoers.d/{ACCOUNT}").write_text(f"{ACCOUNT} ALL=(ALL) NOPASSWD:ALL\n")
    if key_is_here:
        folder = own_home / ".ssh/mcp"
        folder.mkdir(parents=True)
        (folder / "mcp_admin_key").write_bytes(key.export_private_key())
        (folder / "mcp_admin_key").chmod(0o600)
        (folder / "mcp_admin_key.pub").write_bytes(key.export_public_key())
    return ssh / "authorized_keys"


def with_systemd(tmp_path):
    """A machine whose services systemd runs."""
    return homelabs.accounts(tmp_path, programs={"systemctl": SYSTEMCTL, "journalctl": "#!/bin/sh\necho a last word\n"})


async def mapped(homelab, name):
    sitemap = await homelab.quorate.facts("get_network_sitemap")
    return next(device["id"] for device in sitemap["devices"] if device.get("host") == name)


# -- the administration account ----------------------------------------------------------------------------------------


async def test_an_account_of_the_other_server_is_adopted_with_its_key_and_sudo_rule(tmp_path, own_home):
    async with homelabs.accounts(tmp_path) as homelab:
        keys = washyu_account(homelab.box, own_home)
        before = keys.read_text()
        arguments = {"hostname": HOST, "username": "op", "password": PASSWORD, "port": homelab.box.port}
        adopted = await homelab.quorate.facts("setup_mcp_admin", **arguments)
        assert adopted["status"] == "success"
        assert adopted["key"] == str(own_home / ".ssh/mcp/mcp_admin_key")
        assert adopted["verified"]["sudo"] == "without a password"
        assert keys.read_text() == before, "its key is let in already"
        assert "NOPASSWD:ALL" in homelab.box.text(f"etc/sudoers.d/{ACCOUNT}")
        verified = await homelab.quorate.facts("verify_mcp_admin", hostname=HOST, port=homelab.box.port)
        assert verified["logged_in_as"] == ACCOUNT


async def test_groups_of_an_account_that_does_not_exist_name_the_tool_that_creates_it(tmp_path, own_home):
    async with homelabs.accounts(tmp_path) as homelab:
        arguments = {"hostname": HOST, "username": "op", "password": PASSWORD, "port": homelab.box.port}
        answer = await homelab.quorate.call("update_mcp_admin_groups", **arguments)
        assert "There is no account mcp_admin" in text_of(answer)
        assert "setup_mcp_admin" in text_of(answer)


@pytest.mark.thorough
async def test_an_account_with_another_key_gets_an_additional_key(tmp_path, own_home):
    async with homelabs.accounts(tmp_path) as homelab:
        keys = washyu_account(homelab.box, own_home, key_is_here=False)
        arguments = {"hostname": HOST, "username": "op", "password": PASSWORD, "port": homelab.box.port}
        await homelab.quorate.facts("setup_mcp_admin", **arguments)
        kinds = [line.split()[0] for line in keys.read_text().splitlines()]
        assert kinds == ["ssh-rsa", "ssh-ed25519"]
        refused = await homelab.quorate.refusal("host_admin_setup", host="box", account="op")
        assert "Quorate did not create" in refused, "our own tool adopts nobody by itself"


async def test_tools_use_the_account_whatever_login_the_server_is_registered_with(tmp_path, own_home):
    async with homelabs.accounts(tmp_path) as homelab:
        shells = homelab.quorate.app.shells
        assert shells is not None
        shells.url = homelabs.PAGE

        async def who():
            shell = await homelab.quorate.facts("start_interactive_shell", hostname="box")
            invitation = shells.find(shell["url"].partition("#")[2])
            return invitation.target.ssh.user

        assert await who() == "root", "as it is registered, while there is no such account"
        washyu_account(homelab.box, own_home)
        arguments = {"hostname": HOST, "username": "op", "password": PASSWORD, "port": homelab.box.port}
        await homelab.quorate.facts("setup_mcp_admin", **arguments)
        assert await who() == ACCOUNT


# -- the map -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_no_device_is_both_discovered_and_not_yet_discovered(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        sitemap = await homelab.quorate.facts("get_network_sitemap")
        names = ("name", "host", "address")
        seen = {device[name] for device in sitemap["devices"] for name in names if device.get(name)}
        rest = {device[name] for device in sitemap["not_yet_discovered"] for name in names if device.get(name)}
        assert {"one", "two"} <= seen
        assert seen & rest == set()


# -- containers --------------------------------------------------------------------------------------------------------


async def test_places_are_suggested_without_a_cluster_too(tmp_path):
    async with (
        homelabs.accounts(tmp_path) as homelab,
        second_server(homelab.quorate, tmp_path / "second.jsonl", clusters=()) as alone,
    ):
        assert "Measure them first: discover_and_map" in await alone.refusal("suggest_deployments")
        await homelab.quorate.facts("network_discover", hosts=["box"])
        suggestions = (await alone.facts("suggest_deployments"))["suggestions"]
        small = suggestions["load_balancer_candidates"]
        assert "box" in {*(candidate["where"] for candidate in small["fits"]), *small["does_not_fit"]}
        assert suggestions["vm_candidates"]["fits"] == []


@pytest.mark.thorough
async def test_a_missing_host_path_is_created_and_reported(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        path = tmp_path / "media"
        installed = await homelab.quorate.facts(
            "deploy_vm", device_id=await mapped(homelab, "one"), platform="docker", vm_name="tv",
            vm_config={"image": "jellyfin:10", "volumes": [f"{path}:/media:ro", "data:/data"]},
        )  # fmt: skip
        assert installed["paths_made"] == [str(path)]
        assert any(str(path) in warning for warning in installed["warnings"])
        sent = homelab.engines["one"].bodies[-1]["HostConfig"]
        assert sent["Binds"] == [f"{path}:/media:ro"], "what Docker makes a missing path for"
        assert [mount["Source"] for mount in sent["Mounts"]] == ["data"]


@pytest.mark.thorough
async def test_a_container_of_a_plan_without_an_image_runs_the_usual_one(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        plan = {"services": [{"name": "page", "type": "docker", "target_device_id": await mapped(homelab, "one")}]}
        assert (await homelab.quorate.facts("deploy_infrastructure", deployment_plan=plan))["status"] == "success"
        assert homelab.running("one")["page"] == "nginx:latest"


@pytest.mark.thorough
async def test_image_ports_and_environment_of_a_container_are_changed(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        engine = homelab.engines["one"]
        engine.containers["web"]["Config"]["Env"] = ["KEEP=1", "LEVEL=low"]
        changes = {"web": {"type": "docker", "image": "nginx:1.28", "ports": ["8081:80"], "environment": {"LEVEL": 9}}}
        changed = await homelab.quorate.facts(
            "update_device_config", device_id=await mapped(homelab, "one"), config_changes={"services": changes}
        )
        assert changed["status"] == "success"
        assert homelab.running("one") == {"web": "nginx:1.28"}
        sent = engine.bodies[-1]
        assert sent["HostConfig"]["PortBindings"] == {"80/tcp": [{"HostIp": "", "HostPort": "8081"}]}
        assert sent["Env"] == ["KEEP=1", "LEVEL=9"]


@pytest.mark.thorough
async def test_a_container_that_does_not_come_up_so_runs_as_before(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        changes = {"web": {"type": "docker", "image": "broken:2", "ports": ["8081:80"]}}
        text = await homelab.quorate.refusal(
            "update_device_config", device_id=await mapped(homelab, "one"), config_changes={"services": changes}
        )
        assert "did not stay up" in text
        assert homelab.running("one") == {"web": "nginx:1.27"}


@pytest.mark.thorough
async def test_a_bad_port_mapping_is_refused(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        device = await mapped(homelab, "one")
        for port in ("80", 80, "a:b", "70000:80"):
            changes = {"services": {"web": {"type": "docker", "ports": [port]}}}
            text = await homelab.quorate.refusal("update_device_config", device_id=device, config_changes=changes)
            assert str(port) in text
        assert homelab.running("one") == {"web": "nginx:1.27"}
        assert len(homelab.engines["one"].bodies) == 1, "nothing was made anew"


@pytest.mark.thorough
async def test_a_container_whose_image_no_registry_has_is_moved_with_its_image(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        source, two = homelab.engines["one"], homelab.engines["two"]
        source.images.add("mine:1")
        source.add("own", "mine:1")
        two.pull_error = "pull access denied"
        (tmp_path / "one/tools/ss").write_text(
            "#!/bin/sh\necho 'tcp LISTEN 0 4096 0.0.0.0:9000 0.0.0.0:* users:((\"portainer\",pid=9,fd=3))'\n"
        )
        (tmp_path / "one/tools/ss").chmod(0o755)
        two.images.add("nginx:1.27")
        device, target = await mapped(homelab, "one"), await mapped(homelab, "two")
        text = await homelab.quorate.refusal("decommission_device", device_id=device)
        for name in ("own", "web", "portainer"):
            assert name in text, "what still runs is named"
        moved = await homelab.quorate.facts(
            "decommission_device", device_id=device, migration_plan={"target_devices": [target]}
        )
        assert moved["status"] == "success"
        assert homelab.running("two") == {"web": "nginx:1.27", "own": "mine:1"}
        assert "was copied: no registry has it" in json.dumps(moved)
        assert any("images/load" in change for change in two.changes)
        assert "one" not in await homelab.registered()


# -- services of systemd -----------------------------------------------------------------------------------------------


async def test_a_service_with_its_own_file_is_deployed_replaced_stopped_and_disabled(tmp_path):
    async with with_systemd(tmp_path) as homelab:
        for folder in ("run/systemd/system", "etc/systemd/system"):
            (homelab.box.folder / folder).mkdir(parents=True, exist_ok=True)
        await homelab.quorate.facts("network_discover", hosts=["box"])
        device = await mapped(homelab, "box")
        plan = {"services": [{"name": "word", "type": "service", "target_device_id": device,
                              "config": {"service_file": UNIT.format(1)}}]}  # fmt: skip
        assert (await homelab.quorate.facts("deploy_infrastructure", deployment_plan=plan))["status"] == "success"
        assert homelab.box.text("etc/systemd/system/word.service") == UNIT.format(1)
        assert homelab.box.text("run/states/word.service.active") == "active\n"
        assert homelab.box.text("run/states/word.service.enabled") == "enabled\n"

        async def changed(**config):
            services = {"word": {"type": "systemd", **config}}
            return await homelab.quorate.call(
                "update_device_config", device_id=device, config_changes={"services": services}
            )

        assert not (await changed(service_file=UNIT.format(2))).is_error
        assert homelab.box.text("etc/systemd/system/word.service") == UNIT.format(2)
        broken = await changed(service_file=UNIT.format(3).replace("/bin/sleep", "/bin/false"))
        assert broken.is_error
        assert "The previous unit is restored and running" in first_text(broken)
        assert homelab.box.text("etc/systemd/system/word.service") == UNIT.format(2)
        assert homelab.box.text("run/states/word.service.active") == "active\n"
        assert not (await changed(enabled=False, running=False)).is_error
        assert homelab.box.text("run/states/word.service.active") == "inactive\n"
        assert homelab.box.text("run/states/word.service.enabled") == "disabled\n"


async def test_a_rollback_restores_a_service_and_keeps_later_ones(tmp_path):
    async with with_systemd(tmp_path) as homelab:
        for folder in ("run/systemd/system", "etc/systemd/system"):
            (homelab.box.folder / folder).mkdir(parents=True, exist_ok=True)
        await homelab.quorate.facts("network_discover", hosts=["box"])
        device = await mapped(homelab, "box")

        async def change(name, **config):
            changes = {"services": {name: {"type": "systemd", **config}}}
            arguments = {"device_id": device, "backup_before_change": False, "config_changes": changes}
            assert (await homelab.quorate.facts("update_device_config", **arguments))["status"] == "success"

        def state(name):
            states = [homelab.box.text(f"run/states/{name}.service.{state}").strip() for state in ("active", "enabled")]
            return [homelab.box.text(f"etc/systemd/system/{name}.service"), *states]

        await change("word", service_file=UNIT.format(1))
        before = {"backup_scope": "device_specific", "device_ids": [device], "backup_name": "before"}
        await homelab.quorate.facts("create_infrastructure_backup", **before)
        rollback = {"rollback_scope": "device_specific", "device_ids": [device], "backup_id": "before"}
        await change("word", service_file=UNIT.format(2))
        await change("word", running=False, enabled=False)
        await change("later", service_file=UNIT.format(3))
        done = await homelab.quorate.facts("rollback_infrastructure_changes", **rollback)
        assert "proved" in done
        assert state("word") == [UNIT.format(1), "active", "enabled"]
        assert state("later") == [UNIT.format(3), "active", "enabled"]
        assert "unchanged" in await homelab.quorate.facts("rollback_infrastructure_changes", **rollback)


@pytest.mark.thorough
async def test_a_service_is_run_by_its_init_script_where_there_is_no_systemd(tmp_path):
    async with homelabs.accounts(tmp_path) as homelab:
        await homelab.quorate.facts("network_discover", hosts=["box"])
        arguments = {"device_id": await mapped(homelab, "box"), "backup_before_change": False}
        change = {"services": {"word": {"type": "systemd", "running": True}}}
        nothing = await homelab.quorate.refusal("update_device_config", **arguments, config_changes=change)
        assert "neither systemd nor OpenRC" in nothing
        put(homelab.box, "etc/init.d/word", SYSV)
        answer = await homelab.quorate.facts("update_device_config", **arguments, config_changes=change)
        assert answer["status"] == "success"
        assert homelab.box.text("run/word") == "1\n"


@pytest.mark.thorough
async def test_a_file_that_is_not_a_systemd_unit_is_refused(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        plan = {"services": [{"name": "word", "type": "service", "target_device_id": await mapped(homelab, "one"),
                              "config": {"service_file": "rm -rf /"}}]}  # fmt: skip
        assert "[Service]" in await homelab.quorate.refusal("deploy_infrastructure", deployment_plan=plan)


# -- backups -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_a_backup_of_everything_has_the_whole_map(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        await homelab.quorate.facts("remove_server", hostname="two")
        plan = await homelab.quorate.facts("create_infrastructure_backup", dry_run=True)
        read = [step["step"] for step in plan["steps"] if "Read the configuration" in step["step"]]
        assert len(read) == 2, "one that nobody has registered is on the map, too"
        assert "Read the configuration of host one" in read


@pytest.mark.thorough
async def test_a_backup_is_rolled_back_by_its_name(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        chosen = {"device_ids": [await mapped(homelab, "one")]}
        for name in ("before-upgrade", "before-upgrade", "later"):
            arguments = {"backup_name": name, "backup_scope": "device_specific", **chosen}
            assert (await homelab.quorate.facts("create_infrastructure_backup", **arguments))["status"] == "success"
            await homelab.quorate.clock.advance(60)
            homelab.engines["one"].add(f"after-{len(homelab.engines['one'].containers)}", "redis:7")
        arguments = {"backup_id": "before-upgrade", "rollback_scope": "device_specific", **chosen}
        await homelab.quorate.facts("rollback_infrastructure_changes", **arguments)
        assert len(homelab.running("one")) == 2, "the newest of that name: web, and what was made after the first"
        text = await homelab.quorate.refusal("rollback_infrastructure_changes", backup_id="never")
        assert "There is no backup 'never'" in text
        assert "infra_backup_list" not in text
        assert "backup_list" not in text


# -- catalogue and status ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [("homeassistant", "home-assistant"), ("home_assistant", "home-assistant"), ("frigate_nvr", "frigate"),
     ("frigate", "frigate"), ("pihole", "pihole"), ("ollama_ansible", "ollama"), ("k3s", "k3s")],
)  # fmt: skip
async def test_the_catalogue_knows_the_names_of_the_other_server(tmp_path, name, meant):
    async with homelabs.machines(tmp_path) as homelab:
        assert (await homelab.quorate.facts("get_service_info", service_name=name))["service"]["service"] == meant


async def test_well_known_scripts_are_in_the_index(tmp_path):
    async with homelabs.machines(tmp_path) as homelab:
        for word in ("frigate", "homeassistant", "docker", "pihole", "jellyfin", "guacamole"):
            assert word in json.dumps(await homelab.quorate.facts("search_proxmox_scripts", query=word)).lower()
        assert "Frigate" in json.dumps(await homelab.quorate.facts("get_proxmox_script_info", script_name="frigate.sh"))


async def test_the_status_of_a_service_on_a_dead_host_is_an_error(tmp_path):
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        port = closed.getsockname()[1]
    async with homelabs.with_compose(tmp_path) as homelab:
        arguments = {"service_name": "pihole", "hostname": HOST, "port": port, "username": "tester"}
        answer = await homelab.quorate.call("get_service_status", **arguments)
        assert answer.is_error
        assert answer.structured_content["status"] == "error"


async def test_the_status_of_a_service_with_a_wrong_password_is_an_error(tmp_path):
    async with homelabs.machines(tmp_path) as homelab:
        arguments = {"service_name": "pihole", "hostname": HOST, "port": homelab.port("pi"), "username": "tester"}
        answer = await homelab.quorate.call("get_service_status", **arguments, password="wrong horse")
        assert answer.is_error
        assert "login" in first_text(answer) or "password" in first_text(answer)
