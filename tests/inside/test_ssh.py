"""Commands over SSH, on servers that run them for real: nothing is lost, repeated, injected or left running."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import signal
import subprocess
import sys
from base64 import b64encode
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest

from quorate.inside.ssh_transport import SshTransport, start_problem
from quorate.inside.transport import Command
from quorate.problems import (
    AuthenticationFailed,
    BadArgument,
    GuestRefused,
    HostKeyRefused,
    NotConfigured,
    OutcomeUnknown,
    TimedOut,
    Unreachable,
)
from quorate.secret import Secret
from quorate.ssh.host_keys import pin
from quorate.ssh.launcher import Launch, kill_argv
from quorate.ssh.process import ExecutionTarget
from quorate.ssh.target import SshTarget
from tests.rigs.ssh_server import HOST, Host, reached, serving

pytestmark = pytest.mark.anyio

NASTY = [
    "a b", "it's", '"double"', "$(touch /tmp/never)", "`id`", "new\nline", "tab\there", "*", "~", "!x", "\\n", "\\0101",
    "é€", "--option", "-n", "", " ", ";", "&&", "|", ">x", "#no", "%s%n", "\x1b[31m", "\u202egnp.exe", "a" * 5000, "}",
    "${HOME}",
]  # fmt: skip


def way(place: ExecutionTarget) -> SshTransport:
    return SshTransport(
        "ssh", "test", place, lambda ended: start_problem("it", ended.exit_code, ended.message), max_output=10**7
    )


@asynccontextmanager
async def machine(folder, **options):
    """A server and a way into it."""
    of_pool = {name: options.pop(name) for name in ("idle_seconds", "target") if name in options}
    async with serving(folder, **options) as host, reached(host, **of_pool) as place:
        yield host, way(place)


NAP = f"{os.getpid()}710"
"""Seconds that no other run sleeps: commands outlive a run that is killed, and runs share the machine."""


def sleeping(seconds: str) -> list[str]:
    """The commands that still run which were marked by this number of seconds."""
    listed = subprocess.run(["pgrep", "-f", f"^sleep {seconds}$"], capture_output=True, text=True, check=False)
    return listed.stdout.split()


async def until(condition) -> None:
    """Wait for something that surely comes; the runner ends a test that waits forever."""
    while not condition():
        await asyncio.sleep(0.01)


# -- commands ----------------------------------------------------------------------------------------------------------


async def test_output_error_output_and_exit_code_come_apart(tmp_path):
    async with machine(tmp_path) as (_, into):
        output = await into.run(Command(("sh", "-c", "echo out; echo err >&2; exit 7")))
        assert (output.exit_code, output.stdout, output.stderr) == (7, b"out\n", b"err\n")


async def test_arguments_arrive_exactly_as_they_were_given(tmp_path):
    async with machine(tmp_path) as (_, into):
        show = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))"
        output = await into.run(Command((sys.executable, "-c", show, *NASTY)))
        assert output.stdout.decode().split("\0") == NASTY


async def test_environment_folder_and_input_arrive_and_are_not_on_the_command_line(tmp_path):
    async with machine(tmp_path) as (host, into):
        command = Command(
            ("sh", "-c", 'printf "%s|%s|" "$SECRET" "$(pwd)"; cat'),
            stdin=b"in\0put\xff",
            env={"SECRET": "top 'secret'\nof two lines"},
            cwd="/usr",
        )
        output = await into.run(command)
        assert output.stdout == b"top 'secret'\nof two lines|/usr|in\0put\xff"
        assert "secret" not in host.commands[0]


async def test_a_megabyte_goes_in_and_comes_back(tmp_path):
    data = os.urandom(1024 * 1024)
    async with machine(tmp_path) as (_, into):
        output = await into.run(Command(("cat",), stdin=data), keep=2 * len(data))
        assert output.stdout == data
        assert not output.stdout_cut


async def test_what_a_login_shell_says_does_not_mix_with_the_output(tmp_path):
    async with machine(tmp_path, noise="echo Welcome to the machine; echo warning >&2; ") as (_, into):
        output = await into.run(Command(("echo", "mine")))
        assert (output.stdout, output.stderr) == (b"mine\n", b"")


async def test_a_login_shell_that_speaks_as_the_launcher_does_changes_nothing(tmp_path):
    noise = "echo @quorate@ 1; echo @quorate@ 0; echo @quorate@ 99999999999999999999; echo @quorate@ x >&2; "
    async with machine(tmp_path, noise=noise) as (_, into):
        output = await into.run(Command(("echo", "mine")))
        assert (output.stdout, output.stderr) == (b"mine\n", b"")
        job = await into.start(Command(("sleep", f"{NAP}9")))
        await until(lambda: sleeping(f"{NAP}9"))
        await job.stop()
        assert not sleeping(f"{NAP}9")


async def test_a_command_that_cannot_begin_is_reported_as_such(tmp_path):
    async with machine(tmp_path) as (_, into):
        with pytest.raises(BadArgument, match="can't cd to /no/such"):
            await into.run(Command(("true",), cwd="/no/such"))
        with pytest.raises(BadArgument, match="there is no user nosuchuser"):
            await into.run(Command(("true",), user="nosuchuser"))
        output = await into.run(Command(("nosuchprogram",)))
        assert output.exit_code == 127


@pytest.mark.parametrize(
    "command",
    [
        Command(("a\0b",)),
        Command(()),
        Command(("",)),
        Command(("-x",)),
        Command(("true",), env={"A B": "1"}),
        Command(("true",), env={"A=B; id": "1"}),
        Command(("true",), env={"q_setsid": "/tmp/mine"}),
        Command(("true",), env={"IFS": "/"}),
        Command(("true",), user="root; id"),
        Command(("true",), user="-x"),
    ],
)
async def test_what_cannot_be_a_command_is_refused_before_anything_is_sent(tmp_path, command):
    async with machine(tmp_path) as (host, into):
        with pytest.raises(BadArgument):
            await into.run(command)
        assert host.commands == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_command_runs_as_the_user_it_was_given_for(tmp_path):
    async with machine(tmp_path) as (_, into):
        command = Command(("sh", "-c", 'id -un; echo "$X"; cat'), stdin=b"in", env={"X": "a 'b' $c"}, user="nobody")
        assert (await into.run(command)).stdout == b"nobody\na 'b' $c\nin"


# Asks as the real one does, up to three times, and takes what comes next for a password.
SUDO = """#!/bin/sh
echo "$*" >> "$0.log"
ask=; prompt=
while [ "$1" != -- ]; do case $1 in -S) ask=1;; -p) prompt=$2; shift;; -u) shift;; esac; shift; done; shift
[ -n "$ask" ] || { echo "sudo: a password is required" >&2; exit 1; }
for try in 1 2 3; do
  printf %s "$prompt" >&2; IFS= read -r said || { echo "sudo: $try incorrect password attempt" >&2; exit 1; }
  echo "$said" >> "$0.tried"; [ "$said" != "open sesame" ] || { SUDO_USER=me; export SUDO_USER; exec "$@"; }
  echo "Sorry, try again." >&2
done
exit 1
"""


@asynccontextmanager
async def login_with_sudo(folder):
    """A server whose login is not root's, as far as its commands can tell."""
    for name, script in (("sudo", SUDO), ("id", '#!/bin/sh\n[ "$2" = root ] && echo 0 || echo 1000\n')):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    async with machine(folder / "host", environment=environment) as (_, into):
        yield into


async def test_sudo_gets_the_password_and_the_command_everything_else(tmp_path):
    command = Command(
        ("sh", "-c", 'echo "$SUDO_USER $A $PWD"; cat'),
        b"in\n",
        {"A": "a b"},
        user="root",
        password=Secret("open sesame"),
    )
    async with login_with_sudo(tmp_path) as into:
        done = await into.run(command)
        assert (done.stdout, done.stderr) == (b"me a b /\nin\n", b"")
        assert (tmp_path / "sudo.tried").read_text() == "open sesame\n"
        log = (tmp_path / "sudo.log").read_text()
        assert "a b" not in log
        assert "open sesame" not in log


async def test_a_wrong_password_is_tried_once_and_nothing_else_is_taken_for_one(tmp_path):
    command = Command(("cat",), b"open sesame\n" * 3, user="root", password=Secret("knock"))
    async with login_with_sudo(tmp_path) as into:
        with pytest.raises(GuestRefused, match="sudo does not allow the command") as refused:
            await into.run(command)
        assert "2 incorrect password attempt" in str(refused.value)
        assert "@quorate@" not in str(refused.value)
        assert (tmp_path / "sudo.tried").read_text() == "knock\n"
        with pytest.raises(GuestRefused, match="a password is required"):
            await into.run(Command(("cat",), user="root"))
        with pytest.raises(BadArgument, match="one line"):
            await into.run(Command(("cat",), user="root", password=Secret("open\nsesame")))


@pytest.mark.thorough
async def test_endless_output_is_bounded_and_ended(tmp_path):
    async with machine(tmp_path) as (_, into):
        await into.run(Command(("true",)))  # so that the time is not spent on connecting
        with pytest.raises(TimedOut, match="did not end within") as caught:
            await into.run(Command(("sh", "-c", f"while :; do echo {NAP}; done")), seconds=2, keep=1000)
        assert len(caught.value.facts["stdout"]) <= 2000
        await until(
            lambda: not subprocess.run(["pgrep", "-f", f"echo {NAP}; done$"], check=False, capture_output=True).stdout
        )


async def test_of_a_long_output_the_first_bytes_are_kept_and_the_rest_is_counted(tmp_path):
    async with machine(tmp_path) as (_, into):
        output = await into.run(Command(("sh", "-c", "head -c 10000000 /dev/zero")), keep=100)
        assert (output.exit_code, len(output.stdout), output.stdout_cut) == (0, 100, True)


# -- files -------------------------------------------------------------------------------------------------------------


async def test_files_are_written_read_in_parts_and_added_to(tmp_path):
    data = bytes(range(256)) * 1000
    async with machine(tmp_path) as (_, into):
        file = str(tmp_path / "--a 'file' $(id)\nwith é")
        await into.write_file(file, data)
        await into.write_file(file, b"more", append=True)
        assert await into.read_file(file, limit=10**6) == data + b"more"
        assert await into.read_file(file, offset=255_990, limit=12) == data[-10:] + b"mo"
        assert await into.read_file(file, offset=10**7, limit=10) == b""


async def test_files_that_cannot_be_read_or_written_are_reported_in_the_words_of_the_machine(tmp_path):
    from quorate.problems import GuestRefused, NotFound

    async with machine(tmp_path) as (_, into):
        with pytest.raises(NotFound, match="There is no file /no/such"):
            await into.read_file("/no/such", limit=10)
        with pytest.raises(GuestRefused, match="is a folder"):
            await into.read_file("/tmp", limit=10)
        with pytest.raises(NotFound, match="could not be written"):
            await into.write_file("/no/such/file", b"x")


# -- ending ------------------------------------------------------------------------------------------------------------


async def test_cancelling_a_call_ends_the_command_and_all_that_it_has_started(tmp_path):
    async with machine(tmp_path) as (_, into):
        script = f"setsid sleep {NAP}1 & (sleep {NAP}1 & wait) & sleep {NAP}1"
        running = asyncio.ensure_future(into.run(Command(("sh", "-c", script)), seconds=60))
        await until(lambda: len(sleeping(f"{NAP}1")) == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: not sleeping(f"{NAP}1"))


async def test_a_command_that_ignores_a_polite_end_is_ended_by_force(tmp_path):
    async with machine(tmp_path) as (_, into):
        job = await into.start(Command(("sh", "-c", f'trap "" TERM; echo ready; while :; do sleep {NAP}2; done')))
        await until(lambda: sleeping(f"{NAP}2"))
        await job.stop()
        output = await job.wait(5)
        assert output is not None
        assert (output.signal, output.stdout) == ("KILL", b"ready\n")
        assert not sleeping(f"{NAP}2")


async def test_a_time_limit_is_kept_from_inside(tmp_path):
    async with machine(tmp_path) as (_, into):
        job = await into.start(Command(("sh", "-c", f"sleep {NAP}3 & sleep {NAP}3")), limit=1)
        output = await job.wait(30)
        assert output is not None
        assert output.signal == "TERM"
        await until(lambda: not sleeping(f"{NAP}3"))


async def test_a_job_shows_its_output_so_far(tmp_path):
    async with machine(tmp_path) as (_, into):
        job = await into.start(Command(("sh", "-c", f"echo begun; sleep {NAP}7; echo end")))
        while not (await job.partial_output()).stdout:
            await asyncio.sleep(0.01)
        assert (await job.partial_output()).stdout == b"begun\n"
        assert await job.wait(0) is None


async def test_closing_ends_what_still_runs(tmp_path):
    async with serving(tmp_path) as host:
        async with reached(host) as place:
            await way(place).start(Command(("sleep", f"{NAP}4")))
            await until(lambda: sleeping(f"{NAP}4"))
        assert not sleeping(f"{NAP}4")


async def test_a_server_that_allows_one_session_lets_go_of_it_when_the_command_is_ended(tmp_path):
    async with machine(tmp_path, most_sessions=1) as (_, into):
        job = await into.start(Command(("sleep", f"{NAP}5")))
        await until(lambda: sleeping(f"{NAP}5"))
        await job.stop()
        await until(lambda: not sleeping(f"{NAP}5"))


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("most_sessions", [10, 3])
async def test_long_commands_do_not_keep_the_others_waiting(tmp_path, most_sessions):
    seconds = f"{NAP}8{most_sessions}"
    async with machine(tmp_path, most_sessions=most_sessions) as (host, into):
        starting = [into.start(Command(("sleep", seconds))) for _ in range(12)]
        jobs = []
        for coming in asyncio.as_completed(starting):
            jobs.append(await coming)
            assert await jobs[-1].wait(0) is None
            jobs[-1].leave()
        assert (await into.run(Command(("echo", "through")))).stdout == b"through\n"
        assert len(host.connections) <= 3 * 12 // most_sessions
        await asyncio.gather(*(job.stop() for job in jobs))
        assert not sleeping(seconds)


@pytest.mark.parametrize("most_sessions", [10, 3])
async def test_looking_at_commands_again_and_again_does_not_make_them_long(tmp_path, most_sessions):
    async with machine(tmp_path, most_sessions=most_sessions) as (host, into):
        jobs = await asyncio.gather(*(into.start(Command(("sleep", "1"))) for _ in range(most_sessions - 1)))
        assert [await job.wait(0) for job in jobs] == [None] * len(jobs)
        assert (await into.run(Command(("echo", "through")))).stdout == b"through\n"
        assert len(host.connections) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("most_sessions", [3, 10, 1])
async def test_a_hundred_commands_at_once_share_one_connection(tmp_path, most_sessions):
    async with machine(tmp_path, most_sessions=most_sessions) as (host, into):
        outputs = await asyncio.gather(*(into.run(Command(("echo", str(number)))) for number in range(100)))
        assert [output.stdout for output in outputs] == [b"%d\n" % number for number in range(100)]
        assert len(host.connections) == 1
        assert host.busiest <= most_sessions


async def test_a_dead_connection_is_noticed_and_replaced(tmp_path):
    async with machine(tmp_path) as (host, into):
        await into.run(Command(("true",)))
        host.drop_all()
        assert (await into.run(Command(("echo", "again")))).stdout == b"again\n"
        assert len(host.connections) == 2


async def test_a_command_whose_fate_is_unknown_is_not_sent_again(tmp_path):
    log = tmp_path / "log"
    async with machine(tmp_path) as (host, into):
        running = asyncio.ensure_future(
            into.run(Command(("sh", "-c", f"echo ran >> '{log}'; sleep {NAP}6")), seconds=60)
        )
        await until(log.exists)
        host.drop_all()
        with pytest.raises(OutcomeUnknown, match="not sent again"):
            await running
        assert log.read_text() == "ran\n"
        assert len(host.connections) == 1
        for pid in sleeping(f"{NAP}6"):
            os.kill(int(pid), signal.SIGKILL)


async def test_an_idle_connection_is_closed_and_made_anew_when_needed(tmp_path):
    async with machine(tmp_path, idle_seconds=0.01) as (host, into):
        await into.run(Command(("true",)))
        await host.connections[0].wait_closed()
        await into.run(Command(("true",)))
        assert len(host.connections) == 2


async def test_a_busy_connection_is_not_idle(tmp_path):
    async with machine(tmp_path, idle_seconds=0.01) as (host, into):
        output = await into.run(Command(("sh", "-c", "sleep 0.2; echo end")))
        assert output.stdout == b"end\n"
        assert len(host.connections) == 1


async def test_a_jump_host_is_gone_through(tmp_path):
    async with serving(tmp_path / "inner") as inner, serving(tmp_path / "jump") as jump:
        (tmp_path / "both").write_text(inner.known_hosts.read_text() + jump.known_hosts.read_text())
        inner.known_hosts.write_text((tmp_path / "both").read_text())
        target = inner.target(jump=jump.target())
        async with reached(inner, target=target) as place:
            assert (await way(place).run(Command(("echo", "there")))).stdout == b"there\n"
            assert (len(jump.connections), jump.commands) == (1, [])


async def test_a_jump_host_that_cannot_reach_the_target_is_reported(tmp_path):
    async with serving(tmp_path / "jump") as jump:
        target = SshTarget(HOST, unused_port(), key=jump.key_file, jump=jump.target())
        async with reached(jump, target=target) as place:
            with pytest.raises(Unreachable, match="jump host cannot reach it"):
                await way(place).run(Command(("true",)))


def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


# -- trust -------------------------------------------------------------------------------------------------------------


async def refused(host: Host, /, **changes) -> str:
    async with reached(host, target=host.target(**changes)) as place:
        with pytest.raises(HostKeyRefused) as caught:
            await way(place).run(Command(("true",)))
        assert host.commands == []
        return str(caught.value)


async def test_a_host_that_is_not_known_is_refused_with_its_fingerprint(tmp_path):
    async with serving(tmp_path) as host:
        host.known_hosts.write_text("")
        words = await refused(host)
        assert f"The host key of {HOST}:{host.port} is not known" in words
        assert f"ssh-ed25519 {host.host_key.get_fingerprint()}" in words
        assert f"`quorate trust {HOST}:{host.port}`" in words


async def test_a_changed_host_key_is_refused_loudly(tmp_path):
    async with serving(tmp_path) as host:
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
        host.known_hosts.write_text(f"[{HOST}]:{host.port} {other}")
        words = await refused(host)
        assert f"THE HOST KEY OF {HOST}:{host.port} HAS CHANGED" in words
        assert host.host_key.get_fingerprint() in words


async def test_a_host_that_shows_another_kind_of_key_than_known_is_refused_as_changed(tmp_path):
    async with serving(tmp_path) as host:
        other = asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_public_key().decode()
        host.known_hosts.write_text(f"[{HOST}]:{host.port} {other}")
        assert "HAS CHANGED" in await refused(host)


async def test_a_revoked_host_key_is_refused(tmp_path):
    async with serving(tmp_path) as host:
        host.known_hosts.write_text(f"[{HOST}]:{host.port} {host.public()}\n@revoked * {host.public()}\n")
        assert "is revoked" in await refused(host)


async def test_a_name_is_not_trusted_because_its_address_is(tmp_path):
    async with serving(tmp_path) as host:
        assert host.public() in host.known_hosts.read_text()  # of the address
        assert f"The host key of localhost:{host.port} is not known" in await refused(host, host="localhost")
        named = f"[localhost]:{host.port} {host.public()}\n"
        host.known_hosts.write_text(f"{named}@revoked [{HOST}]:{host.port} {host.public()}\n")
        assert "is revoked" in await refused(host, host="localhost")
        host.known_hosts.write_text(named)
        async with reached(host, target=host.target(host="localhost")) as place:
            assert (await way(place).run(Command(("true",)))).exit_code == 0


async def test_a_key_that_the_operator_pinned_is_enough_from_then_on(tmp_path):
    async with serving(tmp_path) as host:
        host.known_hosts.write_text("")
        async with reached(host) as place:
            with pytest.raises(HostKeyRefused):
                await way(place).run(Command(("true",)))
            pin(host.pins, HOST, host.port, host.host_key.convert_to_public())
            assert (await way(place).run(Command(("true",)))).exit_code == 0
        assert host.pins.stat().st_mode & 0o777 == 0o600


async def test_hashed_names_and_broken_lines_in_known_hosts_are_understood(tmp_path):
    async with machine(tmp_path) as (host, into):
        salt = os.urandom(20)
        name = hmac.new(salt, f"[{HOST}]:{host.port}".encode(), hashlib.sha1).digest()
        entry = f"|1|{b64encode(salt).decode()}|{b64encode(name).decode()} {host.public()}"
        host.known_hosts.write_text(f"# comment\nbroken\n@what * ssh-rsa AAAA\n|9|x|y ssh-rsa AAAA\n{entry}\n")
        assert (await into.run(Command(("true",)))).exit_code == 0


async def test_a_host_whose_certificate_a_trusted_authority_signed_is_trusted(tmp_path):
    authority = asyncssh.generate_private_key("ssh-ed25519")
    own = asyncssh.generate_private_key("ssh-ed25519")
    certificate = authority.generate_host_certificate(own, "host", principals=[HOST])
    async with machine(tmp_path, host_key=own, server_host_certs=[certificate]) as (host, into):
        public = authority.export_public_key().decode().strip()
        host.known_hosts.write_text(f"@cert-authority [{HOST}]:{host.port} {public}\n")
        assert (await into.run(Command(("true",)))).exit_code == 0
    async with machine(tmp_path / "b", host_key=own, server_host_certs=[certificate]) as (host, into):
        stranger = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
        host.known_hosts.write_text(f"@cert-authority [{HOST}]:{host.port} {stranger}\n")
        with pytest.raises(HostKeyRefused):
            await into.run(Command(("true",)))


# -- logging in --------------------------------------------------------------------------------------------------------


async def test_a_refused_key_is_reported_with_what_was_tried(tmp_path):
    async with machine(tmp_path) as (host, into):
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(host.key_file))
        with pytest.raises(AuthenticationFailed, match=r"did not let tester in.*It refused the key .*authorized_keys"):
            await into.run(Command(("true",)))


async def test_a_password_opens_the_door_and_a_wrong_one_does_not(tmp_path):
    async with serving(tmp_path, password="opens-the-door") as host:
        right = host.target(key=None, password=Secret("opens-the-door"))
        async with reached(host, target=right) as place:
            assert (await way(place).run(Command(("true",)))).exit_code == 0
        async with reached(host, target=host.target(key=None, password=Secret("wrong-word"))) as place:
            with pytest.raises(AuthenticationFailed, match="It refused the password") as caught:
                await way(place).run(Command(("true",)))
            assert "wrong-word" not in str(caught.value)


async def test_the_keys_of_an_ssh_agent_are_used_where_none_is_set(tmp_path, monkeypatch):
    socket = tmp_path / "agent"
    agent = await asyncio.create_subprocess_exec("ssh-agent", "-D", "-a", str(socket), stdout=subprocess.DEVNULL)
    await until(socket.exists)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    try:
        async with serving(tmp_path / "host") as host:
            adding = await asyncio.create_subprocess_exec("ssh-add", "-q", str(host.key_file), env=dict(os.environ))
            assert await adding.wait() == 0
            async with reached(host, target=host.target(key=None)) as place:
                assert (await way(place).run(Command(("true",)))).exit_code == 0
            asyncssh.read_private_key(host.key_file).write_public_key(f"{host.key_file}.pub")
            await lock(host.key_file)
            async with reached(host) as place:  # locked on disk, open in the agent
                assert (await way(place).run(Command(("true",)))).exit_code == 0
    finally:
        agent.terminate()
        await agent.wait()


async def lock(key_file) -> None:
    """Put a passphrase on a private key."""
    asked = ("ssh-keygen", "-q", "-p", "-P", "", "-N", "locked-away", "-f", str(key_file))
    locking = await asyncio.create_subprocess_exec(*asked, stdout=subprocess.DEVNULL)
    assert await locking.wait() == 0


async def test_unusable_keys_are_reported_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    async with serving(tmp_path) as host:
        await lock(host.key_file)
        (tmp_path / "text").write_text("not a key")
        os.mkfifo(tmp_path / "pipe")  # nobody will ever write into it
        for key, words in (
            (host.key_file, "is protected by a passphrase.*ssh-add"),
            (tmp_path / "none", "cannot be read.*No such file"),
            (tmp_path / "text", "is not a private SSH key"),
            (Path("/dev/zero"), "cannot be read.*not a regular file"),
            (tmp_path / "pipe", "cannot be read.*not a regular file"),
        ):
            async with reached(host, target=host.target(key=key)) as place:
                with pytest.raises(NotConfigured, match=words):
                    await way(place).run(Command(("true",)))


async def test_a_host_that_does_not_answer_is_reported(tmp_path):
    async with serving(tmp_path) as host:
        for target, words in (
            (host.target(port=unused_port()), "cannot be reached over SSH"),
            (host.target(host="no-such-host.invalid"), "cannot be resolved on this machine"),
        ):
            async with reached(host, target=target) as place:
                with pytest.raises(Unreachable, match=words):
                    await way(place).run(Command(("true",)))


# -- the scripts themselves --------------------------------------------------------------------------------------------


def shells() -> list[list[str]]:
    candidates = [["dash"], ["bash", "--posix"], ["busybox", "sh"], ["ksh"], ["zsh", "--emulate", "sh"]]
    import shutil

    return [shell for shell in candidates if shutil.which(shell[0])]


@pytest.mark.parametrize("shell", shells(), ids=lambda shell: shell[0])
def test_every_shell_starts_commands_alike(shell):
    launch = Launch(["sh", "-c", 'printf "%s|" "$@" "$V" "$(pwd)"; cat; exit 3', "sh", *NASTY], {"V": "é\n'"}, "/usr")
    done = subprocess.run([*shell, *launch.shell[1:]], input=launch.lines() + b"in", capture_output=True, check=False)
    shown, _, rest = done.stdout.partition(b"\n")
    assert shown.startswith(b"@quorate@ ")
    assert rest.decode() == "".join(f"{part}|" for part in (*NASTY, "é\n'", "/usr")) + "in"
    assert done.returncode == 3


def test_the_scripts_pass_through_any_login_shell():
    """They are in single quotes, in which fish and csh give a meaning to these."""
    for part in (*Launch(["true"], user="root").shell, *kill_argv(2, "TERM")):
        assert not set("'\\\n") & set(part)
