"""Plain hosts under watch: they answer, have room, and their services run."""

from __future__ import annotations

import pytest

from quorate.config.watch import WatchSettings
from tests.homelab.test_services import with_service
from tests.rigs.homelab import house
from tests.rigs.mcp_session import Rig

pytestmark = pytest.mark.anyio

WATCH = {"watch": WatchSettings()}


def df_of(used: int, reserved: int = 0) -> str:
    """A `df` whose only disk has a million blocks; the reserved ones are for root alone."""
    return f"""#!/bin/sh
echo "Filesystem 1024-blocks Used Available Capacity Mounted on"
echo "/dev/sda1 1000000 {used} {1_000_000 - used - reserved} 1% /"
"""


async def cycle(quorate: Rig, seconds: float = 60.0) -> list[tuple[str, str]]:
    assert quorate.app.watch is not None
    await quorate.clock.advance(seconds)
    await quorate.app.watch.cycle()
    return [
        (finding.kind, finding.seen_as.what)
        for finding in await quorate.app.watch.findings()
        if finding.cluster == "homelab"
    ]


async def test_a_host_that_does_not_answer_is_found_and_resolved(tmp_path):
    async with house(tmp_path, {}, more=WATCH) as built:
        async with house(tmp_path / "other", {"nas": {}}, register=False) as other:
            port = other.hosts["nas"].port
            host = {"host": "nas", "address": "127.0.0.1", "port": port, "user": "tester", "verify": False}
            await built.quorate.facts("host_register", **host)
            findings = await cycle(built.quorate)
            assert "host-unreachable" not in dict(findings)
        (unreachable,) = [what for kind, what in await cycle(built.quorate) if kind == "host-unreachable"]
        assert unreachable.startswith("Host nas does not answer")
        (row,) = await built.quorate.rows("finding_list", kind="host-unreachable")
        assert row["next"] == "host_verify host=nas"
        await built.quorate.facts("host_update", host="nas", active=False)
        assert await cycle(built.quorate) == []


async def test_a_full_disk_is_found_and_resolved(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    df = programs / "df"

    def fill(share: int, reserved: int = 0) -> None:
        df.write_text(df_of(share * 10_000, reserved * 10_000))
        df.chmod(0o755)

    fill(50)
    (programs / "systemctl").write_text("#!/bin/sh\n")  # whatever this machine's own says
    (programs / "systemctl").chmod(0o755)
    hosts = {"nas": {"environment": {"PATH": f"{programs}:/usr/bin:/bin"}}}
    async with house(tmp_path, hosts, more=WATCH) as built:
        assert await cycle(built.quorate) == []
        fill(98)
        assert await cycle(built.quorate, 1000) == [("host-disk-full", "/ of host nas is 98% full")]
        fill(60)
        assert await cycle(built.quorate, 1000) == []
        fill(94, reserved=5)
        assert await cycle(built.quorate, 1000) == [("host-disk-full", "/ of host nas is 99% full")]
        (row,) = await built.quorate.rows("host_status", host="nas")
        assert row["disk"].startswith("/ 99%")


async def test_a_failed_unit_is_found_and_resolved_and_what_cannot_be_seen_stays(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()

    def fail(*units: str) -> None:
        lines = "".join(f"echo '{unit} loaded failed failed A unit'\n" for unit in units)
        (programs / "systemctl").write_text(f"#!/bin/sh\necho 'ssh.service loaded active running SSH'\n{lines}")
        (programs / "systemctl").chmod(0o755)

    (programs / "df").write_text(df_of(10))
    (programs / "df").chmod(0o755)
    fail("smartd.service")
    hosts = {"nas": {"environment": {"PATH": f"{programs}:/usr/bin:/bin"}}}
    async with house(tmp_path, hosts, more=WATCH) as built:
        assert await cycle(built.quorate) == [("service-down", "The unit smartd of host nas has failed")]
        (row,) = await built.quorate.rows("finding_list", kind="service-down")
        assert row["next"] == "host_service host=nas service=smartd"
        facts = await built.quorate.facts("finding_get", finding=row["id"])
        assert "has failed" in facts["means"]
        fail()
        key = built.hosts["nas"].key_file
        content = key.read_text()
        key.unlink()  # nobody can look inside any more
        built.hosts["nas"].drop_all()
        kinds = [kind for kind, _ in await cycle(built.quorate, 1000)]
        assert sorted(kinds) == ["service-down", "unchecked"]
        key.write_text(content)
        key.chmod(0o600)
        assert await cycle(built.quorate, 1000) == []
        fail(*(f"unit{number}.service" for number in range(30)))
        many = [what for _, what in await cycle(built.quorate, 1000)]
        assert len(many) == 5
        assert all(what.endswith("has failed, and 25 others") for what in many)


@pytest.mark.thorough
async def test_a_service_that_stops_is_found_and_resolved(tmp_path):
    async with with_service(tmp_path, more=WATCH) as (built, host, port):
        arguments = {"service": "page", "host": "box", "settings": {"web_port": port}}
        await built.quorate.facts("service_install", **arguments)
        assert [kind for kind, _ in await cycle(built.quorate) if kind == "service-down"] == []
        containers = (host.folder / "containers").read_text()
        (host.folder / "containers").unlink()
        (down,) = [what for kind, what in await cycle(built.quorate, 1000) if kind == "service-down"]
        assert down.startswith("Service page on host box is not healthy: stopped, its data is there")
        (host.folder / "containers").write_text(containers)
        assert [kind for kind, _ in await cycle(built.quorate, 1000) if kind == "service-down"] == []
