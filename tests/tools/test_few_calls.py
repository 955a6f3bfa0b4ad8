"""Tasks of an expert, solved with few calls: each has the right answer, checked against the world, and a bound.

The numbers of calls that they took before count the same tasks without the arguments and tools used here: the
configurations, snapshots and rules of the 20 guests were then read one by one.
"""

import pytest

from pve_simulator.cluster.firewall import Firewalls
from pve_simulator.storage.backup_jobs import BackupJobs

pytestmark = pytest.mark.anyio

GIB = 1024**3


class Agent:
    """Calls tools and counts."""

    def __init__(self, quorate):
        self._quorate = quorate
        self.calls = 0

    async def facts(self, tool, **arguments):
        self.calls += 1
        return await self._quorate.facts(tool, **arguments)

    async def rows(self, tool, **arguments):
        facts = await self.facts(tool, **arguments)
        return [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]

    async def refusal(self, tool, **arguments):
        self.calls += 1
        return await self._quorate.refusal(tool, **arguments)


@pytest.fixture
def agent(quorate):
    return Agent(quorate)


async def test_who_has_the_address_that_the_switch_complains_about_and_what_did_they_do(quorate, agent):
    """One MAC twice on VLAN 30; which guests, who made them, do they start at boot? Before: 22 calls, now 3."""
    for vmid in (105, 108):
        quorate.sim.world.guests[vmid].config["net1"] = "virtio=BC:24:11:DE:AD:01,bridge=vmbr0,tag=30"
    twins = await agent.rows("guest_list", find="bc:24:11:de:ad:01", columns=["onboot"])
    assert [(row["vmid"], row["onboot"]) for row in twins] == [(105, "yes"), (108, "no")]
    others = await agent.rows("guest_list", find="vlan30")
    assert len(others) == 2
    tasks = await agent.facts("task_list", guest=105)
    assert tasks["users"]
    assert agent.calls == 3


async def test_why_can_the_proxy_not_reach_the_database(quorate, agent):
    """A range in a group drops the port, and the sender's own firewall would drop it, too. Before: 6 calls, now 2."""
    firewalls = quorate.sim.world.part(Firewalls)
    firewalls.cluster.options["enable"] = 1
    firewalls.cluster.groups["hardening"] = [
        {"type": "in", "action": "DROP", "proto": "tcp", "dport": "5000:6000", "enable": 1}
    ]
    for vmid in (201, 203):
        config = quorate.sim.world.guests[vmid].config
        config["net0"] = f"{config['net0'].replace(',firewall=1', '')},firewall=1"
        firewalls.guest(vmid).options["enable"] = 1
    firewalls.guest(201).options["policy_out"] = "DROP"
    firewalls.guest(203).rules = [
        {"type": "group", "action": "hardening", "enable": 1},
        {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "5432", "source": "192.168.10.3", "enable": 1},
    ]
    rows = {row["direction"]: row for row in await agent.rows("firewall_explain", guest=203, port=5432, source=201)}
    assert rows["in"]["result"] == rows["out"]["result"] == "blocked"
    assert "dport 5000:6000" in rows["in"]["decided_by"]
    assert "policy_out=DROP of ct 201" in rows["out"]["decided_by"]
    stored = await agent.facts("firewall_options_set", scope="guest", of=201, policy_out="ACCEPT")
    assert stored["stored"]["policy_out"] == "ACCEPT"
    assert agent.calls == 2


async def test_last_winters_snapshots_go_and_the_named_ones_stay(quorate, agent):
    """Automatic snapshots older than a month, of all guests. Before: 26 calls, 5 of them with an
    approval of their own; now 2 and one approval."""
    for vmid in (102, 103, 108, 200, 204):
        await quorate.facts("snapshot_create", guest=vmid, snapshot="auto_old")
        await quorate.facts("snapshot_create", guest=vmid, snapshot="auto_new")
        snapshots = quorate.sim.world.guests[vmid].snapshots
        snapshots["auto_old"].snaptime -= 40 * 86_400
    shown = await agent.facts("snapshot_delete", guest="*", snapshot="auto_*", older_than="30d", dry_run=True)
    assert len(shown["lost"]) == 5
    await agent.facts("snapshot_delete", guest="*", snapshot="auto_*", older_than="30d")
    left = {vmid: set(guest.snapshots) for vmid, guest in quorate.sim.world.guests.items()}
    assert not any("auto_old" in names for names in left.values())
    assert {vmid for vmid, names in left.items() if "auto_new" in names} == {102, 103, 108, 200, 204}
    assert {"clean", "configured"} <= left[108]
    assert agent.calls == 2


async def test_how_many_desktops_may_be_promised(quorate, agent):
    """6 GiB each, a tenth in reserve, any one node may fail; win11 starts at boot from now on. Before: 7 calls and
    arithmetic, now 1."""
    stopped = quorate.sim.world.guests[107]
    stopped.config["onboot"] = 1
    facts = await agent.facts("capacity_plan", count=10, memory="6G", reserve="10%")
    promised = {
        name: sum(guest.memory for guest in quorate.sim.world.guests_on(name) if guest.running or guest is stopped)
        for name in quorate.sim.world.nodes
    }
    room = {name: node.memory * 0.9 - promised[name] for name, node in quorate.sim.world.nodes.items()}
    assert 0 < facts["fit"] <= sum(int(left // (6 * GIB)) for left in room.values())
    assert facts["fit_with_a_node_lost"] <= (sum(room.values()) - max(room.values()) - min(promised.values())) // (
        6 * GIB
    )
    assert facts["answer"].startswith("yes" if facts["fit"] >= 10 else "no")
    assert agent.calls == 1


async def test_everything_with_a_tag_is_backed_up_every_night_and_nothing_is_missing(quorate, agent):
    """Guests with the tag k3s, one with a disk that backups skip. Before: 5 calls, and the skipped disk was found only
    after the first run; now 3."""
    quorate.sim.world.guests[105].config["scsi1"] = "tank:vm-105-disk-3,size=50G,backup=0"
    advice = await agent.refusal("backup_job_set", schedule="02:00", storage="nas", tag="k3s")
    assert "add_guests=[104, 105]" in advice
    await agent.facts("pool_set", pool="k3s", add_guests=[104, 105], move=True)
    job = await agent.facts("backup_job_set", schedule="02:00", storage="nas", pool="k3s")
    assert job["covers"] == ["vm 104 k3s-server", "vm 105 k3s-agent"]
    assert job["not_included"] == {"vm 105 k3s-agent": ["scsi1 tank:vm-105-disk-3 50G (backup=0)"]}
    (stored,) = quorate.sim.world.part(BackupJobs).all().values()
    assert stored["pool"] == "k3s"
    assert agent.calls == 3
