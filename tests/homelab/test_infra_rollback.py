"""An infrastructure plan that breaks at every step: what was done and what was not, going on, and going back."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest

from quorate.secret import Secret
from tests.rigs.infra_hosts import InfraLab, infra_lab
from tests.rigs.mcp_session import text_of

pytestmark = pytest.mark.anyio

CHAIN = ["db", "cache", "app", "web"]
HOSTS = {"db": "one", "cache": "two", "app": "one", "web": "two"}


def chain_document() -> dict[str, Any]:
    before = [None, *CHAIN]
    return {
        "name": "chain",
        "workloads": {
            name: {"host": HOSTS[name], "image": f"{name}:1", "needs": [before[at]] if before[at] else []}
            for at, name in enumerate(CHAIN)
        },
    }


def state_of(lab: InfraLab) -> dict[str, Any]:
    """All that a person would look at: every container with what makes it, but for its id."""
    return {
        host: {
            name: {key: container[key] for key in ("Config", "HostConfig", "Mounts")}
            | {"status": container["State"]["Status"]}
            for name, container in sorted(engine.containers.items())
        }
        for host, engine in lab.engines.items()
    }


def furnish(lab: InfraLab) -> None:
    """What was there before: one that runs, one that is replaced by the document, one that is stopped."""
    lab.engines["one"].add("old", "old:3")
    lab.engines["two"].add("asleep", "asleep:1", state="exited")
    lab.engines["one"].images |= {"old:3"}
    lab.engines["two"].images |= {"asleep:1"}


async def backed_up(lab: InfraLab, **more: Any) -> dict[str, Any]:
    done = await lab.quorate.facts("infra_backup", scope=["workloads", "services"], **more)
    step: dict[str, Any] = done["steps"][-1]
    return step


@pytest.mark.thorough
@pytest.mark.parametrize("broken", CHAIN)
async def test_after_a_failure_at_any_step_it_goes_on_from_there_and_can_be_rolled_back(tmp_path, broken):
    async with infra_lab(tmp_path, register=True) as lab:
        furnish(lab)
        before = state_of(lab)
        backup = await backed_up(lab)
        at = CHAIN.index(broken)
        for name in CHAIN:
            if name != broken:
                lab.engines[HOSTS[name]].images.add(f"{name}:1")
        lab.engines[HOSTS[broken]].pull_error = "the registry is on fire"

        answer = await lab.quorate.call("infra_apply", document=chain_document())
        assert answer.is_error
        text = text_of(answer)
        steps = answer.structured_content["steps"] if answer.structured_content else []
        assert [step["state"] for step in steps] == ["done"] * at + ["failed"] + ["not tried"] * (3 - at)
        assert "the registry is on fire" in text
        assert "infra_apply plan=chain-" in text
        assert [name for name in CHAIN if name in lab.running(HOSTS[name])] == CHAIN[:at]

        plan = await lab.quorate.facts("infra_plan", document=chain_document())
        assert [change["what"] for change in plan["changes"]] == [f"workload {name}" for name in CHAIN[at:]]
        assert [step["state"] for step in plan["last_run"]] == ["done"] * at + ["failed"]
        assert broken in plan["last_run"][-1]["step"]

        lab.engines[HOSTS[broken]].pull_error = ""
        counts = [len(engine.bodies) for engine in lab.engines.values()]
        done = await lab.quorate.facts("infra_apply", plan=plan["plan"])
        assert done["result"] == "done"
        assert sum(len(engine.bodies) for engine in lab.engines.values()) - sum(counts) == 4 - at
        assert all(name in lab.running(HOSTS[name]) for name in CHAIN)

        back = await lab.quorate.facts("infra_rollback", backup=backup["backup"])
        assert "match the backup" in back["proved"]
        assert state_of(lab) == before
        assert (await lab.quorate.facts("infra_rollback", backup=backup["backup"]))["result"] == "nothing to do"


@pytest.mark.thorough
async def test_a_rollback_from_the_middle_brings_back_what_was_removed_replaced_and_stopped(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        furnish(lab)
        await lab.quorate.facts("infra_apply", document=chain_document())
        before = state_of(lab)
        backup = await backed_up(lab)
        await lab.quorate.facts("workload_remove", host="one", name="old")
        await lab.quorate.facts("workload_power", host="two", name="asleep", action="start")
        await lab.quorate.facts("workload_power", host="one", name="db", action="stop")
        changed = chain_document()
        changed["workloads"]["web"] |= {"image": "web:2", "memory": "64M"}
        changed["workloads"]["more"] = {"host": "two", "image": "more:1"}
        await lab.quorate.facts("infra_apply", document=changed)
        plan = await lab.quorate.facts("infra_rollback", backup=backup["backup"], dry_run=True)
        calls = [step["call"] for step in plan["steps"]]
        assert calls.index("drop docker more") < next(at for at, call in enumerate(calls) if "docker web" in call)
        assert any(call.startswith("restore docker old sha256:") for call in calls)
        assert any(call.startswith("replace docker web sha256:") for call in calls)
        assert "stop docker asleep" in calls
        await lab.quorate.facts("infra_rollback", backup=backup["backup"])
        assert state_of(lab) == before


async def test_files_of_services_come_back_with_their_rights_and_later_ones_go(tmp_path):
    folder = tmp_path / "srv"
    (folder / "dns").mkdir(parents=True)
    kept = folder / "dns" / ".env"
    kept.write_text("WORD=first\n")
    kept.chmod(0o600)
    (folder / "dns" / "compose.yaml").write_text("services: {}\n")
    async with infra_lab(tmp_path, "one", register=True, homelab={"services_folder": str(folder)}) as lab:
        backup = await backed_up(lab)
        kept.write_text("WORD=second\n")
        kept.chmod(0o644)
        (folder / "dns" / "compose.yaml").unlink()
        (folder / "dns" / "later").write_text("x")
        back = await lab.quorate.facts("infra_rollback", backup=backup["backup"])
        assert "2 pieces" in back["proved"]
        assert kept.read_text() == "WORD=first\n"
        assert kept.stat().st_mode & 0o777 == 0o600
        assert (folder / "dns" / "compose.yaml").read_text() == "services: {}\n"
        assert not (folder / "dns" / "later").exists()


async def test_the_archive_is_private_and_sealed_and_a_changed_one_is_refused(tmp_path):
    folder = tmp_path / "srv"
    (folder / "dns").mkdir(parents=True)
    (folder / "dns" / ".env").write_text("WORD=canary-4711\n")
    settings = {"services_folder": str(folder), "passphrase": Secret("four random words here")}
    async with infra_lab(tmp_path, "one", register=True, homelab=settings) as lab:
        backup = await backed_up(lab, name="nightly")
        assert backup["encrypted"] is True
        assert backup["backup"].startswith("nightly-")
        [file] = (lab.built.settings.work / "backups").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert b"canary" not in file.read_bytes()
        assert "canary" not in json.dumps(backup)
        (folder / "dns" / ".env").write_text("WORD=other\n")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        assert "was changed" in await lab.quorate.refusal("infra_rollback", backup=backup["backup"])
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        await lab.quorate.facts("infra_rollback", backup=backup["backup"])
        assert (folder / "dns" / ".env").read_text() == "WORD=canary-4711\n"


async def test_backups_are_listed_newest_first_and_by_device(tmp_path):
    async with infra_lab(tmp_path, "one", "two", register=True) as lab:
        first = (await backed_up(lab, devices=["one"]))["backup"]
        second = (await backed_up(lab, devices=["two"], name="later"))["backup"]
        rows = await lab.quorate.rows("infra_backup_list")
        assert {row["backup"]: row["devices"] for row in rows} == {first: "one", second: "two"}
        assert [row["backup"] for row in await lab.quorate.rows("infra_backup_list", device="two")] == [second]


async def test_an_unknown_backup_is_refused_with_those_that_exist(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        backup = await backed_up(lab)
        assert backup["backup"] in await lab.quorate.refusal("infra_rollback", backup="nothing")
        assert "has no network" in await lab.quorate.refusal(
            "infra_rollback", backup=backup["backup"], scope=["network"]
        )


async def test_a_device_that_does_not_answer_does_not_cost_the_others_their_backup(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        away = lab.host("two") | {"port": 1}
        await lab.quorate.facts("host_register", host="away", verify=False, **away)
        backup = await backed_up(lab)
        assert backup["devices"] == ["one", "two"]
        assert "away" in backup["not_backed_up"]


def _tar(**files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"data/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.mark.thorough
async def test_what_is_in_volumes_is_kept_and_put_back_if_asked_for(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        engine = lab.engines["one"]
        await lab.quorate.facts("workload_deploy", host="one", name="db", image="db:1", volumes=["rows:/srv/data"])
        engine.files["db", "/srv/data"] = _tar(table="first")
        backup = await backed_up(lab, data=True)
        engine.files["db", "/srv/data"] = _tar(table="second", later="x")
        untouched = await lab.quorate.facts("infra_rollback", backup=backup["backup"])
        assert untouched["result"] == "nothing to do"
        wrong = await lab.quorate.refusal("infra_rollback", backup=backup["backup"], data=True)
        assert "differ from the backup" in wrong  # the stand-in does not unpack, so that nothing has changed there
        assert engine.files["db", "/srv"] == _tar(table="first")
        engine.files["db", "/srv/data"] = _tar(table="first", later="x")
        done = await lab.quorate.facts("infra_rollback", backup=backup["backup"], data=True)
        assert done["more_than_then"] == ["data/later"]
        assert lab.running("one") == {"db": "db:1"}


async def test_another_machine_under_the_same_name_is_left_alone(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        backup = await backed_up(lab)
        await lab.quorate.facts("workload_deploy", host="one", name="db", image="db:1")
        cat = tmp_path / "one-machine" / "tools" / "cat"
        cat.unlink()
        cat.write_text(f'#!/bin/sh\ncase "$*" in *machine-id*) echo {"feed" * 8};; *) exec /bin/cat "$@";; esac\n')
        cat.chmod(0o755)
        assert "is not the machine" in await lab.quorate.refusal("infra_rollback", backup=backup["backup"])
        assert lab.running("one") == {"db": "db:1"}
