"""Services by OpenTofu or Terraform, with the real program: plan, apply of exactly that plan, drift, destroy."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from quorate.config import Access, Approval
from quorate.homelab.services.catalogue import load_packaged
from tests.rigs.homelab import house

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not (shutil.which("tofu") or shutil.which("terraform")), reason="there is neither tofu nor terraform here"
    ),
]

# Only what is built in: no provider has to be fetched. The remote state stands for the world outside.
TEMPLATE = """
title: Records
about: Two records of the test
version: "1"
parameters:
  colour: {default: red, about: Colour}
  key: {type: secret, generate: 24, about: Key}
terraform:
  main.tf: |
    variable "colour" { type = string }
    variable "service_version" { type = string }
    variable "key" {
      type      = string
      sensitive = true
    }
    variable "host_name" { type = string }
    resource "terraform_data" "first" { input = "${var.colour} on ${var.host_name}" }
    resource "terraform_data" "second" { triggers_replace = var.service_version }
    data "terraform_remote_state" "world" {
      backend = "local"
      config  = { path = "@WORLD@" }
    }
    output "weather" { value = data.terraform_remote_state.world.outputs.weather }
    output "key" {
      value     = var.key
      sensitive = true
    }
"""
FAILING = """
    resource "terraform_data" "third" {
      depends_on = [terraform_data.first]
      provisioner "local-exec" { command = "echo the disk is full >&2; exit 3" }
    }
"""


def catalogue(tmp_path: Path, text: str = TEMPLATE) -> Path:
    folder = tmp_path / "templates"
    folder.mkdir(exist_ok=True)
    world = tmp_path / "world.tfstate"
    (folder / "records.yaml").write_text(text.replace("@WORLD@", str(world)))
    weather(tmp_path, "fair")
    return folder


def weather(tmp_path: Path, word: str) -> None:
    state = {"version": 4, "terraform_version": "1.5.0", "serial": 1, "lineage": "x", "resources": [],
             "outputs": {"weather": {"value": word, "type": "string"}}}  # fmt: skip
    (tmp_path / "world.tfstate").write_text(json.dumps(state))


async def test_exactly_the_plan_that_was_shown_is_applied_and_only_once(tmp_path):
    async with house(tmp_path, homelab={"catalogue": catalogue(tmp_path)}) as built:
        quorate = built.quorate
        arguments = {"service": "records", "host": "nas"}
        plan = await quorate.facts("terraform_plan", **arguments, settings={"colour": "green"})
        assert plan["counts"] == {"create": 2}
        assert [row[:2] for row in plan["changes"]["rows"]] == [
            ["terraform_data.first", "create"],
            ["terraform_data.second", "create"],
        ]
        work = tmp_path / "work/terraform/nas/records"
        assert not (work / "terraform.tfstate").exists()
        done = await quorate.facts("terraform_apply", **arguments, plan=plan["plan"])
        assert "terraform_data.second" in str(done)
        assert "fair" in str(done)
        state = json.loads((work / "terraform.tfstate").read_text())
        assert "green on nas" in json.dumps(state)
        secret = state["outputs"]["key"]["value"]
        assert secret not in f"{plan}{done}{quorate.audit()}{(tmp_path / 'state.sqlite').read_bytes()!r}"
        private = [file for file in work.rglob("*") if file.is_file() and ".terraform" not in file.parts]
        assert {stat.S_IMODE(file.stat().st_mode) & 0o077 for file in private} == {0} | {
            stat.S_IMODE(file.stat().st_mode) & 0o077 for file in private if file.name == ".terraform.lock.hcl"
        }
        assert stat.S_IMODE(work.stat().st_mode) == 0o700
        assert "There is no plan" in await quorate.refusal("terraform_apply", **arguments, plan=plan["plan"])
        assert "There is no plan" in await quorate.refusal("terraform_apply", **arguments, plan="../../../etc/passwd")
        again = await quorate.facts("terraform_plan", **arguments)
        assert again["next"] == "Nothing to do", "settings and secrets are those that were applied"


@pytest.mark.thorough
async def test_a_plan_that_replaces_something_is_destroy_and_needs_the_operator(tmp_path):
    async with house(
        tmp_path, homelab={"catalogue": catalogue(tmp_path)}, access=Access.ADMIN, approval=Approval.ASK
    ) as built:
        quorate = built.quorate
        arguments = {"service": "records", "host": "nas"}
        first = await quorate.facts("terraform_plan", **arguments)
        await quorate.facts("terraform_apply", **arguments, plan=first["plan"])  # creates only: needs no approval
        second = await quorate.facts("terraform_plan", **arguments, settings={"version": "2"})
        assert second["counts"] == {"replace": 1}
        refusal = await quorate.refusal("terraform_apply", **arguments, plan=second["plan"])
        assert "approv" in refusal.lower()
        assert quorate.audit()[-1]["risk"] == "destroy"


@pytest.mark.thorough
async def test_operate_access_may_create_but_not_replace(tmp_path):
    async with house(tmp_path, homelab={"catalogue": catalogue(tmp_path)}, access=Access.OPERATE) as built:
        quorate = built.quorate
        arguments = {"service": "records", "host": "nas"}
        await quorate.facts("service_install", **arguments)
        refusal = await quorate.refusal("service_upgrade", **arguments, to="2")
        assert "admin" in refusal


@pytest.mark.thorough
async def test_drift_is_seen_and_everything_is_destroyed_in_the_end(tmp_path):
    async with house(tmp_path, homelab={"catalogue": catalogue(tmp_path)}) as built:
        quorate = built.quorate
        arguments = {"service": "records", "host": "nas"}
        assert "was not created" in await quorate.refusal("terraform_refresh", **arguments)
        await quorate.facts("service_install", **arguments)
        assert (await quorate.facts("terraform_refresh", **arguments))["drifted"] is False
        weather(tmp_path, "stormy")
        drift = await quorate.facts("terraform_refresh", **arguments)
        assert (drift["drifted"], drift["outputs_changed"]) == (True, ["weather"])
        assert "data=true" in await quorate.refusal("service_uninstall", **arguments)
        gone = await quorate.facts("terraform_destroy", **arguments)
        assert sorted(gone["destroyed"]) == ["terraform_data.first", "terraform_data.second"]
        assert not (tmp_path / "work/terraform/nas/records").exists()
        assert (await quorate.facts("service_status", host="nas"))["services"] == "none"


@pytest.mark.thorough
async def test_a_failure_halfway_says_what_was_done_and_the_rest_can_be_planned(tmp_path):
    folder = catalogue(tmp_path, TEMPLATE + FAILING)
    async with house(tmp_path, homelab={"catalogue": folder}) as built:
        quorate = built.quorate
        arguments = {"service": "records", "host": "nas"}
        refusal = await quorate.refusal("service_install", **arguments)
        assert "local-exec" in refusal
        assert "Not done: terraform_data.third" in refusal
        assert (await quorate.facts("service_status", **arguments))["kept"] == "failed"
        catalogue(tmp_path)
        plan = await quorate.facts("terraform_plan", **arguments)
        assert plan["counts"] == {"destroy": 1}, "what failed halfway is taken away"


@pytest.mark.thorough
async def test_what_was_made_halfway_keeps_its_settings_and_secrets_and_can_be_taken_away(tmp_path):
    required = TEMPLATE.replace("colour: {default: red, about: Colour}", "colour: {about: Colour}")
    folder = catalogue(tmp_path, required + FAILING)
    async with house(tmp_path, homelab={"catalogue": folder}) as built:
        quorate = built.quorate
        arguments = {"service": "records", "host": "nas"}
        await quorate.refusal("service_install", **arguments, settings={"colour": "green"})
        state = tmp_path / "work/terraform/nas/records/terraform.tfstate"
        secret = json.loads(state.read_text())["outputs"]["key"]["value"]
        catalogue(tmp_path, required)
        await quorate.facts("service_install", **arguments)
        after = json.loads(state.read_text())
        assert (after["outputs"]["key"]["value"], "green on nas" in state.read_text()) == (secret, True)
        catalogue(tmp_path, required + FAILING)
        await quorate.refusal("service_install", **arguments, settings={"colour": "blue"})
        await quorate.facts("terraform_destroy", **arguments)
        assert not state.exists()


async def test_a_host_and_a_guest_never_share_a_state(tmp_path):
    folder = catalogue(tmp_path)
    async with house(tmp_path, {"demo_200": {}}, homelab={"catalogue": folder}) as built:
        await built.quorate.facts("service_install", service="records", host="demo_200")
        assert "was not created" in await built.quorate.refusal("terraform_refresh", service="records", host="demo/200")


async def test_a_wrong_template_is_reported_in_the_words_of_the_program(tmp_path):
    folder = catalogue(tmp_path, TEMPLATE + "    nonsense {}\n")
    async with house(tmp_path, homelab={"catalogue": folder}) as built:
        refusal = await built.quorate.refusal("terraform_plan", service="records", host="nas")
        assert "Unsupported block type" in refusal


@pytest.mark.parametrize("name", [name for name, template in load_packaged().items() if template.terraform])
def test_the_files_of_the_catalogue_are_understood(name):
    program = shutil.which("tofu") or shutil.which("terraform") or "terraform"
    for text in load_packaged()[name].terraform.values():
        done = subprocess.run([program, "fmt", "-no-color", "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == text, "it is written as the program would write it"
