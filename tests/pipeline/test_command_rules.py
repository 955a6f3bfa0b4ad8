"""Patterns for commands hold however a command is dressed: by variables, by its folder, by files, in a container."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.command_rules import CommandRules
from tests.homelab.test_workloads import _folders, with_docker  # noqa: F401 - a fixture
from tests.rigs.mcp_session import rig
from tests.rigs.simulated_guests import CONTAINER, VM, files

RULES = CommandRules(allow=("systemctl status *", "python3 /srv/job.py", "write /srv/*", "write /etc/motd"))


def inside(tmp_path, rules: CommandRules = RULES):
    return rig(tmp_path, ssh=True, more={"command_rules": rules})


# -- variables


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "Path", "LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "ENV", "IFS", "PYTHONPATH",
        "PERL5LIB", "PERL5OPT", "RUBYOPT", "RUBYLIB", "NODE_OPTIONS", "GIT_SSH_COMMAND", "SHELLOPTS",
        "PS4", "PROMPT_COMMAND", "BASH_FUNC_ls%%", "PAGER", "SYSTEMD_PAGER", "LESSOPEN", "EDITOR", "JAVA_TOOL_OPTIONS",
        "GCONV_PATH", "HOME", "XDG_CONFIG_HOME", "DOCKER_HOST", "COMSPEC", "PSModulePath", " LD_PRELOAD", "LUA_INIT",
        "TAR_OPTIONS", "SUDO_ASKPASS", "MAKEFLAGS", "KUBECONFIG", "ld_preload", "GLIBC_TUNABLES", "OPENSSL_CONF",
        "BORG_RSH", "RESTIC_PASSWORD_COMMAND", "RCLONE_CONFIG", "PSQLRC", "BAT_PAGER", "SSL_CERT_FILE",
    ],
)  # fmt: skip
def test_a_variable_that_decides_what_runs_is_refused(name: str) -> None:
    for rules in (RULES, CommandRules(deny=("*reboot*",))):
        refused = rules.objection(("systemctl", "status", "x"), env=[name])
        assert refused is not None
        assert name in str(refused)
    assert CommandRules().objection(("anything",), env=[name]) is None


@pytest.mark.parametrize(
    "name",
    ["A", "LANG", "LC_ALL", "TZ", "DEBUG", "TARGET", "REGION", "GOOD", "APP_HOME", "CORS", "IMAGE_SRC", "DB_PASSWORD"],
)
def test_other_variables_are_not(name: str) -> None:
    assert RULES.objection(("systemctl", "status", "x"), env=[name]) is None


@pytest.mark.anyio
async def test_variables_are_refused_in_guests_and_nothing_is_run(tmp_path):
    async with inside(tmp_path) as quorate:
        for guest in (VM, CONTAINER):
            call = {"guest": guest, "command": ["systemctl", "status", "ssh"]}
            words = await quorate.refusal("guest_exec", **call, env={"LANG": "C", "LD_PRELOAD": "/tmp/evil.so"})
            assert "The variable LD_PRELOAD is refused" in words
            await quorate.facts("guest_exec", **call, env={"LANG": "C"})
        assert not any("evil" in str(request) for request in quorate.sim.requests)


# -- the folder


def test_a_folder_belongs_to_the_command() -> None:
    argv = ("systemctl", "status", "x")
    assert RULES.objection(argv) is None
    assert "cd /tmp && systemctl status x" in str(RULES.objection(argv, cwd="/tmp"))
    assert CommandRules(allow=("cd /srv/app && make *",)).objection(("make", "up"), cwd="/srv/app") is None
    assert CommandRules(deny=("make *",)).objection(("make", "up"), cwd="/srv/app") is not None


# -- files


@pytest.mark.parametrize(
    "path",
    [
        "/srv/job.py", "/usr/bin/systemctl", "/usr/local/bin/systemctl", "/srv/bin/python3", "/etc/cron.d/x",
        "/etc/ld.so.preload", "/root/.bashrc", "/home/ada/.ssh/authorized_keys", "/etc/systemd/system/x.service",
        "/etc/sudoers.d/x", "/lib/x.so", "/var/spool/cron/crontabs/root", "/etc/profile.d/x.sh", "/etc/environment",
        "C:\\Windows\\System32\\systemctl.exe", "C:\\tools\\systemctl.exe",
    ],
)  # fmt: skip
def test_what_a_pattern_runs_is_not_written_over_even_if_everything_may_be_written(path: str) -> None:
    everything = CommandRules(allow=(*RULES.allow, "write *"))
    assert everything.write_objection(path) is not None
    assert CommandRules(allow=(*RULES.allow, f"write {path}")).write_objection(path) is None, "named exactly"


def test_only_the_files_that_patterns_name_are_written_where_commands_are_limited() -> None:
    assert RULES.write_objection("/srv/www/index.html") is None
    assert RULES.write_objection("/etc/motd") is None
    assert RULES.write_objection("/etc/issue") is not None
    assert CommandRules(deny=("*shadow*",)).write_objection("/etc/shadow") is not None
    assert CommandRules(deny=("*shadow*",)).write_objection("/etc/motd") is None
    assert CommandRules().write_objection("/etc/shadow") is None


@pytest.mark.anyio
async def test_files_are_judged_by_where_they_really_are(tmp_path):
    async with inside(tmp_path) as quorate:
        for guest in (VM, CONTAINER):
            disk = files(quorate, guest)
            disk.add_link("/srv/tools", "/usr/bin")
            disk.add_link("/srv/note", "/etc/cron.d/note")
            disk.make_directories("/etc/cron.d")
            before = disk.read("/usr/bin/systemctl") if disk.find("/usr/bin/systemctl") else None
            for path in ("/srv/tools/systemctl", "/srv/tools/new", "/srv/note", "/usr/bin/systemctl", "/etc/issue"):
                words = await quorate.refusal("guest_file_write", guest=guest, path=path, content="evil", parents=True)
                assert "is refused" in words, path
            assert (disk.read("/usr/bin/systemctl") if disk.find("/usr/bin/systemctl") else None) == before
            assert disk.find("/etc/cron.d/note") is None
            await quorate.facts("guest_file_write", guest=guest, path="/srv/www/a/b", content="x", parents=True)


@pytest.mark.anyio
async def test_files_are_not_written_through_the_raw_api_either(tmp_path):
    async with inside(tmp_path) as quorate:
        path, params = f"/nodes/pve1/qemu/{VM}/agent/file-write", {"file": "/usr/bin/systemctl", "content": "x"}
        words = await quorate.refusal("api_call", method="POST", path=path, params=params)
        assert "Use the tool for files: guest_file_write" in words


# -- services and workloads


@pytest.mark.anyio
async def test_controlling_a_service_is_a_command(tmp_path):
    async with inside(tmp_path) as quorate:
        arguments = {"guest": VM, "service": "ssh", "action": "restart"}
        assert "systemctl restart ssh" in await quorate.refusal("guest_service_control", **arguments)
    (tmp_path / "b").mkdir()
    async with inside(tmp_path / "b", CommandRules(allow=("systemctl restart ssh",))) as quorate:
        await quorate.facts("guest_service_control", **arguments)


@pytest.mark.anyio
async def test_what_a_container_made_from_an_image_starts_follows_the_patterns(tmp_path):
    async with inside(tmp_path) as quorate:
        before = set(quorate.sim.world.guests)
        for options, reason in (
            ({"entrypoint": "sh -c reboot"}, "sh -c reboot"),
            ({"env": {"LD_PRELOAD": "/x"}}, "LD_PRELOAD"),
            ({"env": {"PATH": "/x"}}, "PATH"),
        ):
            text = await quorate.refusal("container_create", template="nginx:1.29", options=options)
            assert reason in text, text
        assert set(quorate.sim.world.guests) == before


@pytest.mark.anyio
async def test_the_command_of_a_workload_follows_the_patterns(tmp_path):
    more = {"command_rules": CommandRules(allow=("nginx *", "write /srv/*"))}
    async with with_docker(tmp_path, more=more) as (quorate, engine):
        arguments = {"host": "box", "name": "web", "image": "nginx:1"}
        for options, reason in (
            ({"command": ["sh", "-c", "nginx -g x"]}, "matches none"),
            ({"command": ["nginx", "-t"], "env": {"LD_PRELOAD": "/x"}}, "LD_PRELOAD"),
            ({"env": {"PATH": "/x"}}, "PATH"),
            ({"volumes": ["/:/host"]}, "Writing /* is refused"),
            ({"volumes": ["/etc:/etc"]}, "Writing /etc/* is refused"),
            ({"volumes": ["/var/run/docker.sock:/d.sock:ro"]}, "docker.sock"),
        ):
            assert reason in await quorate.refusal("workload_deploy", **arguments, **options), options
        assert engine.bodies == []
        volumes = ["/srv/www:/data", "/etc:/etc:ro", "pages:/pages"]
        await quorate.facts("workload_deploy", **arguments, command=["nginx", "-t"], volumes=volumes)


# -- always


@given(
    st.lists(st.text("ab *?=", max_size=4), min_size=1, max_size=4), st.lists(st.text("AB_", max_size=4), max_size=3)
)
def test_what_is_denied_is_never_allowed_and_what_is_not_allowed_is_refused(argv: list[str], env: list[str]) -> None:
    line = " ".join(argv)
    assert CommandRules(allow=("*",), deny=("*",)).objection(argv, env=env) is not None
    assert not CommandRules(deny=("x",)).allows(argv), "nothing was named"
    named = CommandRules(allow=("a b",))
    assert named.allows(argv) == (line == "a b")
