"""Undo: exact, or refused in advance."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.guests.guest import Guest
from quorate.operations.registry import operations
from quorate.pve import values
from tests.pipeline.test_policy import policy
from tests.rigs.mcp_session import Rig, rig, second_server, text_of
from tests.rigs.several_clusters import several_clusters

pytestmark = pytest.mark.anyio

VMS, CONTAINERS = (102, 104, 105, 107, 108, 109), (200, 201, 203, 204, 206)


async def config_of(quorate: Rig, vmid: int) -> dict[str, Any]:
    """As PVE shows it, with what waits for a restart; in the demo, vm 104 has such a change from the start."""
    assert quorate.app.cluster is not None
    config = await (await quorate.app.cluster.guest(vmid)).get("config")
    return {key: value for key, value in config.items() if key != "digest"}


def last_change(quorate: Rig) -> str:
    return str(next(entry["change"] for entry in reversed(quorate.audit()) if "change" in entry))


async def test_a_change_of_options_is_undone_and_redone(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        before = await config_of(quorate, 108)
        changed = await quorate.facts("guest_configure", guest=108, cores=4, description="new", unset=["tags"])
        after = await config_of(quorate, 108)
        assert changed["change"] == last_change(quorate)
        undone = await quorate.facts("change_undo", change=changed["change"])
        assert await config_of(quorate, 108) == before
        assert undone["undoes"] == changed["change"] != undone["change"]
        await quorate.facts("change_undo", change=undone["change"])
        assert await config_of(quorate, 108) == after


async def test_what_is_undone_already_names_the_change_that_undid_it(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        changed = await quorate.facts("guest_configure", guest=108, cores=4)
        await quorate.facts("change_undo", change=changed["change"], dry_run=True)
        undone = await quorate.facts("change_undo", change=changed["change"])
        refused = await quorate.refusal("change_undo", change=changed["change"])
        assert f"already undone by {undone['change']}" in refused
        assert f"change_undo change={undone['change']}" in refused


async def test_what_changed_again_since_then_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        await quorate.facts("guest_configure", guest=108, cores=4)
        change = last_change(quorate)
        await quorate.facts("guest_configure", guest=108, cores=2)
        assert "cores changed again" in await quorate.refusal("change_undo", change=change)


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("disk_add", {"guest": 108, "size": 2}, "is a disk"),
        ("cloudinit_set", {"guest": 107, "password": "long-enough-secret"}, "secret"),
        ("guest_power", {"guest": 108, "action": "start"}, "Only changes of options can be undone"),
    ],
)
async def test_what_cannot_be_undone_exactly_is_refused_in_advance(
    tmp_path: Path, tool: str, arguments: dict[str, Any], why: str
) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        assert "change" not in await quorate.facts(tool, **arguments)
        text = await quorate.refusal("change_undo", change=last_change(quorate))
        assert why in text


async def test_an_unknown_change_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        refused = await quorate.refusal("change_undo", change="nothing")
        assert "There is no change" in refused
        assert "has its id as `change`" in refused


def same(before: Any, now: Any) -> bool:
    """PVE orders the parts of a value in its own way, and a VM's notes lose a newline at their end."""
    return values.same(str(before).removesuffix("\n"), str(now).removesuffix("\n"))


Change = tuple[str, dict[str, Any]]


def random_options(chance: random.Random, guest: Guest) -> Change:
    options: dict[str, Any] = {
        "cores": chance.randint(1, 8),
        "memory": chance.choice((512, 1024, 3072)),
        "description": chance.choice(("a note", "two\nlines", "ümlaut & %")),
        "tags": chance.choice((["a"], ["b", "c"], [])),
        "onboot": chance.random() < 0.5,
        "protection": chance.random() < 0.5,
        "startup": chance.choice(("order=3", "order=1,up=20")),
        **(
            {"cpu": "host", "balloon": 512, "machine": "q35"}
            if guest.kind == "qemu"
            else {"swap": 256, "hostname": "renamed"}
        ),
    }
    names = chance.sample(list(options), chance.randint(1, 4))
    unset = chance.sample(("description", "tags", "onboot", "startup"), chance.choice((0, 0, 1, 2)))
    more = {"unset": unset} if unset else {}
    return "guest_configure", {
        "guest": guest.vmid,
        **{name: options[name] for name in names if name not in unset},
        **more,
    }


def random_card(chance: random.Random, guest: Guest) -> Change:
    if chance.random() < 0.25:
        return "nic_remove", {"guest": guest.vmid, "nic": "net0"}
    card = {"vlan": chance.randint(1, 99), "firewall": chance.random() < 0.5, "rate": chance.choice((0, 5)),
            "link_down": chance.random() < 0.5}  # fmt: skip
    new = {} if chance.random() < 0.3 else {"nic": "net0"}
    return "nic_set", {"guest": guest.vmid, **new, **dict(chance.sample(list(card.items()), 2))}


def random_disk(chance: random.Random, guest: Guest) -> Change:
    first = "scsi0" if guest.kind == "qemu" else "rootfs"
    second = "scsi1" if guest.kind == "qemu" else "mp0"
    mount = {} if guest.kind == "qemu" else {"path": "/data"}
    return chance.choice(
        (
            ("disk_add", {"guest": guest.vmid, "size": 1, **mount}),
            ("disk_change", {"guest": guest.vmid, "action": "resize", "disk": first, "size": "+1G"}),
            ("disk_change", {"guest": guest.vmid, "action": "detach", "disk": second}),
            ("disk_change", {"guest": guest.vmid, "action": "attach", "disk": "unused0", **mount}),
            ("disk_destroy", {"guest": guest.vmid, "disk": "unused0"}),
            ("disk_change", {"guest": guest.vmid, "action": "move", "disk": second, "storage": "nas", "delete": False}),
        )
    )


def random_cloudinit(chance: random.Random, guest: Guest) -> Change:
    settings = {
        "user": chance.choice(("admin", "")),
        "ip": chance.choice(("10.9.0.5/24", "dhcp")),
        "nameserver": chance.choice(("9.9.9.9", "")),
        "searchdomain": "example.org",
        "ssh_keys": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGW2wHx0jGkHtA5xYk1nZ7aLz9q3sF0uVqB1mE4cRk7T new@example",
        "password": "long-enough-secret",
    }
    names = chance.sample(list(settings), chance.randint(1, 2))
    return "cloudinit_set", {"guest": guest.vmid, **{name: settings[name] for name in names}}


def random_call(chance: random.Random, guest: Guest) -> Change:
    """Past the tools that check more, and to what they have in common."""
    if chance.random() < 0.3:
        return "guest_bulk", {"guests": [guest.vmid], "action": chance.choice(("tag", "untag")), "tags": ["a", "bulk"]}
    vm = guest.kind == "qemu"
    params = chance.choice(
        (
            {"cores": 2, "delete": "description"},
            {"boot": "order=net0"} if vm else {"cmode": "shell"},
            {"args": "-no-hpet"} if vm else {"console": 0},
            {"delete": "tags,onboot"},
        )
    )
    path = f"/nodes/{guest.node}/{guest.kind}/{guest.vmid}/config"
    return "api_call", {"method": "PUT", "path": path, "params": params}


def random_change(chance: random.Random, guest: Guest) -> Change:
    makers = [random_options, random_options, random_card, random_disk, random_call]
    return chance.choice([*makers, random_cloudinit] if guest.kind == "qemu" else makers)(chance, guest)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 8))])
async def test_random_changes_and_their_undo_restore_the_identical_configuration(tmp_path: Path, seed: int) -> None:
    """Twenty-five of two hundred for each seed; most are undone, the others are refused before anything happens."""
    chance = random.Random(seed)
    tried, exact = 0, 0
    async with rig(tmp_path, in_memory=True) as quorate:
        while tried < 25:
            vmid = chance.choice((*VMS, *CONTAINERS))
            tool, arguments = random_change(chance, quorate.sim.world.guests[vmid])
            before, entries = await config_of(quorate, vmid), len(quorate.audit())
            answer = await quorate.call(tool, **arguments)
            changes = [entry for entry in quorate.audit()[entries:] if "change" in entry]
            if answer.is_error or not changes:
                continue
            after = await config_of(quorate, vmid)
            undo = await quorate.call("change_undo", change=changes[-1]["change"])
            if undo.is_error:
                assert "cannot be undone" in text_of(undo), (tool, arguments, text_of(undo))
                assert "change" not in (answer.structured_content or {}), (tool, arguments, text_of(undo))
                assert await config_of(quorate, vmid) == after
            else:
                now = await config_of(quorate, vmid)
                differ = {key for key in {*before, *now} if not same(before.get(key), now.get(key))}
                assert not differ, (tool, arguments, {key: (before.get(key), now.get(key)) for key in differ})
                exact += 1
            tried += 1
    assert exact > tried / 2


def test_the_random_changes_use_every_tool_that_changes_a_configuration() -> None:
    chance = random.Random(1)
    used = {random_change(chance, Guest(100, "qemu", "pve1", {}))[0] for _ in range(500)}
    options = {"guest_configure", "guest_bulk", "api_call"}
    assert used == {*options, *(name for name, declared in operations(["configure"]).items() if declared.changes)}


async def test_a_secret_that_was_replaced_is_not_kept_in_the_audit_trail(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        place = "/cluster/metrics/server/flux"
        where = {"server": "192.0.2.7", "port": 8086, "influxdbproto": "https", "bucket": "b", "organization": "o"}
        await quorate.facts(
            "api_call", method="POST", path=place, params={**where, "type": "influxdb", "token": "first-secret"}
        )
        await quorate.facts("api_call", method="PUT", path=place, params={**where, "token": "second-secret"})
        async with second_server(quorate, tmp_path / "later.jsonl") as later:  # it was given neither secret
            await later.facts("api_call", method="PUT", path=place, params={**where, "token": "third-secret"})
        kept = quorate.audit_file.read_text() + (tmp_path / "later.jsonl").read_text()
        assert "flux" in kept
        assert not [word for word in ("first-secret", "second-secret", "third-secret") if word in kept]


async def test_a_refusal_names_no_guest_that_is_hidden_from_the_caller(tmp_path: Path) -> None:
    rule = policy('[[rules]]\nname = "not for you"\ndeny = "read"\nvmids = [108]\n')
    async with (
        rig(tmp_path, in_memory=True) as quorate,
        second_server(quorate, quorate.audit_file, policy=rule) as veiled,
    ):
        name = str(quorate.sim.world.guests[108].config["name"])
        await quorate.facts("guest_configure", guest=108, cores=4)
        await quorate.facts("snapshot_create", guest=108, snapshot="once")
        for entry in quorate.audit():
            refused = await veiled.refusal("change_undo", change=entry["change"])
            assert name not in refused
            assert "108" not in refused.replace(entry["change"], "")  # whose digits are random


async def test_without_an_id_the_last_changes_that_can_be_undone_are_listed_newest_first(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        assert "None of the last changes" in str(await quorate.facts("change_undo"))
        first = await quorate.facts("guest_configure", guest=108, cores=4)
        await quorate.facts("guest_power", guest=108, action="start")
        second = await quorate.facts("guest_configure", guest=109, description="new")
        before = [await config_of(quorate, vmid) for vmid in (108, 109)]
        listed = await quorate.facts("change_undo")
        assert [row["change"] for row in listed["undoable"]] == [second["change"], first["change"]]
        assert "vm 109" in listed["undoable"][0]["plan"]
        assert [await config_of(quorate, vmid) for vmid in (108, 109)] == before
        await quorate.facts("guest_configure", guest=108, cores=2)  # the first change cannot be undone exactly any more
        listed = await quorate.facts("change_undo")
        assert first["change"] not in [row["change"] for row in listed["undoable"]]


async def test_the_list_names_no_guest_that_a_rule_hides(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        await quorate.facts("guest_configure", guest=109, description="new")
        hidden = policy("[[rules]]\nname = 'mine'\nvmids = [109]\ndeny = 'read'\n")
        async with second_server(quorate, tmp_path / "audit.jsonl", in_memory=True, policy=hidden) as other:
            assert "undoable" not in await other.facts("change_undo")


async def test_with_several_clusters_the_journal_knows_the_one_of_a_change(tmp_path: Path) -> None:
    async with several_clusters(tmp_path) as quorate:
        changed = await quorate.facts("guest_configure", guest="scratch", cores=4)
        undone = await quorate.facts("change_undo", change=changed["change"])
        assert undone["cluster"] == "lab"
        assert quorate.sims["lab"].world.guests[302].config["cores"] == 8
        listed = await quorate.facts("change_undo", cluster="lab")
        assert undone["change"] in [row["change"] for row in listed["undoable"]]
        assert "There is no change" in await quorate.refusal("change_undo", change="0123456789abcdef")
        assert "on which cluster" in await quorate.refusal("change_undo")
