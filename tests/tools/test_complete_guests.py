"""A guest that works, made in one call: size, network, login, the operator's defaults, and waiting until it answers."""

import asyncio
from dataclasses import replace
from urllib.parse import unquote

import pytest

from quorate.config.clusters import GuestDefaults
from quorate.ssh.settings import Login

pytestmark = pytest.mark.anyio

TEMPLATE, CONTAINER_TEMPLATE, PLAIN = 9000, 9001, 108
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJkx9V0Zb1uH3vJQ0xq4Hq9l5mS1lq2oM3nU6c7kq0aZ ada@laptop"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBm0Zt3m9cU8o2s4Yy5Yk1v0b8lqk6h7u2w1x9r3n5pQ bob@desk"
DEFAULTS = GuestDefaults(user="ops", ssh_keys=(KEY,), dns=("1.1.1.1",), tags=("home",), bridge="vmbr1")


def guest(quorate, vmid):
    return quorate.sim.world.guests[vmid]


def keys_of(config):
    return unquote(config["sshkeys"]).split("\n")[:-1]


async def test_a_clone_gets_its_size_network_and_login_in_one_call(quorate):
    facts = await quorate.facts(
        "guest_clone", guest=TEMPLATE, name="web01", cores=2, memory="4G", disk="20G", bridge="vmbr1", vlan=20,
        cloud_init={"user": "ada", "ssh_keys": [KEY], "ip": "192.168.20.5/24", "gateway": "192.168.20.1"}, start=True,
    )  # fmt: skip
    clone = guest(quorate, facts["vmid"])
    assert (clone.config["cores"], clone.config["memory"], clone.running) == (2, "4096", True)
    assert "size=20G" in clone.config["scsi0"]
    assert "bridge=vmbr1" in clone.config["net0"]
    assert "tag=20" in clone.config["net0"]
    assert clone.config["net0"].split(",")[0] != guest(quorate, TEMPLATE).config["net0"].split(",")[0]
    assert (clone.config["ciuser"], clone.config["ipconfig0"]) == ("ada", "ip=192.168.20.5/24,gw=192.168.20.1")
    assert keys_of(clone.config) == [KEY]
    assert not facts.get("warnings")


async def test_a_clone_that_nobody_can_log_in_to_is_reported_with_what_to_give(quorate):
    facts = await quorate.facts("guest_clone", guest=TEMPLATE, name="web01")
    (warning,) = facts["warnings"]
    assert warning.startswith("Nobody can log in")
    assert "cloud_init" in warning
    assert "[defaults]" in warning
    facts = await quorate.facts("vm_create", name="web02", cloud_init={"user": "ada"}, dry_run=True)
    assert any("Nobody can log in" in warning for warning in facts["warnings"])
    facts = await quorate.facts("guest_clone", guest=PLAIN, name="copy", dry_run=True)
    assert not any("log in" in warning for warning in facts.get("warnings", []))


@pytest.mark.quorate(more={"guest_defaults": DEFAULTS})
async def test_the_operators_defaults_fill_what_the_call_leaves_out_and_are_reported(quorate):
    facts = await quorate.facts("guest_clone", guest=TEMPLATE, name="web01", bridge="vmbr0")
    config = guest(quorate, facts["vmid"]).config
    assert keys_of(config) == [KEY]
    assert (config["ciuser"], config["nameserver"]) == ("debian", "1.1.1.1")  # the template has a user of its own
    assert facts["chosen"] == {"ssh_keys": ["ada@laptop"], "dns": ["1.1.1.1"]}
    facts = await quorate.facts("vm_create", name="web02", cloud_init={})
    config = guest(quorate, facts["vmid"]).config
    assert (config["ciuser"], config["tags"], keys_of(config)) == ("ops", "home", [KEY])
    assert {"user", "ssh_keys", "dns", "tags", "bridge"} <= facts["chosen"].keys()
    facts = await quorate.facts("container_create", template="debian-13-standard", name="wiki")
    config = guest(quorate, facts["vmid"]).config
    assert (config["nameserver"], config["tags"]) == ("1.1.1.1", "home")
    assert facts["chosen"]["ssh_keys"] == ["ada@laptop"]
    assert not facts.get("warnings")


@pytest.mark.quorate(more={"guest_defaults": DEFAULTS})
async def test_what_the_call_says_takes_precedence_over_the_defaults(quorate):
    login = {"user": "bob", "ssh_keys": [OTHER], "dns": "9.9.9.9"}
    facts = await quorate.facts("guest_clone", guest=TEMPLATE, name="web01", tags=["web"], cloud_init=login)
    config = guest(quorate, facts["vmid"]).config
    assert keys_of(config) == [OTHER]
    assert (config["ciuser"], config["nameserver"], config["tags"]) == ("bob", "9.9.9.9", "web")
    assert "chosen" not in facts


@pytest.mark.quorate(more={"guest_defaults": DEFAULTS})
async def test_the_login_of_a_template_stays(quorate):
    guest(quorate, TEMPLATE).config["sshkeys"] = "ssh-ed25519%20AAAA%20own%0A"
    facts = await quorate.facts("guest_clone", guest=TEMPLATE, name="web01")
    assert guest(quorate, facts["vmid"]).config["sshkeys"] == "ssh-ed25519%20AAAA%20own%0A"
    assert "ssh_keys" not in facts["chosen"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"guest": CONTAINER_TEMPLATE, "cloud_init": {"user": "a"}}, "is a container"),
        ({"guest": PLAIN, "cloud_init": {"user": "a"}}, "has no cloud-init drive"),
        ({"guest": TEMPLATE, "disk": "1G"}, "cannot shrink"),
        ({"guest": TEMPLATE, "bridge": "vmbr7"}, "has no bridge"),
        ({"guest": TEMPLATE, "wait_for": "soon"}, "nothing to wait for"),
        ({"guest": CONTAINER_TEMPLATE, "wait_for": "agent"}, "no agent"),
    ],
)
async def test_what_cannot_be_done_is_refused_before_anything_is_cloned(quorate, arguments, why):
    before = set(quorate.sim.world.guests)
    assert why in await quorate.refusal("guest_clone", name="web01", **arguments)
    assert set(quorate.sim.world.guests) == before


async def test_a_container_is_cloned_with_its_own_size_and_network(quorate):
    facts = await quorate.facts(
        "guest_clone", guest=CONTAINER_TEMPLATE, name="wiki", cores=2, memory=1024, disk="10G", vlan=30
    )
    config = guest(quorate, facts["vmid"]).config
    assert (config["cores"], config["memory"]) == (2, 1024)
    assert "size=10G" in config["rootfs"]
    assert "tag=30" in config["net0"]
    assert config["net0"].startswith("name=eth0")


async def test_a_guest_is_waited_for_until_its_agent_answers_and_its_address_is_in_the_result(quorate):
    facts = await quorate.facts(
        "guest_clone", guest=TEMPLATE, name="web01", cloud_init={"ssh_keys": [KEY]}, wait_for="agent"
    )
    assert facts["ready"] is True
    assert facts["status"] == "running"
    assert facts["addresses_from"] == "agent"
    assert facts["addresses"] == [address.ip for address in guest(quorate, facts["vmid"]).addresses]


async def test_a_guest_that_does_not_answer_is_made_and_the_answer_says_how_to_continue(quorate):
    facts = await quorate.facts("vm_create", name="empty", wait_for="agent")
    assert (facts["result"], facts["ready"]) == ("done", False)
    assert guest(quorate, facts["vmid"]).config["agent"] == "1"
    assert "guest_wait" in facts["next"]


async def _listen(quorate, greeting):
    """A server like that of a new guest, on an address that the operator has configured for it."""

    async def greet(_, writer):
        writer.write(greeting)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    vmid, port = quorate.sim.world.next_free_vmid(), server.sockets[0].getsockname()[1]
    access = quorate.app.cluster.ssh
    access.settings = replace(access.settings, single_guests={vmid: Login(host=f"127.0.0.1:{port}")})
    return server, vmid, port


@pytest.mark.parametrize("wait_for", ["ssh", "port"])
async def test_ssh_or_a_port_is_waited_for_from_here(quorate, wait_for):
    server, vmid, port = await _listen(quorate, b"SSH-2.0-test\r\n")
    async with server:
        facts = await quorate.facts(
            "container_create", template="debian-13-standard", name="wiki", vmid=vmid, ssh_keys=[KEY],
            wait_for=wait_for if wait_for == "ssh" else str(port),
        )  # fmt: skip
        assert facts["ready"] is True
        assert facts["addresses"]


async def test_a_port_that_does_not_speak_ssh_does_not_count_as_ssh(quorate):
    server, vmid, _ = await _listen(quorate, b"220 mail.example.com\r\n")
    async with server:
        facts = await quorate.facts(
            "container_create", template="debian-13-standard", name="wiki", vmid=vmid, ssh_keys=[KEY], wait_for="ssh"
        )
        assert facts["ready"] is False
