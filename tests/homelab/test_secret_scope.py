"""A stored secret goes to the host that it was meant for; another address is a question for a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from mcp.types import ElicitResult

from quorate.config import Access, Approval
from quorate.homelab.vault import Vault
from quorate.secret import Secret
from tests.rigs.compose_host import ComposeHost
from tests.rigs.homelab import House, house
from tests.rigs.infra_hosts import infra_lab

pytestmark = pytest.mark.anyio

PASSPHRASE = Secret("correct horse battery")
QUESTION = "the secret nas of the vault would be sent to"
SECRET = "parameters: {key: {type: secret, about: Key}}"
OTHER_SERVICES = {
    "note": "ansible: {playbook: '- {hosts: all, gather_facts: false, tasks: []}'}",
    "record": """terraform:
  main.tf: |
    variable "key" { sensitive = true }
    resource "terraform_data" "one" { input = var.key }
""",
}


class Person:
    """Types what the question asks for."""

    def __init__(self) -> None:
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        del context
        self.questions.append(params.message)
        word = params.message.rpartition("Type ")[2].partition(" to approve")[0]
        return ElicitResult(action="accept", content={"typed": word})


@asynccontextmanager
async def with_vault(tmp_path: Path, person: Person, **options: Any) -> AsyncIterator[House]:
    Vault(tmp_path / "vault", PASSPHRASE).put("nas", Secret("canary-nas-password"))
    secrets = {"secrets_file": tmp_path / "vault", "passphrase": PASSPHRASE}
    settings = {"approval": Approval.ASK, "elicitation": person, **options}
    async with house(
        tmp_path, settings.pop("hosts", {}), homelab=secrets | settings.pop("homelab", {}), **settings
    ) as built:
        yield built


async def test_a_stored_secret_is_bound_to_the_address_that_a_person_approved(tmp_path):
    person = Person()
    async with with_vault(tmp_path, person) as built:
        quorate = built.quorate
        arguments = {"address": "192.0.2.9", "password": "vault:nas", "verify": False}
        await quorate.facts("host_register", host="nas", **arguments)
        [question] = person.questions
        assert "asked because: the secret nas of the vault would be sent to 192.0.2.9" in question
        await quorate.facts("host_update", host="nas", labels=["store"], sudo_password="vault:nas")
        assert len(person.questions) == 1
        for change in ({"address": "192.0.2.66"}, {"port": 2222}):
            await quorate.facts("host_update", host="nas", **change)
        assert "the secret nas of the vault would be sent to 192.0.2.66" in person.questions[1]
        assert "192.0.2.66:2222" in person.questions[2]
        await quorate.facts("host_register", host="mine", address="203.0.113.7", password="vault:nas", verify=False)
        assert len(person.questions) == 4
        assert quorate.audit()[-1]["risk"] == "destroy"


async def test_without_the_level_for_it_nobody_hands_a_stored_secret_out(tmp_path):
    async with with_vault(tmp_path, Person(), access=Access.OPERATE) as built:
        arguments = {"address": "192.0.2.9", "verify": False}
        refusal = await built.quorate.refusal("host_register", host="nas", password="vault:nas", **arguments)
        assert "the secret nas of the vault would be sent to 192.0.2.9" in refusal
        await built.quorate.facts("host_register", host="nas", **arguments)
        refusal = await built.quorate.refusal("host_update", host="nas", password="vault:nas")
        assert "the secret nas of the vault would be sent" in refusal


async def test_services_guests_and_documents_hand_out_no_stored_secret_unasked(tmp_path):
    box = ComposeHost(tmp_path / "box-machine")
    options = {"access": Access.OPERATE, "hosts": {"box": box.options}, "homelab": box.settings}
    async with with_vault(tmp_path, Person(), **options) as built:
        secret = {"password": "vault:nas"}
        host = {"address": "192.0.2.9", "password": "vault:nas"}
        service = {"host": "box", "settings": secret}
        place = {"type": "ct", "template": "debian-13"}
        for tool, arguments in (
            ("service_install", {"service": "page", "host": "box", "settings": secret}),
            ("service_install", {"service": "page", "place": place, "settings": secret}),
            ("infra_apply", {"document": {"name": "lab", "hosts": {"nas": host}}}),
            ("infra_apply", {"document": {"name": "lab", "services": {"page": service}}}),
        ):
            assert QUESTION in await built.quorate.refusal(tool, **arguments), (tool, arguments)
        await built.quorate.facts("service_install", service="page", host="box", dry_run=True)  # it makes one up


async def test_a_container_of_a_document_gets_no_stored_secret_unasked(tmp_path):
    Vault(tmp_path / "vault", PASSPHRASE).put("nas", Secret("canary-nas-password"))
    secrets = {"secrets_file": tmp_path / "vault", "passphrase": PASSPHRASE}
    async with infra_lab(tmp_path, "one", register=True, access=Access.OPERATE, homelab=secrets) as lab:
        workload = {"host": "one", "image": "db:1", "secrets": {"DB_PASSWORD": "vault:nas"}}
        document = {"name": "lab", "workloads": {"db": workload}}
        assert f"{QUESTION} one" in await lab.quorate.refusal("infra_apply", document=document)
        assert lab.running("one") == {}


def catalogue_with(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / f"{name}.yaml").write_text(f"title: {name}\nabout: Of the test\n{SECRET}\n{OTHER_SERVICES[name]}\n")
    return folder


@pytest.mark.thorough
@pytest.mark.skipif(not find_spec("ansible_runner"), reason="Ansible is not installed here")
async def test_a_playbook_gets_a_stored_secret_only_if_a_person_agrees_and_a_check_never(tmp_path):
    services = {"catalogue": catalogue_with(tmp_path / "templates", "note")}
    async with with_vault(tmp_path, Person(), access=Access.OPERATE, hosts={"nas": {}}, homelab=services) as built:
        arguments = {"service": "note", "host": "nas", "extra_vars": {"key": "vault:nas"}}
        for tool in ("ansible_run", "ansible_check"):
            assert f"{QUESTION} host nas" in await built.quorate.refusal(tool, **arguments)


@pytest.mark.skipif(not (which("tofu") or which("terraform")), reason="there is neither tofu nor terraform here")
async def test_terraform_never_gets_a_stored_secret_since_planning_hands_it_on_before_anyone_is_asked(tmp_path):
    services = {"catalogue": catalogue_with(tmp_path / "templates", "record")}
    async with with_vault(tmp_path, Person(), hosts={"nas": {}}, homelab=services) as built:
        arguments = {"service": "record", "host": "nas", "settings": {"key": "vault:nas"}}
        for tool in ("terraform_plan", "service_install"):
            assert "Terraform takes no stored secret (vault:nas)" in await built.quorate.refusal(tool, **arguments)
