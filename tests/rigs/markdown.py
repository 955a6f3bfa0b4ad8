"""Checks gilby125's Markdown against the simulated world or PVE's own answers."""

from __future__ import annotations

import re

from quorate.units import moment
from tests.rigs.compat_session import Done
from tests.rigs.simulated_guests import files
from tests.surfaces.compat.rows import checks


def text(done: Done) -> str:
    return str(done.facts["result"])


def said(done: Done, *parts: str) -> None:
    for part in parts:
        assert part in text(done), text(done)


# -- checks of reads ---------------------------------------------------------------------------------------------------


def blocks(done: Done) -> dict[str, str]:
    """The entries of a list, by their names in bold."""
    entries = text(done).split("\n\n")[1:]
    return {match[1]: entry for entry in entries if (match := re.search(r"^\S+ (?:\S+ )?\*\*(.+?)\*\*", entry))}


def gigabytes(count: int) -> str:
    return f"{count / 1024**3:.2f} GB"


def nodes_are_listed(done: Done) -> None:
    told = blocks(done)
    assert told.keys() == done.world.nodes.keys()
    for node in done.world.nodes.values():
        assert "Status: online" in told[node.name]
        assert f"/ {gigabytes(node.memory)} (" in told[node.name]
        assert re.search(r"Uptime: \d+d \d+h \d+m", told[node.name])


def node_is_told(done: Done) -> None:
    node = done.world.nodes[done.arguments["node"]]
    said(done, f"**Node {node.name}**", f"**CPU**: {node.cpus} x ", f"**Kernel**: {node.kernel}", "**Load Average**: ")


def guests_are_listed(done: Done) -> None:
    expected = [
        guest
        for guest in done.world.guests.values()
        if done.arguments.get("node") in (None, guest.node) and done.arguments.get("type", "all") in ("all", guest.kind)
    ]
    assert expected
    assert len(blocks(done)) == len(expected)
    for guest in expected:
        entry = blocks(done)[guest.name]
        assert f"(ID: {guest.vmid})" in entry
        assert f"Node: {guest.node}" in entry
        assert f"Status: {'template' if guest.template else guest.status}" in entry
        assert f"Type: {'QEMU' if guest.kind == 'qemu' else 'LXC'}" in entry
        assert ("Memory: " in entry) == guest.running


def guest_is_told(done: Done) -> None:
    guest = done.guest()
    memory = int(guest.config["memory"]) * 1024**2
    said(done, f"**{guest.name}** (ID: {guest.vmid})", f"**Node**: {guest.node}", f"**Status**: {guest.status}")
    said(done, f"**Type**: {'QEMU' if guest.kind == 'qemu' else 'LXC'}", f" / {gigabytes(memory)} (", "**Network Out**")


def storages_are_listed(done: Done) -> None:
    node = done.arguments.get("node")
    told = re.findall(r"\*\*(.+?)\*\*\n   • Node: (.+)", text(done))
    expected = {
        (storage.id, name)
        for storage in done.world.storages.values()
        for name in done.world.nodes
        if storage.on_node(name) and node in (None, name)
    }
    assert set(told) == expected
    assert len(told) == len(expected)
    assert text(done).count("Status: Enabled") == len(expected)


def cluster_is_told(done: Done) -> None:
    count = len(done.world.nodes)
    said(done, "**Cluster Health**: 🟢 Healthy", f"**Nodes**: {count}/{count} online")
    said(done, *(f"🟢 {name} - online" for name in done.world.nodes))
    whole = sum(node.memory for node in done.world.nodes.values())
    cores = sum(node.cpus for node in done.world.nodes.values())
    said(done, f" / {gigabytes(whole)} (", f"of {cores} cores")


def templates_are_listed(done: Done) -> None:
    held = done.world.storages["local"].volumes(done.arguments["node"])
    expected = {volume.volid: f"{volume.size / 1024**2:.2f} MB" for volume in held if volume.content == "vztmpl"}
    assert expected
    assert blocks(done).keys() == expected.keys()
    assert all(f"Size: {size}" in blocks(done)[volid] for volid, size in expected.items())


def next_id_is_free(done: Done) -> None:
    assert text(done).endswith(f": {min(set(range(100, 1000)) - set(done.world.guests))}")


def snapshots_are_listed(done: Done) -> None:
    snapshots = done.guest().snapshots
    assert snapshots
    assert blocks(done).keys() - {"Total"} == snapshots.keys()
    for name, snapshot in snapshots.items():
        assert f"Created: {moment(snapshot.snaptime)}" in blocks(done)[name]
        assert (snapshot.description or "").strip() in blocks(done)[name]
    said(done, f"**Total**: {len(snapshots)} snapshot(s)")


async def backups_are_listed(done: Done) -> None:
    path = f"/nodes/{done.arguments['node']}/storage/{done.arguments['storage']}/content"
    expected = {row["volid"]: row for row in await done.get(path, content="backup")}
    assert expected
    assert set(re.findall(r"Volume: (.+)", text(done))) == expected.keys()
    for volid, row in expected.items():
        entry = next(entry for entry in text(done).split("\n\n") if f"Volume: {volid}" in entry)
        assert f"VM ID: {row['vmid']} ({'LXC' if row['subtype'] == 'lxc' else 'QEMU'})" in entry
        assert f"Size: {gigabytes(row['size'])}" in entry
        assert f"Created: {moment(row['ctime'])}" in entry
    said(done, f"**Total**: {len(expected)} backup(s)")


# -- checks of changes -------------------------------------------------------------------------------------------------


def and_done(check: checks.Check) -> checks.Check:
    """Check that a change says what is done and names its task, which has succeeded."""

    async def look(done: Done) -> None:
        check(done)
        said(done, ": done**", f"**Node**: {done.arguments['node']}")
        for upid in re.findall(r"\*\*Task ID\*\*: (UPID:\S+)", text(done)):
            status = await done.get(f"/nodes/{upid.split(':')[1]}/tasks/{upid}/status")
            assert status["exitstatus"] == "OK"

    return look


def only_net1_is_gone(done: Done) -> None:
    assert "net1" not in done.guest().effective_config()
    assert "net0" in done.guest().effective_config()


def command_was_run(done: Done) -> None:
    assert files(done.rig, int(done.arguments["vmid"])).read("/tmp/made") == b"by hand\n"
    said(done, "**Exit Code**: 3", "**Output**:\n```\nout\n```", "**Errors**:\n```\nerr\n```")
