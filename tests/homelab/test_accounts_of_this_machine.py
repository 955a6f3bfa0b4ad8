"""The plain rig runs commands on this machine, often as root: no test may change its accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rigs.homelab import house

pytestmark = pytest.mark.anyio

ACCOUNT = "quoratetest"
FILES = tuple(map(Path, ("/etc/passwd", "/etc/group", "/etc/sudoers", f"/etc/sudoers.d/{ACCOUNT}")))


def contents() -> list[str | None]:
    return [file.read_text(errors="replace") if file.exists() else None for file in FILES]


async def call(tmp_path: Path, tool: str, **arguments: Any) -> Any:
    async with house(tmp_path, toolsets=("hosts", "host_admin")) as home:
        return await home.quorate.call(tool, host="nas", **arguments)


async def test_an_administration_account_cannot_be_set_up_on_the_plain_rig(tmp_path):
    before = contents()
    with pytest.raises(AssertionError, match=rf"useradd .*{ACCOUNT}.*own_system"):
        await call(tmp_path, "host_admin_setup", account=ACCOUNT, sudo=False)
    assert contents() == before


@pytest.mark.parametrize(
    "command",
    [
        f"useradd {ACCOUNT}",
        f"/usr/sbin/usermod -aG sudo {ACCOUNT}",
        f"sh -c 'adduser {ACCOUNT}'",
        f"rm -f /etc/sudoers.d/{ACCOUNT}",
        f"install -m 0440 /dev/null /etc/sudoers.d/{ACCOUNT}",
        f"echo {ACCOUNT}: >> /etc/passwd",
    ],
)
async def test_the_plain_rig_refuses_commands_that_change_accounts(tmp_path, command):
    before = contents()
    with pytest.raises(AssertionError, match="Tests of host_admin"):
        await call(tmp_path, "host_exec", command=command)
    assert contents() == before


async def test_the_plain_rig_reads_accounts(tmp_path):
    assert "root:" in str(await call(tmp_path, "host_exec", command="cat /etc/passwd"))
