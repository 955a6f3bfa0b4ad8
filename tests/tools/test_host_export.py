"""Registered hosts as an inventory that Ansible reads."""

from __future__ import annotations

import pytest
import yaml

from tests.rigs.homelab import house

pytestmark = pytest.mark.anyio


async def register(quorate, host, address, **more):
    await quorate.facts("host_register", host=host, address=address, verify=False, **more)


async def test_hosts_are_exported_with_their_way_in_and_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("QUORATE_HOST_NAS", "very secret indeed")
    async with house(tmp_path, {}, toolsets=("hosts", "host_admin")) as built:
        quorate = built.quorate
        await register(quorate, "gate", "192.0.2.1", user="me", port=2200, labels=["edge"])
        await register(
            quorate, "nas", "192.0.2.2", key="/k/nas", jump="gate", password="env:QUORATE_HOST_NAS",
            labels=["role=nas", "role nas"],
        )  # fmt: skip
        await register(quorate, "off", "192.0.2.3")
        await quorate.facts("host_update", host="off", active=False)
        export = await quorate.facts("host_export")
        assert (export["hosts"], "secret" in str(export)) == (2, False)
        inventory = yaml.safe_load(export["inventory"])["all"]
        assert inventory["hosts"]["gate"] == {"ansible_host": "192.0.2.1", "ansible_port": 2200, "ansible_user": "me"}
        assert inventory["hosts"]["nas"] == {
            "ansible_host": "192.0.2.2", "ansible_user": "tester", "ansible_ssh_private_key_file": "/k/nas",
            "ansible_ssh_common_args": "-o ProxyJump=me@192.0.2.1:2200",
        }  # fmt: skip
        assert {group: list(group_content["hosts"]) for group, group_content in inventory["children"].items()} == {
            "label_edge": ["gate"], "label_role_nas": ["nas"], "label_role_nas_2": ["nas"],
        }  # fmt: skip
        edge = await quorate.facts("host_export", label="edge", format="json")
        assert list(edge["inventory"]["_meta"]["hostvars"]) == ["gate"]
        assert "no registered host 'nobody'" in await quorate.refusal("host_export", hosts=["nobody"])


async def test_a_host_with_values_that_ansible_would_evaluate_is_left_out_with_the_reason(tmp_path):
    async with house(tmp_path, {}, toolsets=("hosts", "host_admin")) as built:
        quorate = built.quorate
        await register(quorate, "sly", "192.0.2.9", user="{{ lookup('pipe', 'id') }}")
        export = await quorate.facts("host_export", format="ini")
        assert (export["hosts"], list(export["left_out"])) == (0, ["sly"])
        assert "pipe" not in export["inventory"]
