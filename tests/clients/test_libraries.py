"""Other people's clients do their usual work against the simulator."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.clients.programs import FLOWING, NEEDS_ANSIBLE, play, run, simulator

PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  module_defaults:
    group/community.proxmox.proxmox:
      api_host: 127.0.0.1
      api_port: 8006
      api_user: root@pam
      api_token_id: ci
      api_token_secret: 11111111-2222-4333-8444-555555555555
      validate_certs: true
  tasks:
    - community.proxmox.proxmox:
        node: pve1
        vmid: 510
        hostname: ct
        ostemplate: local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst
        disk: local-lvm:4
        memory: 512
        features: [nesting=1]
    - community.proxmox.proxmox: {vmid: 510, state: started}
    - community.proxmox.proxmox_snap: {vmid: 102, snapname: before, state: present}
    - community.proxmox.proxmox_snap: {vmid: 102, snapname: before, state: absent}
    - community.proxmox.proxmox_pool: {poolid: made, comment: by Ansible}
    - community.proxmox.proxmox_storage_info:
      register: storages
    - community.proxmox.proxmox_kvm: {vmid: 102, node: pve1, state: started}
    - community.proxmox.proxmox_vm_info: {type: all, config: current}
      register: guests
    - community.proxmox.proxmox_backup_info:
    - community.proxmox.proxmox: {vmid: 510, state: absent, force: true}
    - ansible.builtin.assert:
        that:
          - storages.proxmox_storages | length == 3
          - guests.proxmox_vms | selectattr('vmid', 'eq', 510) | map(attribute='status') | list == ['running']
"""

PROXMOX_API = """
import proxmoxApi from "proxmox-api";
import { readFileSync } from "node:fs";
const at = JSON.parse(readFileSync("ready.json", "utf8"));
const { hostname, port } = new URL(at.url);
const pve = proxmoxApi({ host: hostname, port: Number(port), tokenID: at.token_id, tokenSecret: at.token_secret });
const guests = await pve.nodes.$("pve1").qemu.$get({ full: true });
const upid = await pve.nodes.$("pve1").qemu.$(102).status.start.$post({});
console.log(guests.map((guest) => guest.name).sort().join(), upid.split(":")[5]);
"""

CV4PVE = """
import { PveClient } from "@corsinvest/cv4pve-api-javascript";
import { readFileSync } from "node:fs";
const at = JSON.parse(readFileSync("ready.json", "utf8"));
const { hostname, port } = new URL(at.url);
const client = new PveClient(hostname, Number(port));
client.apiToken = `${at.token_id}=${at.token_secret}`;
const guests = (await client.nodes.get("pve1").qemu.vmlist()).response.data;
const started = await client.nodes.get("pve1").qemu.get(102).status.start.vmStart();
console.log(guests.map((guest) => guest.name).sort().join(), started.response.data.split(":")[5]);
"""

MODULES = Path(os.environ.get("NODE_CLIENTS", "")) / "node_modules"


@NEEDS_ANSIBLE
def test_modules_of_ansible_create_start_look_and_delete(tmp_path: Path) -> None:
    with simulator(tmp_path, *FLOWING) as ready:
        shown = play(tmp_path, ready, PLAYBOOK)
    assert "changed=7" in shown
    assert "failed=0" in shown


@pytest.mark.parametrize(
    ("package", "program"), [("proxmox-api", PROXMOX_API), ("@corsinvest/cv4pve-api-javascript", CV4PVE)]
)
def test_clients_of_node_list_and_start(tmp_path: Path, package: str, program: str) -> None:
    if shutil.which("node") is None or not (MODULES / package).is_dir():
        pytest.skip(f"Node.js or {package} is missing: npm install it in a folder, and set NODE_CLIENTS to the folder")
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "client.mjs").write_text(program)
    with simulator(tmp_path, *FLOWING) as ready:
        shown = run(tmp_path, "node", "client.mjs", NODE_EXTRA_CA_CERTS=ready["ca_file"])
    assert shown.split() == ["debian-13,spare,web", "qmstart"]
