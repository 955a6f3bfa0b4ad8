"""Creating containers: templates found or downloaded, networks, mount points, and refusals."""

import asyncio

import pytest

from pve_simulator.guests.guest import MIB
from pve_simulator.storage.storages import Volume
from tests.rigs.mcp_session import rig, second_server
from tests.tools.test_vms import KEY, put_file

pytestmark = pytest.mark.anyio

DEBIAN = "debian-13-standard_13.1-2_amd64.tar.zst"
ALPINE = "alpine-3.22-default_20250617_amd64.tar.xz"


async def created(quorate, **arguments):
    facts = await quorate.facts("container_create", **arguments)
    return quorate.sim.world.guests[facts["vmid"]], facts


def templates(quorate, storage, node="pve1"):
    return [volume.volid for volume in quorate.sim.world.storages[storage].volumes(node) if volume.content == "vztmpl"]


async def test_a_template_and_a_name_are_enough_and_every_choice_is_shown(tmp_path):
    async with rig(tmp_path) as quorate:
        vmid = quorate.sim.world.next_free_vmid()
        ct, facts = await created(quorate, template="debian-13", name="web")
        assert (ct.vmid, ct.kind, ct.name, ct.running) == (vmid, "lxc", "web", False)
        assert facts["chosen"]["template"] == DEBIAN
        assert ct.config["rootfs"].startswith(facts["chosen"]["storage"] + ":")
        assert "size=8G" in ct.config["rootfs"]
        assert ct.config["net0"].startswith("name=eth0,bridge=vmbr0,")
        assert "ip=dhcp" in ct.config["net0"]
        assert (ct.config["unprivileged"], ct.config["features"]) == (1, "nesting=1")
        assert (ct.config["cores"], ct.config["memory"], ct.config["swap"]) == (1, 512, 512)
        assert "Neither a password nor an SSH key" in facts["warnings"][0]
        assert f"guest={vmid} action=start" in facts["next"]


async def test_everything_that_is_asked_for_is_set(tmp_path):
    async with rig(tmp_path) as quorate:
        ct, facts = await created(
            quorate, template=f"local:vztmpl/{DEBIAN}", name="files.lan", node="pve1", vmid=444, cores=3,
            memory="2G", swap=0, rootfs="local-lvm:6G", dns="1.1.1.1 9.9.9.9", search_domain="home.lan",
            password="not-for-you",
            ssh_keys=[KEY], features="nesting=0", tags=["files"], pool="lab", description="shares", onboot=True,
            mounts=["local-lvm:2G,mp=/srv,backup=1", {"size": "1G", "storage": "tank", "path": "/data", "ro": True}],
            networks=[{"bridge": "vmbr0", "ip": "10.0.0.5/24", "gateway": "10.0.0.1", "vlan": 20, "firewall": True},
                      "vmbr1,ip6=2001:db8::5/64,gw6=2001:db8::1,mac=BC:24:11:00:00:02"],
            options={"timezone": "host", "startup": {"order": 2}}, start=True,
        )  # fmt: skip
        config = ct.config
        assert (ct.vmid, ct.node, ct.running) == (444, "pve1", True)
        assert (config["cores"], config["memory"], config["swap"]) == (3, 2048, 0)
        assert (config["nameserver"], config["searchdomain"]) == ("1.1.1.1 9.9.9.9", "home.lan")
        assert config["rootfs"] == "local-lvm:vm-444-disk-0,size=6G"
        assert config["mp0"] == "local-lvm:vm-444-disk-1,mp=/srv,backup=1,size=2G"
        assert config["mp1"] == "tank:subvol-444-disk-0,mp=/data,ro=1,size=1G"
        assert {"ip=10.0.0.5/24", "gw=10.0.0.1", "tag=20", "firewall=1"} < set(config["net0"].split(","))
        assert {"name=eth1", "ip6=2001:db8::5/64", "gw6=2001:db8::1", "hwaddr=BC:24:11:00:00:02"} < set(
            config["net1"].split(",")
        )
        assert "ip=dhcp" not in config["net1"]
        assert (config["tags"], config["description"], config["onboot"]) == ("files", "shares\n", 1)
        assert (config["timezone"], config["startup"], config["features"]) == ("host", "order=2", "nesting=0")
        assert 444 in quorate.sim.world.access.pools["lab"].vms
        assert "warnings" not in facts
        assert "not-for-you" not in str(facts)
        assert "not-for-you" not in quorate.audit_file.read_text()


async def test_a_template_of_the_appliance_list_is_downloaded_first(tmp_path):
    async with rig(tmp_path) as quorate:
        shown = await quorate.facts("container_create", template="alpine", dry_run=True)
        assert [step["call"].split()[1].rpartition("/")[2] for step in shown["steps"]] == ["aplinfo", "lxc"]
        assert quorate.writes == []
        ct, facts = await created(quorate, template="alpine", node="pve1", start=True)
        assert [step["state"] for step in facts["steps"]] == ["done"] * 3
        assert [volid for name in ("local", "nas") for volid in templates(quorate, name) if ALPINE in volid]
        assert ct.config["ostype"] == "alpine"
        assert ct.running
        again, facts = await created(quorate, template=ALPINE, node="pve1")
        assert "steps" not in facts
        assert again.vmid != ct.vmid


async def test_a_download_whose_answer_is_lost_is_found_and_followed(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/aplinfo;count=1"]) as quorate:
        _, facts = await created(quorate, template="alpine", node="pve1")
        assert "its task was found and followed" in str(facts["steps"][0])


async def test_a_volid_that_is_missing_is_downloaded_to_the_storage_it_names(tmp_path):
    async with rig(tmp_path) as quorate:
        await created(quorate, template=f"local:vztmpl/{ALPINE}", node="pve2")
        assert f"local:vztmpl/{ALPINE}" in templates(quorate, "local", "pve2")


async def test_a_plain_system_comes_before_the_appliances_built_on_it(tmp_path):
    async with rig(tmp_path) as quorate:
        shown = await quorate.facts("container_create", template="debian-12", dry_run=True)
        assert shown["chosen"]["template"] == "debian-12-standard_12.12-1_amd64.tar.zst"


async def test_of_several_versions_the_newest_is_taken_and_a_node_that_has_one_is_preferred(tmp_path):
    async with rig(tmp_path) as quorate:
        for version in ("3.9-1", "3.10-1"):
            volid = f"local:vztmpl/alpine-own_{version}_amd64.tar.xz"
            put_file(quorate, volid, "vztmpl", node="pve3", fmt="txz", size=3 * MIB)
        ct, facts = await created(quorate, template="alpine-own")
        assert ct.node == "pve3"
        assert facts["chosen"]["template"] == "alpine-own_3.10-1_amd64.tar.xz"


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
async def test_both_versions_of_pve_take_the_whole_plan(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        ct, _ = await created(quorate, template="ubuntu-24", ssh_keys=[KEY], mounts=["1G,mp=/data"], start=True)
        assert ct.running
        assert ct.config["unprivileged"] == 1


async def test_an_id_claimed_during_the_download_is_replaced_and_nothing_is_downloaded_twice(tmp_path):
    async with rig(tmp_path) as quorate, second_server(quorate, tmp_path / "other.jsonl") as other:
        answers = await asyncio.gather(
            *(
                server.facts("container_create", template="alpine", node="pve1", hostname=f"n{number}")
                for number, server in enumerate((quorate, other))
            )
        )
        assert len({facts["vmid"] for facts in answers}) == 2
        assert all(facts["result"] == "done" for facts in answers)
        downloads = [path for _, path in quorate.writes if path.endswith("aplinfo")]
        assert len(downloads) == 2  # one for each server, none for the second try


async def test_a_lost_answer_never_makes_two_containers(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/lxc"]) as quorate:
        before = len(quorate.sim.world.guests)
        facts = await quorate.facts("container_create", template="debian-13")
        assert "answer was lost" in facts["note"]
        assert len(quorate.sim.world.guests) == before + 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"template": "debina-13-standard_13.1-2_amd64.tar.zst"},
            ("no container template", f"Did you mean {DEBIAN!r}"),
        ),
        ({"template": "zzz"}, ("no container template", "appliance list", "There is")),
        ({"template": "turnkey"}, ("Several templates match", "nextcloud", "Give more of the name")),
        ({"name": "my_ct"}, ("name", "'my-ct' would work")),
        ({"password": "1234"}, ("password", "at least 5 characters")),
        ({"ssh_keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}, ("not a public key",)),
        ({"rootfs": "big"}, ("is not a size",)),
        ({"rootfs": "nas:8G"}, ("does not take rootdir", "local-lvm")),
        ({"storage": "nowhere"}, ("no storage 'nowhere'",)),
        ({"mounts": ["local-lvm:8G"]}, ("has no path", "mp=/data")),
        ({"mounts": [{"size": "8G", "path": "/a/../b"}]}, ("has no path",)),
        ({"mounts": ["/srv/share,mp=/data"]}, ("directory of the node", "pct set")),
        ({"networks": ["vmbr0,ip=10.0.0.5"]}, ("lacks its prefix",)),
        ({"networks": ["vmbr0,ip=dhcp,gw=10.0.0.1"]}, ("requires a static ip",)),
        ({"networks": [{"ip6": "10.0.0.5/24"}]}, ("not an IPv6 address",)),
        ({"networks": [{"color": "red"}]}, ("net0.color",)),
        ({"networks": ["vmbr9"]}, ("no bridge 'vmbr9'",)),
        ({"dns": "dns.google"}, ("'dns.google' is not an address",)),
        ({"features": "nesting"}, ("has no value", "nesting=1")),
        ({"features": "keyctl=1"}, ("only root@pam itself", "pct set")),
        ({"unprivileged": False, "features": "nesting=1"}, ("only root@pam itself",)),
        ({"options": {"restore": 1}}, ("no option 'restore'",)),
        ({"options": {"rootfs": "local-lvm:9"}}, ("'rootfs' is specified twice",)),
    ],
)
async def test_what_pve_would_refuse_is_refused_before_with_a_way_out(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("container_create", **{"template": "debian-13", **arguments})
        assert [word for word in words if word not in text] == [], text
        assert quorate.writes == []


async def test_a_privileged_container_is_made_only_when_asked_for(tmp_path):
    async with rig(tmp_path) as quorate:
        ct, _ = await created(quorate, template="debian-13", unprivileged=False)
        assert not ct.config.get("unprivileged")
        assert "features" not in ct.config


async def test_a_template_larger_than_the_root_disk_fails_with_the_reason(tmp_path):
    async with rig(tmp_path) as quorate:
        storage = quorate.sim.world.storages["local"]
        storage.add("pve1", Volume("local:vztmpl/huge_1_amd64.tar.gz", "vztmpl", "tgz", 900 * MIB, 900 * MIB, 0))
        before = set(quorate.sim.world.guests)
        text = await quorate.refusal("container_create", template="huge", rootfs="local-lvm:1G", node="pve1")
        assert "failed: exit code 2" in text
        assert set(quorate.sim.world.guests) == before


@pytest.mark.parametrize(
    "options", [{"hookscript": "local:snippets/x.pl"}, {"dev0": "/dev/ttyS0"}, {"mp5": "/srv,mp=/x"}]
)
async def test_what_only_root_may_set_is_refused_to_a_token_even_in_a_dry_run(tmp_path, options):
    async with rig(tmp_path) as quorate:
        before = quorate.writes
        for dry_run in (True, False):
            text = await quorate.refusal("container_create", template="debian-13", options=options, dry_run=dry_run)
            assert f"may not set {next(iter(options))}" in text
            assert "only root@pam logged in with a password" in text
        assert quorate.writes == before
