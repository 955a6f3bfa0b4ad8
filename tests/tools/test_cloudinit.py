"""Cloud-init: settings, keys and their encoding, addresses, the drive, and when the guest sees a change."""

from urllib.parse import quote, unquote

import pytest

from pve_simulator.builder import Builder
from tests.rigs.mcp_session import rig, second_server, text_of

pytestmark = pytest.mark.anyio

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGkX6fYJ1sT0b1PXnq1d5gk9n8Yk7O3K3o4oT7gJm3fB a@b"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGkX6fYJ1sT0b1PXnq1d5gk9n8Yk7O3K3o4oT7gJm3fC c@d"
VM, STOPPED_VM, TEMPLATE, CT = 104, 108, 9000, 201


def guest(quorate, vmid):
    return quorate.sim.world.guests[vmid]


def keys(quorate, vmid):
    return unquote(str(guest(quorate, vmid).config["sshkeys"])).split("\n")[:-1]


async def test_everything_is_set_in_one_call_and_the_drive_is_made(tmp_path):
    async with rig(tmp_path) as quorate:
        Builder(quorate.sim.world).file("local", "pve1", "snippets/v.yml", "snippets", "snippet", 800)
        facts = await quorate.facts(
            "cloudinit_set", guest=STOPPED_VM, user="admin", password="s3cret-word", ssh_keys=[KEY], ip="10.0.0.5/24",
            gateway="10.0.0.1", ip6="auto", nameserver="1.1.1.1", searchdomain="home.lan", upgrade=False,
            custom="vendor=local:snippets/v.yml",
        )  # fmt: skip
        config = guest(quorate, STOPPED_VM).config
        assert facts["drive"] == "ide2 on local-lvm"
        assert config["ide2"] == f"local-lvm:vm-{STOPPED_VM}-cloudinit,media=cdrom"
        assert (config["ciuser"], config["ciupgrade"], config["nameserver"]) == ("admin", 0, "1.1.1.1")
        assert config["ipconfig0"] == "ip=10.0.0.5/24,gw=10.0.0.1,ip6=auto"
        assert str(config["cipassword"]).startswith("$5$")
        assert keys(quorate, STOPPED_VM) == [KEY]
        assert quorate.writes == [("POST", f"/nodes/pve1/qemu/{STOPPED_VM}/config")]
        assert "action=start" in facts["next"]


async def test_the_password_is_nowhere_to_be_read(tmp_path):
    async with rig(tmp_path) as quorate:
        for more in ({"dry_run": True}, {}):
            answer = await quorate.call("cloudinit_set", guest=TEMPLATE, password="s3cret-word", **more)
            assert not answer.is_error, text_of(answer)
            assert "s3cret-word" not in text_of(answer)
        assert "s3cret-word" not in quorate.audit_file.read_text()
        answer = await quorate.call("cloudinit_get", guest=TEMPLATE, dump="user")
        stored = str(guest(quorate, TEMPLATE).config["cipassword"])
        assert stored not in text_of(answer)
        assert answer.structured_content["settings"]["cipassword"] == "***"
        assert "password: ***" in answer.structured_content["user"]


@pytest.mark.parametrize(
    "ssh_keys",
    [
        [KEY, OTHER],
        f"{KEY}\n{OTHER}\n",
        f"# mine\n{KEY}\r\n\n{OTHER}",
        quote(f"{KEY}\n{OTHER}", safe=""),
    ],
)
async def test_keys_in_every_shape_arrive_as_they_are(tmp_path, ssh_keys):
    async with rig(tmp_path) as quorate:
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ssh_keys=ssh_keys)
        assert keys(quorate, TEMPLATE) == [KEY, OTHER]
        assert (await quorate.facts("cloudinit_get", guest=TEMPLATE))["ssh_keys"] == [KEY, OTHER]


async def test_keys_are_added_once_or_replace_the_others(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ssh_keys=KEY)
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ssh_keys=[OTHER, KEY])
        assert keys(quorate, TEMPLATE) == [KEY, OTHER]
        again = await quorate.facts("cloudinit_set", guest=TEMPLATE, ssh_keys=OTHER)
        assert again["result"] == "nothing to do"
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ssh_keys=OTHER, replace_keys=True)
        assert keys(quorate, TEMPLATE) == [OTHER]
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ssh_keys=[], replace_keys=True)
        assert "sshkeys" not in guest(quorate, TEMPLATE).config


async def test_one_address_changes_and_the_rest_of_the_string_is_kept(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, TEMPLATE).config["ipconfig0"] = "ip=10.0.0.5/24,gw=10.0.0.1,ip6=fd00::5/64,gw6=fd00::1"
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ip="10.0.0.9/24")
        assert guest(quorate, TEMPLATE).config["ipconfig0"] == "ip=10.0.0.9/24,gw=10.0.0.1,ip6=fd00::5/64,gw6=fd00::1"
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ip="dhcp")
        assert guest(quorate, TEMPLATE).config["ipconfig0"] == "ip=dhcp,ip6=fd00::5/64,gw6=fd00::1"
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ip="", ip6="", user="")
        assert "ipconfig0" not in guest(quorate, TEMPLATE).config
        assert "ciuser" not in guest(quorate, TEMPLATE).config


async def test_a_running_vm_needs_a_reboot_for_its_new_cloud_init_drive(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, VM).config["ide2"] = f"local-lvm:vm-{VM}-cloudinit,media=cdrom"
        facts = await quorate.facts("cloudinit_set", guest=VM, user="new")
        assert [path.rpartition("/")[2] for _, path in quorate.writes] == ["config", "cloudinit"]
        assert facts["reboot_needed"] is True
        assert "not_on_drive_yet" not in facts
        assert guest(quorate, VM).cloudinit["ciuser"] == "new"


async def test_what_the_drive_does_not_have_yet_is_shown_and_written_on_request(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, VM).config["ide2"] = f"local-lvm:vm-{VM}-cloudinit,media=cdrom"
        facts = await quorate.facts("cloudinit_set", guest=VM, user="new", ssh_keys=KEY, regenerate=False)
        assert facts["not_on_drive_yet"] == ["ciuser", "sshkeys"]
        shown = await quorate.facts("cloudinit_get", guest=VM)
        assert shown["not_on_drive_yet"] == {"ciuser": "new", "sshkeys": KEY}
        assert "regenerate=true" in shown["next"]
        await quorate.facts("cloudinit_set", guest=VM, regenerate=True)
        assert "not_on_drive_yet" not in await quorate.facts("cloudinit_get", guest=VM)


async def test_a_drive_for_a_running_vm_waits_for_the_restart(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("cloudinit_set", guest=VM, user="new")
        assert "ide2" in facts["waits_for_restart"]
        assert facts["reboot_needed"] is True


async def test_on_q35_the_drive_joins_the_scsi_disks(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("cloudinit_set", guest=107, user="new", storage="tank")
        assert facts["drive"] == "scsi1 on tank"


async def test_the_files_of_the_drive_are_shown_on_request(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("cloudinit_set", guest=TEMPLATE, ip="10.0.0.5/24", gateway="10.0.0.1")
        shown = await quorate.facts("cloudinit_get", guest=TEMPLATE, dump="network")
        assert "address: '10.0.0.5'" in shown["network"]
        assert "instance-id" in (await quorate.facts("cloudinit_get", guest=TEMPLATE, dump="meta"))["meta"]


async def test_a_vm_without_the_drive_says_how_to_get_it(tmp_path):
    async with rig(tmp_path) as quorate:
        shown = await quorate.facts("cloudinit_get", guest=STOPPED_VM)
        assert shown["drive"] == "none"
        assert "cloudinit_set" in shown["next"]


@pytest.mark.parametrize(
    ("vmid", "arguments", "words"),
    [
        (CT, {"user": "x"}, ["is a container", "nic_set"]),
        (TEMPLATE, {}, ["No setting was specified"]),
        (TEMPLATE, {"ssh_keys": "hello"}, ["not an SSH public key", "ssh-ed25519 AAAA"]),
        (TEMPLATE, {"replace_keys": True}, ["needs ssh_keys"]),
        (TEMPLATE, {"ip": "10.0.0.5"}, ["no prefix length"]),
        (TEMPLATE, {"gateway": "10.0.0.1"}, ["needs a static address"]),
        (TEMPLATE, {"ip": "10.0.0.5/24", "nic": "net3"}, ["has no net3", "nic_set"]),
        (TEMPLATE, {"custom": "nonsense"}, ["cicustom", "Nothing was sent"]),
        (STOPPED_VM, {"user": "x", "storage": "local"}, ["does not take images"]),
    ],
)
async def test_what_would_not_work_is_refused_in_words_that_help(tmp_path, vmid, arguments, words):
    async with rig(tmp_path) as quorate:
        await quorate.refuses("cloudinit_set", words, guest=vmid, **arguments)


async def test_a_private_key_is_refused_and_not_repeated(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal(
            "cloudinit_set", guest=TEMPLATE, ssh_keys="-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk=\n"
        )
        assert "private key" in text
        assert "b3BlbnNzaC1rZXk" not in text
        assert "b3BlbnNzaC1rZXk" not in quorate.audit_file.read_text()


def test_secrets_in_a_custom_file_are_hidden_and_the_rest_is_not():
    from quorate.tools.cloudinit import without_secrets

    text = (
        "user: bob\npassword: $6$aa$bb\n  - passwd: plain\nchpasswd:\n  list: |\n    bob:$y$j9T$x$y\napi_token: abc\n"
    )
    shown = without_secrets(text)
    assert "user: bob" in shown
    for secret in ("$6$aa$bb", "plain", "$y$j9T", "abc"):
        assert secret not in shown


async def test_without_the_privilege_the_drive_is_left_for_the_next_start(tmp_path):
    async with rig(tmp_path) as quorate:
        access = quorate.sim.world.access
        access.custom_roles["NetOnly"] = frozenset({"VM.Audit", "VM.Config.Network"})
        for who in ("bob@pve", "bob@pve!monitor"):
            access.grant(f"/vms/{VM}", "NetOnly", who)
        access.invalidate_cache()
        guest(quorate, VM).config["ide2"] = f"local-lvm:vm-{VM}-cloudinit,media=cdrom"
        async with second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob:
            facts = await bob.facts("cloudinit_set", guest=VM, user="x")
        assert "VM.Config.Cloudinit on /vms/104" in facts["warnings"][0]
        assert facts["not_on_drive_yet"] == ["ciuser"]
        assert guest(quorate, VM).config["ciuser"] == "x"


async def test_a_lost_answer_is_settled_by_what_is_there(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/qemu/*/config"]) as quorate:
        facts = await quorate.facts("cloudinit_set", guest=TEMPLATE, user="x", password="s3cret-word", ssh_keys=KEY)
        assert "effect was found" in facts["note"]
        assert len(quorate.writes) == 1


@pytest.mark.parametrize("version", ["8.4", "9.2"])
async def test_both_versions_take_the_settings(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        guest(quorate, VM).config["ide2"] = f"local-lvm:vm-{VM}-cloudinit,media=cdrom"
        await quorate.facts("cloudinit_set", guest=VM, user="x", ssh_keys=[KEY], ip="dhcp", upgrade=True)
        assert guest(quorate, VM).config["ciuser"] == "x"
