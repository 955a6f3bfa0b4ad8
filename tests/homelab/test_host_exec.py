"""Commands on hosts, from the front door: as the login or as root, bounded, followed, ended, and no password told."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import msgspec
import pytest

from quorate.cli.options import STILL_RUNNING
from quorate.command_rules import CommandRules
from quorate.config import Access
from quorate.config.policy import Policy, read_policy
from quorate.config.sources import Rank, Source
from quorate.homelab.homelab import JOBS
from quorate.homelab.host import Host, Hosts
from quorate.pipeline.caller import Caller, Exchange
from quorate.problems import NotFound
from quorate.pve.connection import SystemClock
from quorate.state.store import Records, open_store
from tests.inside.test_ssh import NASTY, sleeping, until
from tests.rigs.homelab import house
from tests.rigs.processes import completed
from tests.rigs.ssh_server import kept_jobs, serving
from tests.rigs.sudo import PASSWORD, needs_sudo, plain_login
from tests.rigs.tcp_server import hang, tcp_server

pytestmark = pytest.mark.anyio

CANARY = "never-in-a-process-list"
NAP = f"{os.getpid()}471"
"""Seconds that no other run sleeps: commands outlive a run that is killed, and runs share the machine."""


def command_lines() -> str:
    """Every command line and environment of this machine."""
    seen = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            seen.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(seen)


def policy(text: str) -> Policy:
    return read_policy(tomllib.loads(text), Source(Rank.TOML))


# -- as the login ------------------------------------------------------------------------------------------------------


ANCESTORS = """umask; p=$$; while [ "$p" -gt 1 ]; do tr '\\0' ' ' < /proc/$p/cmdline
p=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$p/status); done"""


async def test_commands_keep_the_umask_of_the_login_and_no_command_line_has_the_script(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        async with house(tmp_path, {"nas": {}}) as built:
            done = await built.quorate.facts("host_exec", host="nas", command=ANCESTORS)
            mask, _, lines = done["stdout"].partition("\n")
            assert (mask, done["result"]) == ("0027", "done")
            assert "printf %b" in lines, "what started the command is among its ancestors"
            assert "q_kill" not in lines
            assert "q_keep" not in lines
            assert max(map(len, built.hosts["nas"].commands)) < 100
    finally:
        os.umask(umask)


async def test_a_text_is_run_by_a_shell_and_a_list_as_it_is(tmp_path):
    words = [word for word in NASTY if word.isprintable()]
    async with house(tmp_path) as built:
        facts = await built.quorate.facts(
            "host_exec", host="nas", command='pwd; echo "$A"; cat; echo err >&2; exit 3', cwd="/usr", env={"A": "é x"},
            stdin="through\n",
        )  # fmt: skip
        assert (facts["stdout"], facts["stderr"], facts["exit_code"]) == ("/usr\né x\nthrough\n", "err\n", 3)
        assert facts["host"] == "host nas"
        facts = await built.quorate.facts("host_exec", host="nas", command=["printf", "%s\n", *words])
        assert facts["stdout"].split("\n")[:-1] == words


async def test_nodes_and_guests_are_reached_by_their_names(tmp_path):
    async with house(tmp_path) as built:
        quorate = built.quorate
        assert (await quorate.facts("host_exec", host="pve1", command=["hostname"]))["stdout"] == "pve1\n"
        facts = await quorate.facts("host_exec", host="102", command=["hostname"])
        assert (facts["stdout"], facts["way"]) == ("docker01\n", "guest agent of vm 102 docker01")
        assert quorate.audit()[-1]["outcome"] == "done"


async def test_the_first_bytes_of_a_flood_are_returned(tmp_path):
    async with house(tmp_path) as built:
        facts = await built.quorate.facts("host_exec", host="nas", command="yes | head -c 3000000", max_output=1000)
        assert len(facts["stdout"]) == 1000
        assert "max_output shows more" in facts["stdout_cut"]


async def test_the_refusal_says_whether_a_host_is_absent_unknown_or_refuses_the_login(tmp_path):
    async with house(tmp_path, {"nas": {}, "pi": {"password": "open"}}) as built:
        quorate = built.quorate
        assert "no host 'nax'" in await quorate.refusal("host_exec", host="nax", command="true")
        wrong = await quorate.refusal("host_exec", host="pi", command="true", password="shut", key="/none")
        assert "shut" not in wrong
        right = await quorate.facts("host_exec", host="pi", command="echo in", password="open")
        assert right["stdout"] == "in\n"
        built.hosts["nas"].known_hosts.write_text(f"[127.0.0.1]:{built.hosts['nas'].port} {new_key()}\n")
        assert "key" in (await quorate.refusal("host_exec", host="nas", command="true")).lower()
        assert built.hosts["nas"].commands == []


def new_key() -> str:
    return asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()


async def test_a_host_that_takes_the_connection_and_stays_silent_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("quorate.ssh.connection.CONNECT_SECONDS", 0.3)
    async with house(tmp_path) as built:
        async with tcp_server(hang) as port:
            words = await built.quorate.refusal("host_exec", host=f"tester@127.0.0.1:{port}", command="true")
        assert "did not answer SSH within" in words


# -- rules -------------------------------------------------------------------------------------------------------------


async def test_the_operators_patterns_for_commands_hold_for_hosts(tmp_path):
    rules = CommandRules(deny=("*reboot*",))
    async with house(tmp_path, more={"command_rules": rules}) as built:
        for command in ("reboot", ["sudo", "reboot"]):
            assert "deny in [inside]" in await built.quorate.refusal("host_exec", host="nas", command=command)
        assert built.hosts["nas"].commands == []


async def test_the_rules_of_a_cluster_hold_for_its_guests_by_whichever_tool(tmp_path):
    rules = policy('[[rules]]\nname = "leave it alone"\ndeny = "change"\nvmids = [102]\n')
    async with house(tmp_path, more={"policy": rules}) as built:
        words = await built.quorate.refusal("host_exec", host="102", command="true")
        assert "leave it alone" in words
        assert (await built.quorate.facts("host_exec", host="nas", command="echo x"))["stdout"] == "x\n"


async def test_who_may_only_read_runs_nothing(tmp_path):
    async with house(tmp_path, access=Access.READ, register=False) as built:
        names = [tool.name for tool in (await built.quorate.client.list_tools()).tools]
        assert "host_exec" not in names
        assert "host_job" not in names


# -- in the background -------------------------------------------------------------------------------------------------


async def test_a_list_shows_jobs_that_have_ended_as_ended(tmp_path: Path) -> None:
    async with house(tmp_path) as built:
        quorate = built.quorate
        begun = await quorate.facts("host_exec", host="nas", command=f"sleep {NAP}2", wait=0.5)
        [folder] = kept_jobs(built.hosts["nas"])
        [pid] = sleeping(f"{NAP}2")
        os.kill(int(pid), signal.SIGTERM)
        await until((folder / "code").exists)
        [row] = await quorate.rows("host_job")
        assert (row["job"], row["state"]) == (begun["job"], "ended")
        assert (await quorate.facts("host_job", action="poll", job=begun["job"]))["exit_code"] == 143


async def test_a_long_command_goes_on_is_listed_polled_and_stopped_with_all_it_started(tmp_path):
    async with house(tmp_path) as built:
        quorate = built.quorate
        facts = await quorate.facts("host_exec", host="nas", command=f"echo one; sleep {NAP}1 & sleep {NAP}1", wait=0.5)
        job = facts["job"]
        assert facts["result"] == "running"
        assert f"host_job action=poll job={job}" in facts["next"]
        (row,) = await quorate.rows("host_job")
        assert (row["job"], row["host"], row["state"]) == (job, "host nas", "started")
        output = await quorate.facts("host_job", action="poll", job=job)
        assert (output["state"], output["host"], output["stdout"]) == ("running", "host nas", "one\n")
        stopped = await quorate.facts("host_job", action="stop", job=job)
        assert stopped["signal"] == "TERM"
        assert sleeping(f"{NAP}1") == []
        assert (await quorate.facts("host_job", action="poll", job=job))["state"] == "ended"
        assert "no job 'ssh:1'" in await quorate.refusal("host_job", action="poll", job="ssh:1")
        assert "needs the job" in await quorate.refusal("host_job", action="stop")


async def test_a_job_in_a_guest_that_is_hidden_from_the_caller_is_neither_listed_nor_shown_nor_stopped(tmp_path):
    rules = policy('[[rules]]\nname = "not for you"\ndeny = "read"\nvmids = [102]\n')
    async with house(tmp_path) as built:
        quorate = built.quorate
        job = (await quorate.facts("host_exec", host="102", command="sleep 999", wait=0))["job"]
        quorate.app.adopt(replace(quorate.app.settings, policy=rules))
        assert await quorate.rows("host_job") == []
        for action in ("poll", "stop"):
            assert "not for you" in await quorate.refusal("host_job", action=action, job=job)
        quorate.app.adopt(replace(quorate.app.settings, policy=policy("")))
        assert (await quorate.facts("host_job", action="stop", job=job))["signal"] == "TERM"


# -- as root -----------------------------------------------------------------------------------------------------------


@needs_sudo
async def test_sudo_gets_its_password_and_nobody_else_does(tmp_path, monkeypatch):
    monkeypatch.setenv("QUORATE_HOST_NAS", PASSWORD)
    async with house(tmp_path, {"nas": {"noise": plain_login(tmp_path / "login")}}, register=False) as built:
        quorate = built.quorate
        await built.register(sudo_password="env:QUORATE_HOST_NAS")
        plain = await quorate.facts("host_exec", host="nas", command="id -un")
        assert plain["stdout"] == "tester\n"
        script = 'id -un; pwd; echo "$A"; cat'
        root = await quorate.facts("host_exec", host="nas", command=script, sudo=True, env={"A": "a b"}, stdin="in\n")
        assert (root["stdout"], root.get("stderr")) == ("root\n/\na b\nin\n", None)
        env = {"A": CANARY}
        facts = await quorate.facts("host_exec", host="nas", command=f"sleep {NAP}2", sudo=True, env=env, wait=0.5)
        await until(lambda: sleeping(f"{NAP}2"))
        shown = command_lines()
        assert f"sleep {NAP}2" in shown
        assert CANARY not in shown
        assert PASSWORD not in shown
        assert (await quorate.facts("host_job", action="stop", job=facts["job"]))["signal"] == "TERM"
        assert sleeping(f"{NAP}2") == []
        for text in (quorate.audit_file.read_text(), (tmp_path / "state.sqlite").read_bytes().decode("latin-1")):
            assert PASSWORD not in text
            assert CANARY not in text


@pytest.mark.thorough
@needs_sudo
async def test_what_ignores_a_polite_end_as_root_is_ended_by_force_and_by_its_time_limit(tmp_path):
    login = plain_login(tmp_path / "login", "Defaults use_pty\ntester ALL=(ALL:ALL) ALL")
    async with house(tmp_path, {"nas": {"noise": login}}) as built:
        quorate = built.quorate
        stubborn = f'trap "" TERM; sleep {NAP}3 & sleep {NAP}3; sleep {NAP}3'
        arguments = {"host": "nas", "sudo": True, "password": PASSWORD, "key": str(built.hosts["nas"].key_file)}
        facts = await quorate.facts("host_exec", command=stubborn, wait=0.5, **arguments)
        await until(lambda: len(sleeping(f"{NAP}3")) == 2)
        assert (await quorate.facts("host_job", action="stop", job=facts["job"]))["signal"] == "KILL"
        assert sleeping(f"{NAP}3") == []
        limited = await quorate.facts("host_exec", command=f"sleep {NAP}4", timeout=1, **arguments)
        assert limited["signal"] == "TERM"
        assert PASSWORD not in quorate.audit_file.read_text()


@needs_sudo
async def test_a_wrong_password_for_sudo_is_tried_once_and_reported(tmp_path):
    async with house(tmp_path, {"nas": {"noise": plain_login(tmp_path / "login")}}) as built:
        arguments = {"host": "nas", "command": "cat", "sudo": True, "stdin": "a\nb\nc\n"}
        key = str(built.hosts["nas"].key_file)
        words = await built.quorate.refusal("host_exec", password="wrong horse", key=key, **arguments)
        assert "1 incorrect password attempt" in words
        assert "wrong horse" not in words
        words = await built.quorate.refusal("host_exec", **arguments)
        assert "a password is required" in words
        assert "sudo_password" in words


@needs_sudo
async def test_a_password_that_sudo_does_not_need_never_reaches_the_command(tmp_path):
    login = plain_login(tmp_path / "login", "tester ALL=(ALL) NOPASSWD: ALL")
    async with house(tmp_path, {"nas": {"noise": login}}) as built:
        key = str(built.hosts["nas"].key_file)
        facts = await built.quorate.facts(
            "host_exec", host="nas", command="id -un; cat", sudo=True, password=PASSWORD, key=key, stdin="mine\n"
        )
        assert facts["stdout"] == "root\nmine\n"


async def test_a_login_that_is_root_needs_no_sudo_and_its_password_is_thrown_away(tmp_path):
    async with house(tmp_path) as built:
        if (await built.quorate.facts("host_exec", host="nas", command=["id", "-u"]))["stdout"] != "0\n":
            pytest.skip("the test server runs commands as this user, which is not root")
        key = str(built.hosts["nas"].key_file)
        facts = await built.quorate.facts(
            "host_exec", host="nas", command="cat", sudo=True, password=PASSWORD, key=key, stdin="mine\n"
        )
        assert facts["stdout"] == "mine\n"


async def test_a_command_that_outlasts_quorate_call_goes_on_and_the_next_call_follows_it(tmp_path):
    async with serving(tmp_path / "nas") as nas:
        state = tmp_path / "state.sqlite"
        async with open_store(str(state), clock=SystemClock()) as store:
            await Hosts(store).add(Host("nas", "127.0.0.1", nas.port, key=str(nas.key_file)))
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "QUORATE_STATE": str(state),
            "QUORATE_HOMELAB_KNOWN_HOSTS": str(nas.known_hosts),
        }

        async def call(*words: str) -> tuple[int | None, str]:
            done = await asyncio.to_thread(completed, "call", *words, "--access", "operate", environ=environ)
            return done.returncode, done.stdout

        code, output = await call("host_exec", "host=nas", "command=echo begun; sleep 600", "wait=0")
        assert code == STILL_RUNNING, output
        job = next(word for word in output.split() if word.startswith("kept:"))
        code, output = await call("host_job", "action=poll", f"job={job}")
        assert (code, "begun" in output, "running" in output) == (0, True, True), output
        _, output = await call("host_job", "action=stop", f"job={job}")
        assert "signal: TERM" in output


async def test_a_job_that_an_older_version_recorded_is_still_found(tmp_path):
    async with house(tmp_path) as built:
        job = (await built.quorate.facts("host_exec", host="nas", command=f"sleep {NAP}9", wait=0))["job"]
        app = built.quorate.app
        record = msgspec.to_builtins(app.homelab.job_book.here.pop(job).record)
        newer = {name for name in record if name.startswith(("target_", "transport_"))}
        assert newer == {"target_kind", "target_id", "transport_name"}
        older = {name: value for name, value in record.items() if name not in newer}
        await Records(app.store, JOBS, dict).keep(job, older)
        assert (await built.quorate.facts("host_job", action="poll", job=job))["state"] == "running"
        assert (await built.quorate.facts("host_job", action="stop", job=job))["signal"] == "TERM"


async def test_a_job_belongs_to_the_caller_who_started_it(tmp_path):
    async with house(tmp_path) as built:
        alice, bob = (Exchange(Caller(subject=name)) for name in ("alice", "bob"))

        async def run(who: Exchange, tool: str, **arguments: Any) -> Any:
            return (await built.quorate.app.pipeline.run(tool, arguments, who)).data

        job = (await run(alice, "host_exec", host="nas", command=f"sleep {NAP}6", wait=0.5))["job"]
        assert [len((await run(who, "host_job")).rows) for who in (alice, bob, Exchange())] == [1, 0, 1]
        for action in ("poll", "stop"):
            with pytest.raises(NotFound, match="There is no job"):
                await run(bob, "host_job", action=action, job=job)
        assert (await run(alice, "host_job", action="stop", job=job))["signal"] == "TERM"


async def test_a_command_that_ends_just_when_nobody_waits_any_longer_is_not_lost(tmp_path):
    async with house(tmp_path) as built:
        for number in range(12):
            command = f"sleep 0.0{number}; echo {number}"
            answer = await built.quorate.facts("host_exec", host="nas", command=command, wait=0)
            if job := answer.get("job"):
                answer = await built.quorate.facts("host_job", action="poll", job=job, seconds=10)
            assert (answer["exit_code"], answer["stdout"]) == (0, f"{number}\n")


@pytest.mark.parametrize("read", ["before", "after"])
async def test_a_command_that_ends_while_its_supervisor_is_looked_at_is_not_lost(tmp_path, read):
    """The call looks once, then a poll does: it reads the state just before the end, or the call just after it."""
    looked, environment = slow_look(tmp_path, read, number=2 if read == "before" else 1)
    async with house(tmp_path, {"nas": {"environment": environment}}) as built, asyncio.timeout(30):
        command = f"until [ -e {looked} ]; do sleep 0.01; done; echo done; exit 3"
        answer = await built.quorate.facts("host_exec", host="nas", command=command, wait=0)
        ended = await built.quorate.facts("host_job", action="poll", job=answer["job"], seconds=50)
        assert (ended["state"], ended["exit_code"], ended["stdout"]) == ("ended", 3, "done\n")


def slow_look(folder: Path, read: str, *, number: int) -> tuple[Path, dict[str, str]]:
    """A machine where this look at another process takes until that has ended, and one at the own process long.

    Returns the file that appears once the look has begun, and the environment.
    """
    cat, looked, program = shutil.which("cat"), folder / f"look{number}", folder / "programs" / "cat"
    steps = [f"state=$({cat} $1)", f": > {looked}; while kill -0 $other; do sleep 0.01; done"]
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
exec 2>/dev/null; other=${{1#/proc/}}; other=${{other%/stat}}
case $1 in
/proc/$PPID/stat) sleep 0.3;;
/proc/*/stat)
  count=$(($({cat} {folder}/count || echo 0) + 1)); echo $count > {folder}/count
  if [ $count = {number} ]; then {"; ".join(steps if read == "before" else reversed(steps))}; echo "$state"; exit; fi;;
esac
exec {cat} "$@"
""")
    program.chmod(0o755)
    return looked, {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


@pytest.mark.thorough
async def test_what_a_command_left_on_its_machine_goes_an_hour_after_its_end(tmp_path):
    async with house(tmp_path) as built:
        quorate, nas = built.quorate, built.hosts["nas"]
        begun = {}
        for name, command in (("ended", "true"), ("lost", f"sleep {NAP}7"), ("running", f"sleep {NAP}8")):
            job = (await quorate.facts("host_exec", host="nas", command=f"sleep 0.2; {command}", wait=0))["job"]
            begun[name] = next(record for record in kept_jobs(nas) if record.name.endswith(job.removeprefix("kept:")))
            if name == "ended":
                await quorate.facts("host_job", action="poll", job=job, seconds=10)
        for file in ("supervisor", "pid"):  # as if the power had failed
            os.killpg(int((begun["lost"] / file).read_text().split()[0]), signal.SIGKILL)
        await quorate.facts("host_exec", host="nas", command=["true"])
        assert all(folder.exists() for folder in begun.values())
        for folder in (*begun.values(), begun["ended"] / "code"):
            os.utime(folder, (0, 0))
        await quorate.facts("host_exec", host="nas", command=["true"])
        assert [name for name, folder in begun.items() if folder.exists()] == ["running"]
