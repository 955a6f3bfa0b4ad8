"""Which rule decides about packets to a guest."""

import pytest

from pve_simulator.cluster.firewall import Firewalls

pytestmark = pytest.mark.anyio

DOCKER = 102


def rule(action, dport="", **more):
    port = {"proto": "tcp", "dport": dport} if dport else {}
    return {"type": "in", "action": action, "enable": 1, **port, **more}


@pytest.fixture
def firewalls(quorate):
    """The firewalls of the cluster and of docker01 are on, and its card is filtered."""
    part = quorate.sim.world.part(Firewalls)
    part.cluster.options["enable"] = 1
    part.guest(DOCKER).options["enable"] = 1
    config = quorate.sim.world.guests[DOCKER].config
    config["net0"] = f"{config['net0']},firewall=1"
    return part


async def explain(quorate, **arguments):
    """The rows by card and direction, and the facts."""
    facts = await quorate.facts("firewall_explain", **{"guest": "docker01", **arguments})
    rows = [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]
    return {(row["card"], row["direction"]): row for row in rows}, facts


async def test_a_range_that_covers_the_port_decides_before_a_later_rule(quorate, firewalls):
    firewalls.guest(DOCKER).rules = [rule("DROP", "20:25"), rule("ACCEPT", "22")]
    rows, facts = await explain(quorate, port=22)
    assert rows["net0", "in"]["result"] == "blocked"
    assert rows["net0", "in"]["decided_by"] == "rule 0 of vm 102 docker01: in DROP tcp dport 20:25 (on)"
    assert facts["answer"] == "blocked on net0 (in)"
    assert facts["in_force"] == "yes"


@pytest.mark.parametrize(
    ("port", "result", "decided_by"),
    [
        (443, "allowed", "rule 0 of security group web (rule 1 of vm 102 docker01)"),
        (8080, "blocked", "policy_in=DROP of vm 102 docker01: no rule decides"),
        (22, "blocked", "policy_in=DROP of vm 102 docker01"),
    ],
)
async def test_rules_of_a_group_count_and_those_that_are_off_or_for_another_card_do_not(
    quorate, firewalls, port, result, decided_by
):
    firewalls.cluster.groups["web"] = [rule("ACCEPT", "80,443"), rule("ACCEPT", "8080", enable=0)]
    firewalls.cluster.rules = [rule("ACCEPT", "22")]  # protects the nodes only
    firewalls.guest(DOCKER).rules = [
        rule("ACCEPT", "22", iface="net5"),
        {"type": "group", "action": "web", "enable": 1},
    ]
    rows, _ = await explain(quorate, port=port)
    assert rows["net0", "in"]["result"] == result
    assert decided_by in rows["net0", "in"]["decided_by"]


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("192.168.10.7", "allowed"),  # in the set
        ("192.168.10.66", "blocked"),  # excluded from it
        ("10.1.2.3", "allowed"),  # an alias in the set
        ("10.1.2.200", "blocked"),
        ("192.168.10.0/24", "depends"),  # some of it is excluded
        (None, "depends"),
        ("fd00::1", "blocked"),
    ],
)
async def test_sets_aliases_and_exclusions_are_resolved_for_the_source(quorate, firewalls, source, result):
    firewalls.cluster.aliases["laptop"] = {"name": "laptop", "cidr": "10.1.2.3", "ipversion": 4}
    firewalls.cluster.ipsets["admins"] = [
        {"cidr": "192.168.10.0/24"}, {"cidr": "192.168.10.64/26", "nomatch": 1}, {"cidr": "dc/laptop"},
    ]  # fmt: skip
    firewalls.guest(DOCKER).rules = [rule("ACCEPT", "22", source="+dc/admins")]
    rows, _ = await explain(quorate, port=22, **({"source": source} if source else {}))
    row = rows["net0", "in"]
    assert row["result"] == result
    if result == "depends":
        assert "allowed by rule 0 of vm 102 docker01" in row["depends_on"]


async def test_the_guests_own_names_come_before_the_clusters(quorate, firewalls):
    firewalls.cluster.aliases["home"] = {"name": "home", "cidr": "10.0.0.0/8", "ipversion": 4}
    firewalls.guest(DOCKER).aliases["home"] = {"name": "home", "cidr": "192.168.10.0/24", "ipversion": 4}
    firewalls.guest(DOCKER).rules = [rule("ACCEPT", "22", source="home")]
    rows, _ = await explain(quorate, port=22, source="10.0.0.1")
    assert rows["net0", "in"]["result"] == "blocked"
    rows, _ = await explain(quorate, port=22, source="192.168.10.0/28")
    assert rows["net0", "in"]["result"] == "allowed"


async def test_macros_ranges_of_addresses_and_protocols_are_understood(quorate, firewalls):
    guest = firewalls.guest(DOCKER)
    guest.rules = [rule("ACCEPT", macro="Web"), rule("ACCEPT", "53", proto="udp", source="10.0.0.5-10.0.0.9")]
    assert (await explain(quorate, port=443))[0]["net0", "in"]["result"] == "allowed"
    assert (await explain(quorate, port=53, source="10.0.0.7"))[0]["net0", "in"]["result"] == "blocked"
    assert (await explain(quorate, port=53, proto="udp", source="10.0.0.7"))[0]["net0", "in"]["result"] == "allowed"
    assert (await explain(quorate, port=53, proto="udp", source="10.0.0.10"))[0]["net0", "in"]["result"] == "blocked"
    guest.rules = [rule("DROP", macro="Trcrt")]  # its ports depend on the address family
    assert (await explain(quorate, port=33434, proto="udp"))[0]["net0", "in"]["result"] == "blocked"


async def test_a_firewall_that_is_off_anywhere_lets_everything_through_and_says_what_it_would_do(quorate, firewalls):
    firewalls.guest(DOCKER).rules = [rule("DROP", "22")]
    firewalls.cluster.options["enable"] = 0
    rows, facts = await explain(quorate, port=22)
    assert rows["net0", "in"]["in_force"] == "no: the cluster's firewall is off"
    assert rows["net0", "in"]["result"] == "allowed"
    assert rows["net0", "in"]["once_in_force"].startswith("blocked by rule 0")
    assert facts["answer"].startswith("allowed on net0 (in); once in force, net0 (in) would be blocked by rule 0")
    firewalls.cluster.options["enable"] = 1
    config = quorate.sim.world.guests[DOCKER].config
    config["net1"] = "virtio=BC:24:11:00:01:99,bridge=vmbr0"
    rows, facts = await explain(quorate, port=22)
    assert rows["net0", "in"]["in_force"] == "yes"
    assert rows["net1", "in"]["in_force"] == "no: net1 has no firewall=1"
    assert "blocked on net0 (in); allowed on net1 (in)" in facts["answer"]
    assert "net1" in facts["in_force"]


async def test_the_clusters_blacklist_comes_before_every_rule(quorate, firewalls):
    firewalls.cluster.ipsets["blacklist"] = [{"cidr": "203.0.113.0/24"}]
    firewalls.guest(DOCKER).rules = [rule("ACCEPT", "443")]
    rows, _ = await explain(quorate, port=443, source="203.0.113.9")
    assert "IP set blacklist of the cluster" in rows["net0", "in"]["decided_by"]
    rows, _ = await explain(quorate, port=443)
    assert rows["net0", "in"]["result"] == "depends"


async def test_a_guest_as_source_must_be_allowed_out(quorate, firewalls):
    sender = quorate.sim.world.guests[200]
    sender.config["net0"] = "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:02:00,ip=192.168.10.20/24,firewall=1"
    firewalls.guest(200).options.update(enable=1, policy_out="DROP")
    firewalls.guest(DOCKER).rules = [rule("ACCEPT", "5432", source="192.168.10.20")]
    rows, facts = await explain(quorate, port=5432, source=200)
    assert rows["net0", "in"]["result"] == "allowed"
    assert rows["net0", "out"]["result"] == "blocked"
    assert "policy_out=DROP of ct 200" in rows["net0", "out"]["decided_by"]
    assert facts["answer"] == "allowed on net0 (in); blocked on net0 (out)"
    assert "addresses of vm 108" in await quorate.refusal("firewall_explain", guest=DOCKER, port=5432, source=108)


async def test_a_rule_with_a_name_that_is_gone_is_skipped_and_named(quorate, firewalls):
    firewalls.guest(DOCKER).rules = [rule("ACCEPT", "22", source="+gone")]
    rows, facts = await explain(quorate, port=22, source="10.0.0.1")
    assert "policy_in=DROP" in rows["net0", "in"]["decided_by"]
    assert facts["notes"] == ["Rule 0 of vm 102 docker01 does nothing: no such ipset 'gone'"]


async def test_a_policy_equal_to_the_default_is_stored_and_the_answer_shows_what_is(quorate):
    stored = quorate.sim.world.part(Firewalls).guest(DOCKER).options
    facts = await quorate.facts("firewall_options_set", scope="guest", of=DOCKER, enable=True, policy_in="DROP")
    assert stored == {"enable": 1, "policy_in": "DROP"}
    assert facts["stored"] == {"enable": 1, "policy_in": "DROP"}
    assert facts["was"] == {"enable": "not set, so 0", "policy_in": "not set, so DROP"}
    facts = await quorate.facts("firewall_options_set", scope="guest", of=DOCKER, options={"policy_in": ""})
    assert facts["stored"] == {"enable": 1}
