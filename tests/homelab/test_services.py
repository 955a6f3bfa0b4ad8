"""Services of the catalog by Compose: installed, healthy, changed, upgraded, taken back, taken away."""

from __future__ import annotations

import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from quorate.config import Access
from quorate.config.policy import Policy, Rule
from quorate.homelab.services.catalogue import load_packaged
from quorate.homelab.services.installations import STALE_SECONDS, Installation, Installations
from tests.rigs.compose_host import ComposeHost
from tests.rigs.homelab import House, house

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def with_service(tmp_path: Path, **options) -> AsyncIterator[tuple[House, ComposeHost, int]]:
    host = ComposeHost(tmp_path / "box-machine")
    async with host.page() as port, house(tmp_path, {"box": host.options}, homelab=host.settings, **options) as built:
        yield built, host, port


async def test_the_catalogue_is_listed_and_found_by_plain_words(tmp_path):
    async with house(tmp_path, {}) as built:
        rows = await built.quorate.rows("service_list")
        assert {row["service"] for row in rows} == set(load_packaged())
        assert len(rows) >= 14
        assert {method for row in rows for method in row["methods"].split(", ")} == {"compose", "ansible", "terraform"}
        [photos] = await built.quorate.rows("service_list", words="photos family")
        assert photos["service"] == "immich"
        facts = await built.quorate.facts("service_info", service="pihole")
        assert facts["needs"]["ports"] == ["53/tcp", "53/udp", "web_port"]
        assert ["password", "secret", "generated", "Password of the web page"] in facts["settings"]["rows"]
        assert facts["backup"] == ["etc-pihole"]
        assert "Did you mean 'pihole'" in await built.quorate.refusal("service_info", service="pihol")


@pytest.mark.parametrize("name", sorted(load_packaged()))
def test_every_template_uses_each_of_its_settings_and_no_other(name):
    template = load_packaged()[name]
    text = "\n".join(
        (template.compose, *template.terraform.values(), template.ansible.playbook if template.ansible else "")
    )
    names = [*template.parameters, *(["version"] if template.version else [])]
    for name in names:
        spelled = {"compose": f"${{{name.upper()}}}", "ansible": name, "terraform": name}[template.methods[0]]
        assert spelled in text, name
    used = {part.split("}")[0] for part in template.compose.replace("$$", "").split("${")[1:]}
    assert used <= {name.upper() for name in names}
    assert template.health
    assert template.needs.ports


async def test_a_wrong_file_is_reported_and_the_others_stay_usable(tmp_path):
    wrong = {
        "typo": "title: x\nabout: y\ncompos: z\n",
        "no-yaml": "title: [",
        "nothing": "title: x\nabout: y\n",
        "health": "title: x\nabout: y\ncompose: 'services: {a: {image: b}}'\nhealth: {http: /x, port: prot}\n",
        "deep": "title: " + "[" * 3000,
        "playbook": "title: x\nabout: y\nansible: {playbook: 'apt install nginx'}\n",
        "secret": "title: x\nabout: y\ncompose: 'services: {a: {}}'\n"
        "parameters: {p: {about: q, type: secret, default: hunter2}}\n",
    }
    folder = tmp_path / "catalogue"
    folder.mkdir()
    for name, text in wrong.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "gitea.yaml").write_text("title: Our Gitea\nabout: y\ncompose: 'services: {a: {image: b}}'\n")
    async with house(tmp_path, {}) as built:
        facts = await built.quorate.facts("service_list")
        assert {Path(file).stem for file in facts["broken"]} == set(wrong)
        assert "compos" in facts["broken"][str(folder / "typo.yaml")]
        assert "list of plays" in facts["broken"][str(folder / "playbook.yaml")]
        assert "'prot' is neither a port" in facts["broken"][str(folder / "health.yaml")]
        assert (await built.quorate.facts("service_info", service="gitea"))["title"] == "Our Gitea"
        assert "neither a port" in await built.quorate.refusal("service_info", service="health")


async def test_a_service_is_installed_healthy_and_taken_away_and_its_data_stays(tmp_path):
    async with with_service(tmp_path) as (built, host, port):
        quorate = built.quorate
        checked = await quorate.facts("service_check", service="page", host="box")
        assert checked["fits"] == "yes"
        settings = {"web_port": port, "colour": "blue"}
        planned = await quorate.facts("service_install", service="page", host="box", settings=settings, dry_run=True)
        assert "docker compose -p quorate-page" in str(planned)
        assert not host.services.exists()

        done = await quorate.facts("service_install", service="page", host="box", settings=settings)
        assert "healthy" in str(done) or done["health"] == "ok"
        files = host.services / "page"
        written = (files / ".env").read_text()
        assert f"WEB_PORT='{port}'" in written
        assert stat.S_IMODE((files / ".env").stat().st_mode) == 0o600
        secret = next(line for line in written.splitlines() if line.startswith("PASSWORD")).split("'")[1]
        assert len(secret) == 24
        facts = await quorate.facts("service_status", service="page", host="box")
        assert (facts["state"], facts["health"], facts["version"], facts["drift"]) == ("running", "ok", "1.0", "none")
        assert secret not in f"{planned}{done}{facts}{quorate.audit()}{(tmp_path / 'state.sqlite').read_bytes()!r}"
        [row] = await quorate.rows("service_list", words="page tests")
        assert row["installed_on"] == "box"

        gone = await quorate.facts("service_uninstall", service="page", host="box")
        assert "kept in" in str(gone)
        assert host.version == ""
        await quorate.facts("service_install", service="page", host="box")
        assert (files / ".env").read_text() == written, "the secret and the settings of the data that stayed"
        await quorate.facts("service_uninstall", service="page", host="box", data=True)
        assert not files.exists()
        assert (await quorate.facts("service_status", host="box"))["services"] == "none"


async def test_changes_by_hand_are_reported_as_drift(tmp_path):
    async with with_service(tmp_path) as (built, host, port):
        await built.quorate.facts("service_install", service="page", host="box", settings={"web_port": port})
        (host.services / "page/compose.yaml").write_text("services: {}\n")
        (host.folder / "containers").unlink()
        facts = await built.quorate.facts("service_status", service="page", host="box")
        assert facts["drift"] == ["compose.yaml was changed", "page has no container"]


@pytest.mark.thorough
async def test_an_upgrade_that_does_not_get_healthy_is_taken_back(tmp_path):
    async with with_service(tmp_path) as (built, host, port):
        quorate = built.quorate
        await quorate.facts("service_install", service="page", host="box", settings={"web_port": port})
        before = {file.name: file.read_bytes() for file in (host.services / "page").iterdir()}
        refusal = await quorate.refusal("service_upgrade", service="page", host="box", to="2.0-broken")
        assert "does not become healthy" in refusal
        assert "it answers 503" in refusal
        assert "runs again" in refusal
        assert "the last words" in refusal
        assert host.version == "1.0"
        assert {file.name: file.read_bytes() for file in (host.services / "page").iterdir()} == before
        assert "tag sha256:feed example/page:1.0" in host.calls
        kept = await quorate.facts("service_status", service="page", host="box")
        assert (kept["kept"], kept["version"], kept["health"]) == ("installed", "1.0", "ok")
        assert (kept["last_attempt"], "why" in kept) == ("The page does not become healthy.", False)
        upgraded = await quorate.facts("service_upgrade", service="page", host="box", to="2.0")
        assert host.version == "2.0"
        assert "2.0" in str(upgraded)
        facts = await quorate.facts("service_status", service="page", host="box")
        assert (facts["version"], facts["catalogue_has"], facts["drift"]) == ("2.0", "1.0", "none")


async def test_an_upgrade_to_an_image_that_crashes_is_taken_back_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("quorate.homelab.services.compose.EVERY", 0.05)
    async with with_service(tmp_path) as (built, host, port):
        quorate = built.quorate
        template = host.catalogue / "page.yaml"
        template.write_text(template.read_text().replace("seconds: 30", "seconds: 1800"))
        await quorate.facts("service_install", service="page", host="box", settings={"web_port": port})
        refusal = await quorate.refusal("service_upgrade", service="page", host="box", to="2.0-crashing")
        assert "page-1 is restarting" in refusal
        assert "runs again" in refusal
        assert host.version == "1.0"


@pytest.mark.thorough
async def test_a_failure_says_what_was_done_what_was_not_and_how_to_go_on(tmp_path):
    async with with_service(tmp_path) as (built, host, port):
        host.say("no-pull")
        refusal = await built.quorate.refusal(
            "service_install", service="page", host="box", settings={"web_port": port}
        )
        assert "manifest unknown" in refusal
        assert "service_uninstall service=page" in refusal
        assert "write the files" in refusal
        assert "start the containers" in refusal
        kept = await built.quorate.facts("service_status", service="page", host="box")
        assert kept["kept"] == "failed"
        host.unsay("no-pull")
        await built.quorate.facts("service_install", service="page", host="box", settings={"web_port": port})
        assert (await built.quorate.facts("service_status", service="page", host="box"))["kept"] == "installed"


@pytest.mark.thorough
async def test_settings_and_secrets_are_kept_to_the_letter_by_what_is_done_later(tmp_path, monkeypatch):
    monkeypatch.setenv("HOMELAB_PAGE_PASSWORD", '"quoted" $HOME "twice"')
    async with with_service(tmp_path) as (built, host, port):
        text = (host.catalogue / "page.yaml").read_text()
        (host.catalogue / "page.yaml").write_text(
            text.replace("parameters:", "parameters:\n  greeting: {default: hello, about: Words}")
        )
        settings = {"web_port": port, "greeting": "", "password": "env:HOMELAB_PAGE_PASSWORD"}
        await built.quorate.facts("service_install", service="page", host="box", settings=settings)
        written = (host.services / "page/.env").read_text()
        assert "GREETING=''" in written
        assert """PASSWORD='"quoted" $HOME "twice"'""" in written
        await built.quorate.facts("service_upgrade", service="page", host="box", to="2.0")
        assert (host.services / "page/.env").read_text() == written.replace("VERSION='1.0'", "VERSION='2.0'")


@pytest.mark.thorough
async def test_a_service_whose_files_are_gone_is_not_called_removed_while_its_containers_run(tmp_path):
    async with with_service(tmp_path) as (built, host, port):
        arguments = {"service": "page", "host": "box"}
        await built.quorate.facts("service_install", **arguments, settings={"web_port": port})
        shutil.rmtree(host.services / "page")
        refusal = await built.quorate.refusal("service_uninstall", **arguments)
        assert "quorate-page-page-1 of quorate-page is still there" in refusal
        assert "workload_remove" in refusal
        (host.folder / "containers").unlink()
        await built.quorate.facts("service_uninstall", **arguments)
        assert (await built.quorate.facts("service_status", host="box"))["services"] == "none"


async def test_settings_that_do_not_fit_are_refused_before_anything_is_done(tmp_path):
    async with with_service(tmp_path) as (built, host, _):

        async def refused(**settings):
            return await built.quorate.refusal("service_install", service="page", host="box", settings=settings)

        assert "'colour'" in await refused(colour="green")
        assert "no setting 'color'" in await refused(color="red")
        assert "is not valid for" in await refused(web_port="80; id")
        assert "is not valid for" in await refused(version="1.0 $(id)")
        assert "must be a reference" in await refused(password="hunter2-hunter2")
        wrong = {"color": "red"}
        assert "no setting 'color'" in await built.quorate.refusal(
            "service_check", service="page", host="box", settings=wrong
        )
        assert "either host or place" in await built.quorate.refusal("service_install", service="page")
        assert not host.services.exists()


async def test_a_taken_port_is_reported_before_anything_is_done(tmp_path):
    async with with_service(tmp_path) as (built, host, port):
        text = (host.catalogue / "page.yaml").read_text()
        (host.catalogue / "page.yaml").write_text(text.replace("ports: []", "ports: [web_port]"))
        settings = {"web_port": port}  # where the page of the test listens already
        checked = await built.quorate.facts("service_check", service="page", host="box", settings=settings)
        assert checked["fits"] == "no"
        assert f"port {port}/tcp: used" in await built.quorate.refusal(
            "service_install", service="page", host="box", settings=settings
        )
        assert not host.services.exists()


async def test_a_host_without_compose_is_refused_with_advice(tmp_path):
    async with with_service(tmp_path) as (built, host, _):
        host.program("docker", "#!/bin/sh\necho docker: unknown command >&2\nexit 1\n")
        refusal = await built.quorate.refusal("service_install", service="page", host="box")
        assert "no Compose on host box" in refusal
        assert "docker=true" in refusal


@pytest.mark.thorough
async def test_an_installation_that_outlasts_the_call_goes_on_and_can_be_asked_for(tmp_path):
    async with with_service(tmp_path) as (built, host, port):
        arguments = {"service": "page", "host": "box"}
        host.say("slow")
        begun = await built.quorate.facts("service_install", **arguments, settings={"web_port": port}, wait=0)
        assert "service_status host=box service=page" in begun["next"]
        assert "page on box is being changed" in await built.quorate.refusal("service_install", **arguments)
        assert (await built.quorate.facts("service_status", **arguments))["underway"] == {"state": "going on"}
        await built.quorate.clock.advance(STALE_SECONDS + 1)  # and no server has claimed it since
        facts = await built.quorate.facts("service_status", **arguments)  # so the host itself is asked how far it came
        assert (facts["kept"], "underway" in facts) == ("failed", False)
        assert "The server died while it was installing it" in facts["why"]
        host.unsay("slow")
        with anyio.fail_after(60):
            while (facts := await built.quorate.facts("service_status", **arguments))["kept"] != "installed":
                await anyio.lowlevel.checkpoint()
        assert (facts["kept"], facts["state"], host.version) == ("installed", "running", "1.0")


async def test_no_record_outlives_its_host_or_its_template_in_silence(tmp_path):
    async with with_service(tmp_path) as (built, host, port):
        quorate = built.quorate
        await quorate.facts("service_install", service="page", host="box", settings={"web_port": port})
        row = next(row for row in await quorate.rows("service_list") if row["service"] == "page")
        assert row["installed_on"] == "box"
        await quorate.facts("host_update", host="box", address="127.0.0.2")
        row = next(row for row in await quorate.rows("service_list") if row["service"] == "page")
        assert row["installed_on"] == "box (its host is another machine now)"
        await quorate.facts("host_update", host="box", address="127.0.0.1")
        for file in built.settings.catalogue.glob("page*"):
            file.rename(file.with_suffix(".away"))
        row = next(row for row in await quorate.rows("service_list") if row["service"] == "page")
        assert "its template is no longer in the catalog" in row["about"]
        assert row["installed_on"] == "box"
        shown = await quorate.facts("host_remove", host="box", dry_run=True)
        assert "page on it keep running" in shown["warnings"][0]
        done = await quorate.facts("host_remove", host="box")
        assert done["records_forgotten"] == ["page"]
        assert "page" not in {row["service"] for row in await quorate.rows("service_list")}
        del host


async def test_a_record_says_that_its_guest_its_cluster_or_its_host_is_gone(tmp_path):
    async with with_service(tmp_path, toolsets=("homelab", "provision")) as (built, _, _):
        quorate, ledger = built.quorate, Installations(built.quorate.app.store)
        for place in ("demo/108", "lost/100", "forgotten"):
            await ledger.keep(Installation("page", place, "compose", "installed"))
        info = await quorate.facts("service_info", service="page")
        gone = "forgotten (its host is no longer registered), lost/100 (its cluster is gone)"
        assert info["installed_on"] == f"demo/108, {gone}"
        await quorate.facts("guest_delete", guest=108)
        info = await quorate.facts("service_info", service="page")
        assert info["installed_on"] == f"demo/108 (its guest is gone), {gone}"


@pytest.mark.thorough
@pytest.mark.parametrize("state", ["installing", "upgrading"])
async def test_work_whose_server_died_is_resolved_from_what_the_host_shows(tmp_path, state):
    async with with_service(tmp_path) as (built, host, port):
        quorate, ledger = built.quorate, Installations(built.quorate.app.store)
        await quorate.facts("service_install", service="page", host="box", settings={"web_port": port})
        done = await ledger.find("box", "page")
        assert done is not None
        await ledger.keep(msgspec.structs.replace(done, state=state, version="0.9"))
        [status] = (await quorate.facts("service_status", host="box"))["services"]
        assert (status["kept"], status["state"], status["version"]) == ("installed", "running", "1.0")
        await ledger.keep(msgspec.structs.replace(done, state=state))
        (host.folder / "containers").unlink()
        [status] = (await quorate.facts("service_status", host="box"))["services"]
        assert status["kept"] == "failed"
        assert status["why"] == f"The server died while it was {state} it; on the host: stopped, its data is there"
        installation = await ledger.find("box", "page")
        assert installation is not None
        assert installation.state == "failed"


@pytest.mark.thorough
async def test_work_that_a_server_died_over_is_free_again_and_work_that_goes_on_is_not(tmp_path):
    async with with_service(tmp_path) as (built, _, port):
        quorate, ledger = built.quorate, Installations(built.quorate.app.store)
        arguments = {"service": "page", "host": "box", "settings": {"web_port": port}}
        claim = await ledger.begin_work("box", "page")  # of another server
        await quorate.clock.advance(STALE_SECONDS - 1)
        await ledger.renew_work(claim)
        await quorate.clock.advance(STALE_SECONDS - 1)
        assert "page on box is being changed" in await quorate.refusal("service_install", **arguments)
        await quorate.clock.advance(2)
        await quorate.facts("service_install", **arguments)
        other_claim = await ledger.begin_work("box", "page")
        await ledger.end_work(claim)  # the other one wakes up: it ends nobody else's work
        assert "page on box is being changed" in await quorate.refusal("service_install", **arguments)
        await ledger.end_work(other_claim)
        await quorate.facts("service_install", **arguments)


async def test_a_host_that_rules_deny_gets_no_service(tmp_path):
    async with with_service(tmp_path) as (built, host, _):
        app = built.quorate.app
        app.adopt(replace(app.settings, policy=Policy((Rule("mine", False, "change", hosts=("box",)),))))
        assert "'mine'" in await built.quorate.refusal("service_install", service="page", host="box")
        assert not host.services.exists()


async def test_who_may_only_read_sees_the_catalogue_and_changes_nothing(tmp_path):
    async with house(tmp_path, {}, register=False, access=Access.READ, toolsets=("services",)) as built:
        listed = {tool.name for tool in (await built.quorate.client.list_tools()).tools}
        assert {name for name in listed if name.startswith(("service_", "ansible_", "terraform_"))} == {
            "service_info",
            "service_list",
        }
