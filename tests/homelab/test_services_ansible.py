"""Services by Ansible, with the real one: check mode, events as progress, tags, differences, secrets, failures."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from quorate.homelab.services.catalogue import load_packaged
from tests.rigs.homelab import House, house

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not (
            importlib.util.find_spec("ansible_runner") and importlib.util.find_spec("ansible") and shutil.which("ssh")
        ),
        reason="Ansible is not installed here: pip install ansible-core ansible-runner",
    ),
]

TEMPLATE = """
title: Note
about: A note on the host
version: "1"
parameters:
  folder: {about: Where}
  colour: {default: red, about: Colour}
  key: {type: secret, generate: 24, about: Key}
ansible:
  playbook: |
    - name: The note
      hosts: all
      gather_facts: false
      tasks:
        - name: The note is written
          ansible.builtin.copy:
            dest: "{{ folder }}/note"
            content: "{{ colour }} {{ version }}\\n"
            mode: "0644"
          tags: [note]
        - name: The key is written
          ansible.builtin.copy:
            dest: "{{ folder }}/key"
            content: "{{ key }}\\n"
            mode: "0600"
          tags: [key]
  uninstall: |
    - hosts: all
      gather_facts: false
      tasks:
        - name: The note goes
          ansible.builtin.file: {path: "{{ folder }}/note", state: absent}
        - name: The key goes with the data
          ansible.builtin.file: {path: "{{ folder }}/key", state: absent}
          when: data
"""


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "templates").mkdir()
    # The login has no home here; a relative folder would be made wherever the tests are started.
    home = f"gather_facts: false\n      vars: {{ansible_remote_tmp: {tmp_path}/ansible}}"
    (tmp_path / "templates/note.yaml").write_text(TEMPLATE.replace("gather_facts: false", home))
    (tmp_path / "there").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin/python3").chmod(0o755)
    return tmp_path / "there"


def lab(tmp_path: Path) -> AbstractAsyncContextManager[House]:
    """With a host whose Python is the one that runs this."""
    host = {"environment": {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}}
    return house(tmp_path, {"nas": host}, homelab={"catalogue": tmp_path / "templates"})


def install_arguments(there: Path, **more) -> dict[str, Any]:
    return {"service": "note", "host": "nas", "extra_vars": {"folder": str(there), **more}}


@pytest.mark.thorough
async def test_check_mode_shows_the_difference_and_changes_nothing(tmp_path, there):
    async with lab(tmp_path) as built:
        quorate = built.quorate
        (there / "note").write_text("blue 1\n")
        tried = await quorate.facts("ansible_check", **install_arguments(there), tags=["note"])
        assert tried["would_change"] == ["The note is written"]
        assert "-blue 1" in tried["diff"]
        assert "+red 1" in tried["diff"]
        assert (there / "note").read_text() == "blue 1\n"
        assert not (there / "key").exists()
        assert list((tmp_path / "work/ansible").iterdir()) == [], "nothing of the run is left"


@pytest.mark.thorough
async def test_a_playbook_is_run_with_its_events_as_progress_and_leaves_no_secret_here(tmp_path, there):
    async with lab(tmp_path) as built:
        quorate = built.quorate
        done = await quorate.facts("ansible_run", **install_arguments(there, colour="green"))
        assert (there / "note").read_text() == "green 1\n"
        assert [row[:2] for row in done["tasks"]["rows"]] == [
            ["The note is written", "changed"],
            ["The key is written", "changed"],
        ]
        assert "The key is written" in [line for _, _, line in quorate.progress]
        secret = (there / "key").read_text().strip()
        assert len(secret) == 24
        assert secret not in f"{done}{quorate.audit()}{quorate.progress}{(tmp_path / 'state.sqlite').read_bytes()!r}"
        assert "has to be given again" in await quorate.refusal("ansible_run", **install_arguments(there))
        await quorate.facts("service_uninstall", service="note", host="nas")
        assert [file.name for file in there.iterdir()] == ["key"], "the data stays"


@pytest.mark.thorough
async def test_a_host_whose_key_is_not_trusted_gets_nothing(tmp_path, there):
    async with lab(tmp_path) as built:
        for file in built.settings.ssh.known_hosts:
            file.write_text("")
        refusal = await built.quorate.refusal("ansible_check", **install_arguments(there))
        assert "did not reach the host" in refusal
        assert list(there.iterdir()) == []


@pytest.mark.thorough
async def test_a_task_that_fails_is_named_with_its_reason(tmp_path, there):
    async with lab(tmp_path) as built:
        refusal = await built.quorate.refusal("ansible_run", **install_arguments(there / "nowhere"))
        assert "The note is written" in refusal
        assert "nowhere" in refusal
        facts = await built.quorate.facts("service_status", service="note", host="nas")
        assert facts["kept"] == "failed"


@pytest.mark.thorough
async def test_what_was_never_installed_is_not_upgraded(tmp_path, there):
    async with lab(tmp_path) as built:
        refusal = await built.quorate.refusal("service_upgrade", service="note", host="nas")
        assert "was not installed on host nas" in refusal
        assert "service_install" in refusal


async def test_what_is_no_tag_and_no_setting_is_refused(tmp_path, there):
    async with lab(tmp_path) as built:
        assert "is not a tag" in await built.quorate.refusal(
            "ansible_check", **install_arguments(there), tags=["a --extra-vars x"]
        )
        assert "no setting" in await built.quorate.refusal(
            "ansible_check", **install_arguments(there, ansible_host="10.0.0.1")
        )


@pytest.mark.parametrize("name", [name for name, template in load_packaged().items() if template.ansible])
@pytest.mark.thorough
def test_the_playbooks_of_the_catalogue_are_understood(tmp_path, name):
    ansible = load_packaged()[name].ansible
    assert ansible is not None
    surroundings = {**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_HOME": str(tmp_path)}
    for number, text in enumerate(filter(None, (ansible.playbook, ansible.uninstall))):
        file = tmp_path / f"{number}.yml"
        file.write_text(text)
        line = [sys.executable, "-m", "ansible", "playbook", "--syntax-check", "-i", "target,", str(file)]
        done = subprocess.run(line, capture_output=True, text=True, env=surroundings)
        assert done.returncode == 0, done.stderr


@pytest.mark.thorough
async def test_nothing_that_a_caller_writes_is_a_template_that_runs_on_the_server(tmp_path, there):
    template = f'{{{{ lookup("pipe", "touch {tmp_path}/owned") }}}}'
    async with lab(tmp_path) as built:
        await built.quorate.facts("ansible_run", **install_arguments(there, colour=template), tags=["note"])
        assert (there / "note").read_text() == f"{template} 1\n"
        for login in ({"key": template}, {"key": "", "user": template}):
            await built.quorate.facts("host_update", host="nas", **login)
            await built.quorate.refusal("ansible_check", **install_arguments(there), tags=["note"])
        assert not (tmp_path / "owned").exists()
