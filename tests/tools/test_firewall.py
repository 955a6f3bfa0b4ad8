"""The firewall of cluster, nodes and guests."""

import pytest

from pve_simulator.cluster.firewall import Firewalls
from quorate.config import Access
from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio


def firewalls(quorate):
    return quorate.sim.world.part(Firewalls)


def in_short(rules):
    return [(rule["action"], rule.get("dport"), rule["enable"]) for rule in rules]


def accept(port, **more):
    return {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": str(port), "enable": 1, **more}


DROP_ALL = {"type": "in", "action": "DROP", "enable": 1}


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_rules_come_with_options_and_whether_they_count(tmp_path):
    async with rig(tmp_path) as quorate:
        firewalls(quorate).guest(102).rules = [accept(22, source="10.0.0.0/8"), {**DROP_ALL, "enable": 0}]
        answer = await quorate.call("firewall_get", scope="guest", of="docker01")
        facts = answer.structured_content
        rows = [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]
        assert [(row["pos"], row["on"], row["action"]) for row in rows] == [(0, "yes", "ACCEPT"), (1, "no", "DROP")]
        assert facts["options"] == {"enable": 0, "policy_in": "DROP", "policy_out": "ACCEPT"}
        assert "the firewall of vm 102 docker01 is off" in facts["in_force"]
        assert "the firewall of the cluster is off" in facts["in_force"]
        assert facts["in_force"] in text_of(answer)
        firewalls(quorate).guest(102).options["enable"] = 1
        firewalls(quorate).cluster.options["enable"] = 1
        config = quorate.sim.world.guests[102].config
        config["net0"] = f"{config['net0']},firewall=1"
        assert (await quorate.facts("firewall_get", scope="guest", of=102))["in_force"] == "yes"


async def test_a_network_card_without_the_firewall_flag_is_pointed_out(tmp_path):
    async with rig(tmp_path) as quorate:
        firewalls(quorate).guest(200).options["enable"] = 1
        firewalls(quorate).cluster.options["enable"] = 1
        config = quorate.sim.world.guests[200].config
        config["net0"] = str(config["net0"]).replace(",firewall=1", "")
        assert "not for net0" in (await quorate.facts("firewall_get", scope="guest", of=200))["in_force"]


async def test_objects_are_listed_with_what_they_stand_for(tmp_path):
    async with rig(tmp_path) as quorate:
        cluster = firewalls(quorate).cluster
        cluster.aliases["lan"] = {"name": "lan", "cidr": "192.168.10.0/24", "ipversion": 4}
        cluster.ipsets["management"] = [{"cidr": "10.9.0.0/16"}, {"cidr": "10.9.1.1", "nomatch": 1}]
        cluster.groups["web"] = [accept(443)]
        rows = await quorate.rows("firewall_get", show="objects")
        assert [(row["kind"], row["name"], row["value"]) for row in rows] == [
            ("alias", "lan", "192.168.10.0/24"),
            ("ipset", "management", "10.9.0.0/16, !10.9.1.1"),
            ("group", "web", ""),
        ]
        group = await quorate.rows("firewall_get", scope="group", of="web")
        assert group[0]["dport"] == "443"
        text = await quorate.refusal("firewall_get", scope="node", of="pve1", show="objects")
        assert "scope=cluster or guest" in text


async def test_a_log_that_is_not_there_is_an_empty_one(tmp_path):
    async with rig(tmp_path) as quorate:
        assert (await quorate.facts("firewall_get", scope="node", of="pve1", show="log"))["total"] == 0
        assert "kept by node and guest" in await quorate.refusal("firewall_get", show="log")


async def test_a_place_that_is_not_there_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "Which guest?" in await quorate.refusal("firewall_get", scope="guest")
        assert "There is one cluster only" in await quorate.refusal("firewall_get", scope="cluster", of="pve1")
        assert "There is no node 'pve9'" in await quorate.refusal("firewall_get", scope="node", of="pve9")
        assert "There is no security group 'web'" in await quorate.refusal("firewall_get", scope="group", of="web")


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "vmid"), [("qemu", 102), ("lxc", 201)])
async def test_a_rule_is_added_on_top_and_is_on(tmp_path, kind, vmid):
    async with rig(tmp_path) as quorate:
        assert quorate.sim.world.guests[vmid].kind == kind
        facts = await quorate.facts(
            "firewall_rule_set", scope="guest", of=vmid, type="in", action="ACCEPT", macro="HTTPS", comment="web"
        )
        assert facts["enabled"] is True
        (rule,) = firewalls(quorate).guest(vmid).rules
        assert rule == {"type": "in", "action": "ACCEPT", "macro": "HTTPS", "comment": "web", "enable": 1}
        assert any("off" in warning for warning in facts["warnings"])


async def test_a_rule_for_the_middle_is_off_until_it_is_there(tmp_path):
    async with rig(tmp_path) as quorate:
        file = firewalls(quorate).guest(102)
        file.rules = [accept(1), accept(2), accept(3)]
        dry = await quorate.facts(
            "firewall_rule_set", scope="guest", of=102, type="in", action="DROP", move_to=2, dry_run=True
        )
        assert [step["call"].split()[0] for step in dry["steps"]] == ["POST", "PUT", "PUT"]
        assert "enable=0" in dry["steps"][0]["call"]
        await quorate.facts("firewall_rule_set", scope="guest", of=102, type="in", action="DROP", move_to=2)
        assert in_short(file.rules) == [
            ("ACCEPT", "1", 1),
            ("ACCEPT", "2", 1),
            ("DROP", None, 1),
            ("ACCEPT", "3", 1),
        ]


@pytest.mark.parametrize(("pos", "to", "order"), [(0, 2, "1203"), (3, 1, "0312"), (1, 3, "0231"), (2, 0, "2013")])
async def test_a_moved_rule_has_the_position_that_was_asked_for(tmp_path, pos, to, order):
    async with rig(tmp_path) as quorate:
        file = firewalls(quorate).guest(102)
        file.rules = [accept(number) for number in range(4)]
        facts = await quorate.facts("firewall_rule_set", scope="guest", of=102, pos=pos, move_to=to)
        assert "".join(rule["dport"] for rule in file.rules) == order
        assert facts["position"] == to


async def test_a_rule_is_changed_field_by_field_and_cleared(tmp_path):
    async with rig(tmp_path) as quorate:
        file = firewalls(quorate).guest(102)
        file.rules = [accept(22, source="10.0.0.0/8", comment="old")]
        facts = await quorate.facts(
            "firewall_rule_set", scope="guest", of=102, pos=0, source="", dport="22,2222", enable=False
        )
        assert file.rules == [
            {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "22,2222", "enable": 0, "comment": "old"}
        ]
        assert facts["was"]["source"] == "10.0.0.0/8"
        assert facts["enabled"] is False
        same = await quorate.facts("firewall_rule_set", scope="guest", of=102, pos=0, comment="old")
        assert same["result"] == "nothing to do"


async def test_rules_that_changed_since_the_plan_are_not_touched(tmp_path):
    async with rig(tmp_path) as quorate:
        file = firewalls(quorate).guest(102)
        file.rules = [accept(22), accept(80)]
        seen = (await quorate.facts("firewall_get", scope="guest", of=102))["digest"]
        file.rules.insert(0, accept(443))
        for tool, more in (
            ("firewall_rule_set", {"pos": 0, "enable": False}),
            ("firewall_delete", {"kind": "rule", "item": 0}),
        ):
            text = await quorate.refusal(tool, scope="guest", of=102, digest=seen, **more)
            assert "have changed since they were read" in text
        assert len(file.rules) == 3
        seen = (await quorate.facts("firewall_get", scope="guest", of=102))["digest"]
        facts = await quorate.facts("firewall_delete", scope="guest", of=102, kind="rule", item=0, digest=seen)
        assert facts["rule"]["dport"] == "443"
        assert in_short(file.rules) == [("ACCEPT", "22", 1), ("ACCEPT", "80", 1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "DROP"}, "A new rule needs type"),
        ({"pos": 7, "enable": True}, "has no rule 7"),
        ({"type": "in", "action": "ACCEPT", "move_to": 5}, "beyond the end"),
        ({"type": "in", "action": "ACCEPT", "macro": "Nonsense"}, "unknown macro 'Nonsense'"),
        ({"type": "in", "action": "ACCEPT", "source": "10.0.0.300"}, "source"),
        ({"type": "in", "action": "ACCEPT", "source": "+nobody"}, "no such ipset"),
        ({"type": "in", "action": "ACCEPT", "dport": "22"}, "proto"),
        ({"type": "in", "action": "ACCEPT", "log": "loud"}, "log"),
    ],
)
async def test_what_a_rule_cannot_be_is_explained(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        firewalls(quorate).guest(102).rules = [accept(1)]
        assert words in await quorate.refusal("firewall_rule_set", scope="guest", of=102, **arguments)
        assert len(firewalls(quorate).guest(102).rules) == 1


async def test_a_lost_answer_adds_no_second_rule(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/firewall/rules;count=1"]) as quorate:
        facts = await quorate.facts("firewall_rule_set", scope="guest", of=102, type="in", action="ACCEPT")
        assert "effect was found" in facts["note"]
        assert len(firewalls(quorate).guest(102).rules) == 1


async def test_rules_of_guests_are_a_change_and_all_others_need_admin(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await quorate.facts("firewall_rule_set", scope="guest", of=102, type="in", action="DROP")
        for scope, of in (("cluster", None), ("node", "pve1")):
            more = {"of": of} if of else {}
            text = await quorate.refusal("firewall_rule_set", scope=scope, type="in", action="DROP", **more)
            assert "needs admin" in text
        assert "needs admin" in await quorate.refusal("firewall_options_set", scope="cluster", enable=True)
        await quorate.facts("firewall_options_set", scope="guest", of=102, enable=True)
        assert firewalls(quorate).guest(102).options["enable"] == 1
    async with rig(tmp_path, access=Access.READ) as quorate:
        listed = {tool.name for tool in (await quorate.client.list_tools()).tools}
        assert {name for name in listed if name.startswith("firewall")} == {"firewall_explain", "firewall_get"}


# -- options and lock-out ----------------------------------------------------------------------------------------------


async def test_enabling_the_cluster_firewall_says_who_still_gets_in(tmp_path):
    async with rig(tmp_path) as quorate:
        cluster = firewalls(quorate).cluster
        cluster.ipsets["management"] = [{"cidr": "10.9.0.0/16"}]
        facts = await quorate.facts("firewall_options_set", scope="cluster", enable=True, dry_run=True)
        only = "is open only from the nodes' local network; 10.9.0.0/16"
        assert facts["warnings"] == [
            f"pve1, pve2, pve3: the web interface and API (8006) {only}",
            f"pve1, pve2, pve3: SSH (22) {only}",
        ]
        assert not cluster.options.get("enable")
        await quorate.facts("firewall_options_set", scope="cluster", enable=True)
        assert cluster.options["enable"] == 1


async def test_rules_that_let_everyone_in_make_the_warning_go_away(tmp_path):
    async with rig(tmp_path) as quorate:
        firewalls(quorate).cluster.groups["admin"] = [accept("8000:8100")]
        firewalls(quorate).cluster.rules = [
            {"type": "group", "action": "admin", "enable": 1},
            {"type": "in", "action": "ACCEPT", "macro": "SSH", "enable": 1},
        ]
        facts = await quorate.facts("firewall_options_set", scope="cluster", enable=True)
        assert "warnings" not in facts


async def test_a_nodes_rules_come_before_the_clusters_and_those_that_are_off_do_not_count(tmp_path):
    async with rig(tmp_path) as quorate:
        for node in ("pve1", "pve2"):
            firewalls(quorate).node(node).rules = [{**DROP_ALL, "enable": 0}, accept(8006), accept("ssh")]
        firewalls(quorate).node("pve3").options["enable"] = 0
        firewalls(quorate).cluster.rules = [{"type": "in", "action": "REJECT", "enable": 1}]
        assert "warnings" not in await quorate.facts("firewall_options_set", scope="cluster", enable=True)
        text = await quorate.refusal("firewall_options_set", scope="node", of="pve3", enable=True)
        assert "lock everyone out of pve3" in text
        assert "rule 0 of the cluster (REJECT)" in text


async def test_a_firewall_that_would_lock_everyone_out_is_not_switched_on(tmp_path):
    async with rig(tmp_path) as quorate:
        firewalls(quorate).node("pve2").rules = [accept(22), {**DROP_ALL, "proto": "tcp"}]
        text = await quorate.refusal("firewall_options_set", scope="cluster", enable=True)
        assert "This would lock everyone out of pve2" in text
        assert "rule 1 of node pve2 (DROP)" in text
        assert "firewall_rule_set" in text
        assert not firewalls(quorate).cluster.options.get("enable")
        firewalls(quorate).node("pve2").rules.insert(0, accept(8006, source="192.168.10.0/24"))
        facts = await quorate.facts("firewall_options_set", scope="cluster", enable=True)
        assert any("pve2" in line and "only from 192.168.10.0/24, then closed" in line for line in facts["warnings"])


async def test_a_rule_that_would_lock_everyone_out_is_not_added(tmp_path):
    async with rig(tmp_path) as quorate:
        cluster = firewalls(quorate).cluster
        cluster.options["enable"] = 1
        cluster.rules = [accept(8006)]
        text = await quorate.refusal("firewall_rule_set", scope="cluster", type="in", action="DROP")
        assert "lock everyone out of pve1" in text
        await quorate.facts("firewall_rule_set", scope="cluster", type="in", action="DROP", move_to=1)
        text = await quorate.refusal("firewall_delete", scope="cluster", kind="rule", item=0)
        assert "lock everyone out" in text
        assert in_short(cluster.rules) == [("ACCEPT", "8006", 1), ("DROP", None, 1)]


async def test_switching_off_says_what_stops(tmp_path):
    async with rig(tmp_path) as quorate:
        firewalls(quorate).cluster.options["enable"] = 1
        facts = await quorate.facts("firewall_options_set", scope="cluster", enable=False)
        assert "every node and guest stops filtering" in facts["warnings"][0]
        assert firewalls(quorate).cluster.options["enable"] == 0


async def test_other_options_are_set_unset_and_checked(tmp_path):
    async with rig(tmp_path) as quorate:
        file = firewalls(quorate).guest(102)
        await quorate.facts(
            "firewall_options_set",
            scope="guest",
            of=102,
            policy_in="ACCEPT",
            options={"dhcp": True, "log_level_in": "info"},
        )
        assert file.options == {"policy_in": "ACCEPT", "dhcp": 1, "log_level_in": "info"}
        await quorate.facts("firewall_options_set", scope="guest", of=102, options={"log_level_in": ""})
        assert file.options == {"policy_in": "ACCEPT", "dhcp": 1}
        same = await quorate.facts("firewall_options_set", scope="guest", of=102, policy_in="ACCEPT")
        assert same["result"] == "nothing to do"
        text = await quorate.refusal("firewall_options_set", scope="guest", of=102, options={"dhpc": 1})
        assert "Did you mean 'dhcp'?" in text
        text = await quorate.refusal("firewall_options_set", scope="guest", of=102, digest="0" * 40, enable=True)
        assert "have changed since they were read" in text
        assert "No option was specified" in await quorate.refusal("firewall_options_set", scope="cluster")


# -- aliases, IP sets, groups ------------------------------------------------------------------------------------------


async def test_an_alias_is_made_changed_renamed_and_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        aliases = firewalls(quorate).cluster.aliases
        on = {"scope": "cluster", "kind": "alias"}
        await quorate.facts("firewall_object_set", **on, name="lan", cidr="192.168.10.0/24", comment="home")
        assert aliases["lan"]["cidr"] == "192.168.10.0/24"
        await quorate.facts("firewall_object_set", **on, name="lan", cidr="192.168.11.0/24")
        assert (aliases["lan"]["cidr"], aliases["lan"]["comment"]) == ("192.168.11.0/24", "home")
        await quorate.facts("firewall_object_set", **on, name="lan", rename="house")
        assert set(aliases) == {"house"}
        firewalls(quorate).cluster.rules = [accept(22, source="house")]
        text = await quorate.refusal("firewall_delete", **on, item="house")
        assert "is used by rule 0 of the cluster" in text
        firewalls(quorate).cluster.rules = []
        await quorate.facts("firewall_delete", **on, item="house")
        assert not aliases


async def test_an_ip_set_gets_and_loses_members(tmp_path):
    async with rig(tmp_path) as quorate:
        ipsets = firewalls(quorate).guest(102).ipsets
        on = {"scope": "guest", "of": 102, "kind": "ipset"}
        await quorate.facts(
            "firewall_object_set", **on, name="friends", add=["10.0.0.0/8", "!10.0.0.66"], comment="mine"
        )
        assert {(member["cidr"], member.get("nomatch", 0)) for member in ipsets["friends"]} == {
            ("10.0.0.0/8", 0),
            ("10.0.0.66", 1),
        }
        facts = await quorate.facts(
            "firewall_object_set", **on, name="friends", add=["10.0.0.66"], remove=["10.0.0.0/8", "10.1.1.1"]
        )
        assert [(member["cidr"], member.get("nomatch", 0)) for member in ipsets["friends"]] == [("10.0.0.66", 0)]
        assert facts["unchanged"] == ["10.1.1.1 is not in friends"]
        assert "has 1 members" in await quorate.refusal("firewall_delete", **on, item="friends")
        facts = await quorate.facts("firewall_delete", **on, item="friends", force=True)
        assert facts["members"] == ["10.0.0.66"]
        assert not ipsets


async def test_taking_addresses_out_of_the_management_set_says_who_still_gets_in(tmp_path):
    async with rig(tmp_path) as quorate:
        firewalls(quorate).cluster.options["enable"] = 1
        firewalls(quorate).cluster.ipsets["management"] = [{"cidr": "10.9.0.0/16"}]
        facts = await quorate.facts(
            "firewall_object_set", scope="cluster", kind="ipset", name="management", remove=["10.9.0.0/16"]
        )
        assert facts["warnings"][0].endswith("is open only from the nodes' local network")


async def test_a_security_group_with_rules_is_made_used_and_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        cluster = firewalls(quorate).cluster
        on = {"scope": "cluster", "kind": "group"}
        await quorate.facts("firewall_object_set", **on, name="web", comment="http")
        for port in ("80", "443"):
            await quorate.facts(
                "firewall_rule_set", scope="group", of="web", type="in", action="ACCEPT", proto="tcp", dport=port
            )
        assert in_short(cluster.groups["web"]) == [("ACCEPT", "443", 1), ("ACCEPT", "80", 1)]
        await quorate.facts("firewall_rule_set", scope="guest", of=201, type="group", action="web")
        assert firewalls(quorate).guest(201).rules[0]["action"] == "web"
        assert "has 2 rules" in await quorate.refusal("firewall_delete", **on, item="web")
        await quorate.facts("firewall_delete", **on, item="web", force=True)
        assert not cluster.groups


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scope": "cluster", "kind": "alias", "name": "lan"}, "A new alias needs cidr"),
        ({"scope": "cluster", "kind": "alias", "name": "lan", "cidr": "10.0.0.999"}, "cidr"),
        ({"scope": "cluster", "kind": "alias", "name": "1an", "cidr": "10.0.0.1"}, "name"),
        ({"scope": "cluster", "kind": "ipset", "name": "set", "cidr": "10.0.0.1"}, "For an IP set, use add"),
        ({"scope": "cluster", "kind": "group", "name": "grp", "add": ["10.0.0.1"]}, "They are for IP sets"),
        ({"scope": "cluster", "kind": "ipset", "name": "set", "rename": "other"}, "There is no IP set 'set'"),
        ({"scope": "guest", "of": 102, "kind": "group", "name": "grp"}, "Security groups belong to the cluster"),
    ],
)
async def test_what_an_object_cannot_be_is_explained(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("firewall_object_set", **arguments)


@pytest.mark.parametrize("version", ["8.4.1", "9.2.3"])
async def test_both_versions_of_pve_take_the_calls(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        for scope, of in (("cluster", None), ("node", "pve1"), ("guest", 102), ("guest", 201)):
            more = {"of": of} if of else {}
            rule = {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "8006"}
            await quorate.facts("firewall_rule_set", scope=scope, **rule, **more)
            await quorate.facts("firewall_rule_set", scope=scope, pos=0, comment="x", **more)
            await quorate.facts("firewall_options_set", scope=scope, enable=True, **more)
            await quorate.facts("firewall_delete", scope=scope, kind="rule", item=0, **more)


async def test_what_cannot_be_deleted_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        on = {"scope": "cluster"}
        assert "has no rule 3" in await quorate.refusal("firewall_delete", **on, kind="rule", item=3)
        assert "is not a position" in await quorate.refusal("firewall_delete", **on, kind="rule", item="first")
        assert "There is no alias 'lan'" in await quorate.refusal("firewall_delete", **on, kind="alias", item="lan")
        text = await quorate.refusal("firewall_delete", **on, kind="alias", item="lan", digest="0" * 40)
        assert "It is for rules" in text
        text = await quorate.refusal("firewall_delete", scope="node", of="pve1", kind="ipset", item="set")
        assert "Use scope=cluster or guest" in text
