"""quorate trust: a person at a terminal agrees to a host's key; nothing and nobody else can."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import asyncssh
import pytest

from quorate.homelab.host import Host as Registered
from quorate.homelab.host import Hosts
from quorate.inside.ssh_transport import SshTransport, start_problem
from quorate.inside.transport import Command
from quorate.problems import HostKeyRefused
from quorate.pve.connection import SystemClock
from quorate.ssh.connection import connect
from quorate.ssh.host_keys import HostKeys
from quorate.ssh.pool import Pool
from quorate.ssh.process import ExecutionTarget
from quorate.ssh.target import SshTarget
from quorate.state.store import open_store
from tests.rigs.processes import completed
from tests.rigs.ssh_server import HOST, Host, serving
from tests.rigs.terminal import terminal

pytestmark = pytest.mark.anyio


class Operator:
    """A person at a terminal; `answer` is what they type when they are asked."""

    def __init__(self, state: Path) -> None:
        self._environ = {**os.environ, "XDG_STATE_HOME": str(state)}
        self.pins = state / "quorate" / "known_hosts"

    async def types(self, *arguments: str, answer: str = "") -> tuple[int, str]:
        def at_a_terminal() -> tuple[int, str]:
            with terminal("trust", *arguments, environ=self._environ) as screen:
                screen.press(answer)
                return screen.end(), screen.text

        return await asyncio.to_thread(at_a_terminal)

    async def pipes(self, *arguments: str) -> tuple[int, str]:
        """The same without a terminal, as a program would do it."""
        ended = await asyncio.to_thread(completed, "trust", *arguments, environ=self._environ, typed="yes\n")
        return ended.returncode, ended.stdout + ended.stderr


async def works(host: Host, pins: Path) -> bool:
    """Whether a command goes through with these pins alone."""
    pool = Pool(HostKeys((), pins))
    way = SshTransport(
        "ssh",
        "test",
        ExecutionTarget(pool, host.target()),
        lambda e: start_problem("it", e.exit_code, e.message),
        max_output=1000,
    )
    try:
        return (await way.run(Command(("true",)))).exit_code == 0
    finally:
        await pool.close()


async def test_a_typed_yes_pins_the_key_that_was_shown(tmp_path):
    operator = Operator(tmp_path / "state")
    async with serving(tmp_path / "host") as host:
        code, said = await operator.types(f"{HOST}:{host.port}", answer="yes\n")
        assert code == 0
        assert f"ssh-ed25519 {host.host_key.get_fingerprint()}" in said
        assert operator.pins.read_text() == f"[{HOST}]:{host.port} {' '.join(host.public().split()[:2])}\n"
        assert operator.pins.stat().st_mode & 0o777 == 0o600
        assert await works(host, operator.pins)
        code, said = await operator.types(f"{HOST}:{host.port}")
        assert (code, "is already trusted" in said) == (0, True)


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [(("ssh-rsa", "ssh-ed25519"), "ed25519"), (("ssh-rsa", "ecdsa-sha2-nistp256"), "ecdsa"), (("ssh-rsa",), "rsa")],
)
async def test_of_several_keys_the_one_that_ssh_would_show_is_shown_with_the_way_to_compare_it(tmp_path, kinds, shown):
    keys = {kind: asyncssh.generate_private_key(kind) for kind in kinds}
    server = await asyncssh.listen(HOST, 0, server_host_keys=list(keys.values()))
    async with server:
        name = f"{HOST}:{server.get_port()}"
        _, said = await Operator(tmp_path / "state").types(name, answer="no\n")
        fingerprint = next(key.get_fingerprint() for kind, key in keys.items() if shown in kind)
        assert fingerprint in said
        assert f"/etc/ssh/ssh_host_{shown}_key.pub" in said
        target = SshTarget(HOST, server.get_port(), "tester")
        with pytest.raises(HostKeyRefused) as refused:
            await connect(target, HostKeys((), tmp_path / "pins"))
        assert fingerprint in str(refused.value)
        assert f"/etc/ssh/ssh_host_{shown}_key.pub" in str(refused.value)


@pytest.mark.parametrize("answer", ["no\n", "y\nno\n", "\n", "yes please\n\n", "y\ny\ny\n", "\x04"])
async def test_anything_but_yes_changes_nothing(tmp_path, answer):
    operator = Operator(tmp_path / "state")
    async with serving(tmp_path / "host") as host:
        code, said = await operator.types(f"{HOST}:{host.port}", answer=answer)
        assert (code, "Nothing was changed." in said) == (1, True)
        assert not operator.pins.exists()


async def test_an_unclear_answer_is_asked_for_again_as_init_does(tmp_path):
    operator = Operator(tmp_path / "state")
    async with serving(tmp_path / "host") as host:
        code, said = await operator.types(f"{HOST}:{host.port}", answer="y\nyes\n")
        assert (code, "Type the whole word, yes or no." in said) == (0, True)
        assert await works(host, operator.pins)


async def test_without_a_terminal_nobody_is_asked_and_nothing_is_pinned(tmp_path):
    operator = Operator(tmp_path / "state")
    async with serving(tmp_path / "host") as host:
        code, said = await operator.pipes(f"{HOST}:{host.port}")
        assert (code, "run it at a terminal" in said) == (2, True)
        assert not operator.pins.exists()
        assert host.connections == []


async def test_pinned_keys_are_listed_and_removed(tmp_path):
    operator = Operator(tmp_path / "state")
    assert "There are no trusted keys" in (await operator.pipes("--list"))[1]
    async with serving(tmp_path / "host") as host:
        name = f"{HOST}:{host.port}"
        await operator.types(name, answer="yes\n")
        assert (await operator.pipes("--list"))[1] == (
            f"[{HOST}]:{host.port}  ssh-ed25519  {host.host_key.get_fingerprint()}\n"
        )
        assert (await operator.pipes("--remove", name))[0] == 0
        assert "There are no trusted keys" in (await operator.pipes("--list"))[1]
        assert (await operator.pipes("--remove", name))[0] == 1


async def test_a_new_key_of_a_pinned_host_is_shown_beside_the_old_one_and_takes_its_place(tmp_path):
    operator = Operator(tmp_path / "state")
    async with serving(tmp_path / "host") as host:
        old = asyncssh.generate_private_key("ssh-ed25519")
        operator.pins.parent.mkdir(parents=True)
        operator.pins.write_text(f"[{HOST}]:{host.port} {old.export_public_key().decode()}")
        code, said = await operator.types(f"{HOST}:{host.port}", answer="yes\n")
        assert code == 0
        assert f"WARNING: ANOTHER KEY OF [{HOST}]:{host.port} IS TRUSTED" in said
        assert old.get_fingerprint() in said
        assert len(operator.pins.read_text().splitlines()) == 1
        assert await works(host, operator.pins)


async def test_a_registered_host_is_trusted_by_its_name(tmp_path):
    operator = Operator(tmp_path / "state")
    async with serving(tmp_path / "host") as host:
        async with open_store(str(operator.pins.parent / "state.sqlite"), clock=SystemClock()) as store:
            await Hosts(store).add(Registered("nas", HOST, host.port))
            await Hosts(store).add(Registered("inner", "10.0.0.9", jump="nas"))
        code, said = await operator.types("nas", answer="yes\n")
        assert (code, f"is at {HOST}" in said) == (0, True)
        assert await works(host, operator.pins)
        code, said = await operator.pipes("inner")
        assert (code, "ssh -J" in said) == (2, True)


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "*", "host:0", "host:x", "a,b", "!host"])
async def test_what_is_no_host_is_refused(tmp_path, host):
    code, said = await Operator(tmp_path).pipes("--", host)
    assert (code, "is not a host" in said) == (2, True)


async def test_a_host_that_does_not_answer_is_reported(tmp_path):
    async with serving(tmp_path / "host") as host:
        port = host.port
    code, said = await Operator(tmp_path / "state").types(f"{HOST}:{port}", answer="yes\n")
    assert (code, "no SSH key from" in said) == (1, True)
