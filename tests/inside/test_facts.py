"""What a guest tells about its system and its network, with a way in and without one."""

import pytest

from pve_simulator.guests.guest import Address
from tests.rigs.mcp_session import rig, second_server
from tests.rigs.simulated_guests import ALPINE, CONTAINER, VM, files, machine

pytestmark = pytest.mark.anyio


# -- guest_info --------------------------------------------------------------------------------------------------------


async def test_a_vm_is_described_by_its_agent_and_by_what_the_kernel_says(tmp_path):
    async with rig(tmp_path) as quorate:
        info = await quorate.facts("guest_info", guest=VM)
        inside = machine(quorate, VM)
        assert info["os"] == "Ubuntu 24.04.3 LTS (Noble Numbat)"
        assert (info["hostname"], info["kernel"]) == ("docker01", inside.guest.system.kernel)
        assert 9 * 86400 <= info["uptime"] < 10 * 86400
        assert info["cpus"] == inside.cpus()
        total, used = inside.memory()
        assert info["memory"]["total"] == total
        assert info["memory"]["used"] == pytest.approx(used, abs=1024**2)
        assert len(info["load"].split()) == 3
        assert info["filesystems"]["/"]["type"] == "ext4"
        assert (info["timezone"], info["clock"][:10]) == ("UTC", "2026-01-15")
        assert info["users"] == "nobody is logged in"


async def test_a_container_is_described_from_inside(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        info = await quorate.facts("guest_info", guest=CONTAINER)
        assert info["os"] == "Debian GNU/Linux 13 (trixie)"
        assert info["kernel"] == "Linux 6.17.2-1-pve x86_64"
        assert info["hostname"] == "nginx-proxy"
        assert set(info["filesystems"]) == {"/"}, "what lives in memory is no file system to look after"
        assert info["way"] == "pct exec 201 on pve1 as root"


async def test_alpine_is_described_too(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[103].system = ALPINE
        assert (await quorate.facts("guest_info", guest=103))["os"] == "Alpine Linux v3.22"


async def test_strange_words_of_a_guest_stay_in_their_fields(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        files(quorate, CONTAINER).write(
            "/etc/os-release", 'PRETTY_NAME="Evil\u202e \x1b[31mOS"\nNAME=\'unclosed\n=\nID'.encode()
        )
        files(quorate, CONTAINER).write("/etc/hostname", b"host\nguest: vm 1\n")
        info = await quorate.facts("guest_info", guest=CONTAINER)
        assert info["os"] == "Evil [31mOS"
        assert info["hostname"] == "host guest: vm 1"
        assert info["guest"] == "ct 201 nginx-proxy"


async def test_who_may_not_run_commands_still_learns_what_the_agent_tells(tmp_path):
    async with (
        rig(tmp_path) as quorate,
        second_server(quorate, tmp_path / "other.jsonl", token="bob@pve!monitor") as bob,
    ):
        info = await bob.facts("guest_info", guest=VM)
        assert info["os"] == "Ubuntu 24.04.3 LTS (Noble Numbat)"
        assert info["way"] == "agent, without running a command"
        assert "VM.GuestAgent.Unrestricted" in info["not_known"]["uptime, load, memory"]


async def test_a_guest_that_tells_nothing_is_an_error_that_says_why(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "no guest agent configured" in await quorate.refusal("guest_info", guest=109)
        assert "guest_power" in await quorate.refusal("guest_info", guest=108)
        assert "SSH" in await quorate.refusal("guest_info", guest=CONTAINER)


# -- guest_network -----------------------------------------------------------------------------------------------------


async def test_interfaces_addresses_gateways_and_name_servers(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        for guest, interface, ip in ((VM, "ens18", "192.168.10.31"), (CONTAINER, "eth0", "192.168.10.3")):
            facts = await quorate.facts("guest_network", guest=guest)
            assert facts["usable"] == [ip]
            assert facts["interfaces"][interface].startswith(f"{ip}/24, fe80::")
            assert facts["interfaces"][interface].endswith("; net0")
            assert "127.0.0.1/8 (local)" in facts["interfaces"]["lo"]
            assert facts["gateways"] == [f"192.168.10.1 dev {interface}"]
            assert (facts["dns"], facts["search"]) == (["192.168.10.2"], ["home.lan"])
            assert "not_known" not in facts


async def test_the_network_cards_come_before_networks_that_the_guest_made_itself(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[VM]
        card = guest.addresses[0]
        guest.addresses[:0] = [
            Address("docker0", "02:42:00:00:00:01", "172.17.0.1", 16),
            Address("tailscale0", "", "100.64.0.9", 32),
            Address(card.interface, card.mac, "fd00::31", 64),
        ]
        guest.addresses[1].mac = "02:00:00:00:00:09"
        facts = await quorate.facts("guest_network", guest=VM)
        assert facts["usable"] == ["192.168.10.31", "fd00::31", "100.64.0.9", "172.17.0.1"]


async def test_systemd_resolved_is_seen_through(tmp_path):
    async with rig(tmp_path) as quorate:
        files(quorate, VM).write("/etc/resolv.conf", b"nameserver 127.0.0.53\n")
        files(quorate, VM).add("/run/systemd/resolve/resolv.conf", "nameserver 9.9.9.9\nnameserver fd00::53\n")
        assert (await quorate.facts("guest_network", guest=VM))["dns"] == ["9.9.9.9", "fd00::53"]


async def test_without_a_transport_the_interfaces_are_listed_anyway(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_network", guest=CONTAINER)
        assert facts["usable"] == ["192.168.10.3"]
        assert "SSH" in facts["not_known"]["gateways, dns"]
        assert "gateways" not in facts


async def test_without_an_agent_the_configured_addresses_are_listed(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[109].config["ipconfig0"] = "ip=192.168.10.77/24,gw=192.168.10.1"
        facts = await quorate.facts("guest_network", guest=109)
        assert facts["configured"] == ["192.168.10.77"]
        assert "No QEMU guest agent configured" in facts["not_known"]["interfaces"]
        assert "usable" not in facts


async def test_a_requested_transport_that_is_not_available_is_an_error(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "is a VM and pct is for containers" in await quorate.refusal("guest_network", guest=VM, way="pct")
