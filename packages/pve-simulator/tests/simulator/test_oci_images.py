"""Application images: tags of a repository, pulls, and what a container gets from its image."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api, simulated_api
from pve_simulator.storage.oci_images import REGISTRIES

_TAGS = "/nodes/pve1/query-oci-repo-tags"
_PULL = "/nodes/pve1/storage/local/oci-registry-pull"
_NGINX = "docker.io/library/nginx:1.29"


async def test_a_repository_has_tags_by_its_full_and_its_short_name(api: Api) -> None:
    full = (await api.get(_TAGS, reference="docker.io/library/nginx")).data
    assert full == list(REGISTRIES["docker.io/library/nginx"][1])
    assert (await api.get(_TAGS, reference="nginx")).data == full
    lost = await api.get(_TAGS, reference="ghcr.io/nobody/nothing")
    assert lost.reason == "command 'skopeo list-tags docker://ghcr.io/nobody/nothing' failed: exit code 1"
    tagged = await api.get(_TAGS, reference="nginx:1.29")
    assert tagged.errors == {"reference": "value does not match the regex pattern"}


async def test_a_pulled_image_is_a_template_named_after_the_end_of_its_reference(api: Api) -> None:
    reply = await api.post(_PULL, reference=_NGINX)
    assert reply.data.split(":")[5:7] == ["ociregistrypull", "nginx_1.29.tar"]
    assert await api.finish_task(reply) == "OK"
    rows = {row["volid"]: row for row in (await api.get("/nodes/pve1/storage/local/content", content="vztmpl")).data}
    assert rows["local:vztmpl/nginx_1.29.tar"]["format"] == "tar"
    assert rows["local:vztmpl/nginx_1.29.tar"]["size"] == REGISTRIES["docker.io/library/nginx"][0].size
    again = await api.post(_PULL, reference=_NGINX)
    assert again.reason == "refusing to override existing file 'nginx_1.29.tar'"
    named = await api.post(_PULL, reference=_NGINX, filename="web/my nginx")
    assert await api.finish_task(named) == "OK"
    assert named.data.split(":")[6] == "my_nginx.tar"


async def test_what_the_registry_does_not_have_fails_in_the_task(api: Api) -> None:
    reply = await api.post(_PULL, reference="nginx:0.1")
    ending = await api.finish_task(reply)
    assert ending.startswith("command 'skopeo copy docker://nginx:0.1 oci-archive:/var/lib/vz/template/cache/nginx_0.1")
    assert ending.endswith("failed: exit code 1")
    assert "manifest 0.1" in (await api.log(reply.data)).text


async def test_a_storage_must_keep_templates_as_files(api: Api) -> None:
    block = await api.post("/nodes/pve1/storage/local-lvm/oci-registry-pull", reference=_NGINX)
    assert block.reason == "can't upload to storage type 'lvmthin', not a file based storage!"
    untagged = await api.post(_PULL, reference="docker.io/library/nginx")
    assert untagged.errors == {"reference": "value does not match the regex pattern"}


async def test_registries_need_a_tool_on_the_node(api: Api) -> None:
    api.cluster.world.nodes["pve1"].has_skopeo = False
    pull, tags = await api.post(_PULL, reference=_NGINX), await api.get(_TAGS, reference="nginx")
    assert pull.reason == "Install 'skopeo' to pull OCI images from registries."
    assert tags.reason == "Install 'skopeo' to list tags from OCI registries."


async def test_a_container_gets_entry_point_and_variables_from_its_image_not_from_the_call(api: Api) -> None:
    await api.finish_task(await api.post(_PULL, reference=_NGINX))
    reply = await api.post(
        "/nodes/pve1/lxc", vmid=700, ostemplate="local:vztmpl/nginx_1.29.tar", rootfs="local-lvm:4",
        net0="name=eth0,bridge=vmbr0,ip=dhcp", entrypoint="/bin/true", env="MINE=1",
    )  # fmt: skip
    assert await api.finish_task(reply) == "OK"
    assert "Detected OCI archive" in (await api.log(reply.data)).text
    config = api.cluster.world.guests[700].config
    assert config["entrypoint"] == "/docker-entrypoint.sh nginx -g 'daemon off;'"
    assert str(config["env"]).split("\0")[0].startswith("PATH=")
    assert "MINE=1" not in str(config["env"])
    assert (config["cmode"], config["ostype"]) == ("console", "debian")
    assert "host-managed=1" in str(config["net0"])
    stored = await api.put("/nodes/pve1/lxc/700/config", env="MINE=1", entrypoint="/bin/true")
    assert stored.status == 200
    assert (config["env"], config["entrypoint"]) == ("MINE=1", "/bin/true")


@pytest.mark.parametrize("version", ["8.4.1", "9.0.11"])
async def test_older_versions_do_not_know_images(version: str) -> None:
    async with simulated_api(version=version) as api:
        assert (await api.get(_TAGS, reference="nginx")).status == 501
        assert (await api.post(_PULL, reference=_NGINX)).status == 501
