"""Application images: tags, pulls, and containers made from them with variables, entry point and mounts."""

import json

import pytest

from quorate.config import Access, Approval
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio

NGINX = "docker.io/library/nginx:1.29"
FILE = "docker.io_library_nginx_1.29.tar"
NTFY = "docker.io/binwiederhier/ntfy:v2.15.0"


def guest(quorate, facts):
    return quorate.sim.world.guests[facts["vmid"]]


def tasks(quorate, kind):
    world = quorate.sim.world
    return [task.upid for node in world.nodes for task in world.tasks.newest_first(node) if task.upid.type == kind]


def variables(ct):
    return dict(pair.split("=", 1) for pair in ct.config["env"].split("\0"))


async def test_the_tags_of_an_image_are_listed_and_those_that_were_pulled_come_first(quorate):
    rows = await quorate.rows("template_list", image="docker.io/library/nginx")
    assert [row["template"].rpartition(":")[2] for row in rows] == [
        "1.27",
        "1.28",
        "1.29",
        "1.29-alpine",
        "latest",
        "stable",
    ]
    assert {row["section"] for row in rows} == {"oci"}
    await quorate.facts("image_download", template=NGINX, storage="local", node="pve1")
    rows = await quorate.rows("template_list", image="nginx")
    assert (rows[0]["template"], rows[0]["present_on"]) == (NGINX, "local on pve1")
    assert [row["template"] for row in await quorate.rows("template_list", image="nginx", show="present")] == [NGINX]
    assert [row["template"] for row in await quorate.rows("template_list", image="nginx", search="alpine")] == [
        f"{NGINX}-alpine"
    ]
    present = {row["template"]: row["section"] for row in await quorate.rows("template_list", show="present")}
    assert present[FILE] == "oci"
    assert present["debian-13-standard_13.1-2_amd64.tar.zst"] != "oci"


async def test_an_image_is_pulled_once_under_its_full_name(quorate):
    facts = await quorate.facts("image_download", template=f"docker://{NGINX}", storage="local", node="pve1")
    assert facts["volume"] == f"local:vztmpl/{FILE}"
    (task,) = tasks(quorate, "ociregistrypull")
    assert task.id == FILE
    again = await quorate.facts("image_download", template=NGINX, storage="local", node="pve1")
    assert again["result"] == "nothing to do"
    assert len(tasks(quorate, "ociregistrypull")) == 1


@pytest.mark.quorate(access=Access.OPERATE)
async def test_a_pull_can_be_stopped_because_it_can_be_repeated(quorate):
    begun = await quorate.facts("image_download", template="ghcr.io/jellyfin/jellyfin:latest", node="pve1", wait=0)
    await quorate.facts("task_stop", task=begun["task"])
    assert not [volume for volume in quorate.sim.world.storages["local"].volumes("pve1") if "jellyfin" in volume.volid]
    again = await quorate.facts("image_download", template="ghcr.io/jellyfin/jellyfin:latest", node="pve1", wait=50)
    assert again["result"] == "done"


async def test_a_container_runs_an_image_with_variables_entry_point_and_a_volume(quorate):
    """PVE takes variables and entry point from the image while it creates a container, so they are set afterwards."""
    facts = await quorate.facts(
        "container_create", template=NTFY, name="ntfy", memory="256M", rootfs="2G", start=True,
        mounts=["local-lvm:1G,mp=/var/lib/ntfy"], networks=["vmbr0,ip=10.0.0.9/24,gw=10.0.0.1"],
        options={"entrypoint": "ntfy serve", "env": {"NTFY_LISTEN_HTTP": ":80", "NTFY_BEHIND_PROXY": True}},
    )  # fmt: skip
    ct = guest(quorate, facts)
    assert ct.running
    assert ct.config["entrypoint"] == "ntfy serve"
    assert variables(ct)["NTFY_LISTEN_HTTP"] == ":80"
    assert variables(ct)["NTFY_BEHIND_PROXY"] == "true"
    assert variables(ct)["PATH"].startswith("/usr/local/sbin:")
    assert variables(ct)["NTFY_HOME"] == "/var/lib/ntfy"
    assert "mp=/var/lib/ntfy" in ct.config["mp0"]
    assert "host-managed=1" in ct.config["net0"]
    assert facts["chosen"]["template"] == "docker.io_binwiederhier_ntfy_v2.15.0.tar"
    assert "warnings" not in facts


async def test_variables_are_changed_one_by_one_later_and_no_others_are_shown(quorate):
    made = await quorate.facts("container_create", template=NTFY, options={"env": {"TOKEN": "Canary-4711", "A": "1"}})
    ct = guest(quorate, made)
    changed = {"A": "2", "NTFY_HOME": None, "B": 3}
    facts = await quorate.facts("guest_configure", guest=ct.vmid, options={"env": changed})
    assert {name: value for name, value in variables(ct).items() if name != "PATH"} == {
        "TOKEN": "Canary-4711", "A": "2", "B": "3",
    }  # fmt: skip
    assert "PATH" in variables(ct)
    again = await quorate.facts("guest_configure", guest=ct.vmid, options={"env": changed})
    assert again["result"] == "nothing to do"
    assert "Canary" not in json.dumps([facts, again])
    assert "is not a variable" in await quorate.refusal("guest_configure", guest=ct.vmid, options={"env": {"A-B": 1}})


async def test_variables_that_wait_for_a_restart_are_not_shown(quorate):
    secret = {"env": {"TOKEN": "Canary-4711"}}
    made = await quorate.facts("container_create", template=NTFY, options=secret, start=True)
    facts = await quorate.facts("guest_configure", guest=made["vmid"], options={"env": {"A": "2"}})
    assert facts["waits_for_restart"] == {"env": "***"}
    shown = await quorate.facts("guest_get", guest=made["vmid"])
    assert shown["pending"] == {"env": "***"}
    compared = await quorate.call("guest_diff", guest=made["vmid"], other=200)
    assert "Canary" not in json.dumps([facts, shown]) + str(compared)


async def test_a_variable_of_the_image_can_be_replaced(quorate):
    facts = await quorate.facts(
        "container_create", template="postgres:18", options={"env": ["PGDATA=/data", "POSTGRES_PASSWORD=from-a-vault"]}
    )
    assert variables(guest(quorate, facts)) == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PG_MAJOR": "18",
        "PGDATA": "/data",
        "POSTGRES_PASSWORD": "from-a-vault",
    }


async def test_the_plan_shows_the_pull_and_the_names_of_variables_but_not_their_values(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE, approval=Approval.ASK) as quorate:
        arguments = {"template": NGINX, "options": {"env": {"API_KEY": "Canary-4711"}, "entrypoint": "nginx"}}
        shown = await quorate.facts("container_create", **arguments, dry_run=True)
        pull, create, late = shown["steps"]
        assert pull["step"].startswith(f"Pull {NGINX} to ")
        assert "entrypoint" not in create["call"]
        assert late["step"].startswith("Set entry point and variables API_KEY of ct")
        assert late["call"] == "entrypoint=nginx, set API_KEY, keep the other variables"
        assert "Canary" not in json.dumps(shown)
        made = await quorate.facts("container_create", **arguments)  # a CHANGE, so without approval
        assert variables(guest(quorate, made))["API_KEY"] == "Canary-4711"
        assert "Canary" not in json.dumps(made) + quorate.audit_file.read_text()


async def test_a_pulled_file_is_used_again_on_the_node_that_has_it(quorate):
    await quorate.facts("image_download", template=NGINX, storage="local", node="pve2")
    facts = await quorate.facts("container_create", template=NGINX)
    assert guest(quorate, facts).node == "pve2"
    by_file = await quorate.facts("container_create", template="nginx_1.29", options={"env": {"A": "1"}})
    assert variables(guest(quorate, by_file))["A"] == "1"
    assert "NGINX_VERSION" in variables(guest(quorate, by_file))
    assert len(tasks(quorate, "ociregistrypull")) == 1


async def test_a_system_from_an_archive_gets_its_variables_with_the_call(quorate):
    facts = await quorate.facts("container_create", template="debian-13", options={"env": {"A": "1", "B": "x,y"}})
    assert variables(guest(quorate, facts)) == {"A": "1", "B": "x,y"}


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("docker.io/library/nginx", ("Which tag", "1.29", "image=docker.io/library/nginx")),
        ("nginx:1.92", ("no tag '1.92'", "1.29")),
        ("ghcr.io/nobody/nothing:1", ("cannot read the tags of ghcr.io/nobody/nothing", "exit code 1", "public")),
        ("docker://Not A Name", ("is not a reference", "nginx:1.29")),
        (f"docker.io/library/nginx@sha256:{'0' * 64}", ("by tag", "digest")),
    ],
)
async def test_an_image_that_cannot_be_pulled_is_refused_with_the_reason(quorate, template, words):
    for tool in ("container_create", "image_download"):
        text = await quorate.refusal(tool, template=template)
        assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NOT-A-NAME": "1"}, "'NOT-A-NAME' is not a variable"),
        ("FOO", "'FOO' is not a variable"),
        ({"A": "two\nlines"}, "control character"),
        ({"A": {"B": 1}}, "single value"),
    ],
)
async def test_variables_that_pve_would_refuse_are_refused_before(quorate, env, words):
    assert words in await quorate.refusal("container_create", template="debian-13", options={"env": env})


@pytest.mark.parametrize("version", ["8.4.14", "9.0.11"])
async def test_an_older_pve_is_named_with_the_version_that_is_needed(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        for tool, arguments in (
            ("template_list", {"image": "nginx"}),
            ("image_download", {"template": NGINX}),
            ("container_create", {"template": NGINX}),
        ):
            text = await quorate.refusal(tool, **arguments)
            assert f"PVE {version} cannot" in text
            assert "requires PVE 9.1" in text


async def test_a_node_without_the_tool_for_registries_says_what_to_install(quorate):
    for node in quorate.sim.world.nodes.values():
        node.has_skopeo = False
    text = await quorate.refusal("container_create", template=NGINX, node="pve1")
    assert "Install the package skopeo on pve1" in text


async def test_a_pull_that_fails_leaves_no_container(quorate):
    quorate.sim.faults.add("task-fails:ociregistrypull:command 'skopeo copy' failed: exit code 1")
    before = set(quorate.sim.world.guests)
    answer = await quorate.call("container_create", template=NGINX)
    assert answer.is_error
    assert set(quorate.sim.world.guests) == before


async def test_who_may_not_use_the_nodes_network_learns_what_to_grant(quorate, tmp_path):
    async with second_server(quorate, tmp_path / "alice.jsonl", token="alice@pve!cli") as alice:
        for tool, arguments in (
            ("template_list", {"image": "nginx", "node": "pve1"}),
            ("container_create", {"template": NGINX, "node": "pve1"}),
        ):
            text = await alice.refusal(tool, **arguments)
            assert "Sys.AccessNetwork" in text
            assert "/nodes/pve1" in text
