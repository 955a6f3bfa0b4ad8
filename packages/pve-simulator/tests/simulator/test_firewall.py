"""The firewall of the cluster, of nodes, guests and vnets."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api

GUEST = "/nodes/pve1/qemu/100/firewall"
EMPTY_DIGEST = "da39a3ee5e6b4b0d3255bfef95601890afd80709"


@pytest.mark.parametrize("base", ["/cluster/firewall/rules", "/nodes/pve1/firewall/rules", f"{GUEST}/rules"])
async def test_rules_are_put_first_moved_changed_and_deleted(api: Api, base: str):
    for port in (1, 2, 3):
        await api.post(base, type="in", action="ACCEPT", proto="tcp", dport=port)
    rules = (await api.get(base)).data
    assert [(rule["pos"], rule["dport"], rule["enable"]) for rule in rules] == [
        (0, "3", 0),
        (1, "2", 0),
        (2, "1", 0),
    ]
    await api.put(f"{base}/0", moveto=2)
    assert [rule["dport"] for rule in (await api.get(base)).data] == ["2", "3", "1"]
    await api.put(f"{base}/0", moveto=3)
    assert [rule["dport"] for rule in (await api.get(base)).data] == ["3", "1", "2"]
    stale = await api.put(f"{base}/0", enable=1, digest=rules[0]["digest"])
    assert stale.reason == "detected modified configuration - file changed by other user? Try again."
    await api.put(f"{base}/0", enable=1, comment="web", delete="dport")
    rule = (await api.get(f"{base}/0")).data
    assert (rule["enable"], rule["comment"], "dport" in rule) == (1, "web", False)
    far = await api.delete(f"{base}/9")
    assert far.reason == "no rule at position 9"
    for _ in range(3):
        assert (await api.delete(f"{base}/0")).data is None
    assert (await api.get(base)).data == []


async def test_rules_that_make_no_sense_are_refused_by_name(api: Api):
    rules = f"{GUEST}/rules"

    async def errors(path: str, **rule: object) -> dict[str, str]:
        return (await api.post(path, **{"type": "in", "action": "ACCEPT", **rule})).errors

    assert await errors(rules, action="MAYBE") == {"action": "unknown action 'MAYBE'"}
    assert list(await errors(rules, dport="22")) == ["proto"]
    assert list(await errors(rules, proto="esp", dport="22")) == ["dport"]
    assert await errors(rules, macro="Nope") == {"macro": "unknown macro 'Nope'"}
    assert await errors(rules, macro="SSH", proto="tcp", dport="23") == {
        "dport": "parameter 'dport' already define in macro (value = '22')"
    }
    for proto, other in (("tcp", "udp"), ("udp", "tcp")):
        assert await errors(rules, macro="DNS", proto=proto) == {
            "proto": f"parameter 'proto' already define in macro (value = '{other}')"
        }
    assert list(await errors(rules, iface="eth0")) == ["iface"]
    assert await errors(rules, source="+none") == {"source": "no such ipset 'none'"}
    assert await errors(rules, dest="nowhere") == {"dest": "no such alias 'nowhere'"}
    assert list(await errors(rules, source="10.0.0.300", dport="99999", proto="tcp")) == ["source", "dport"]
    assert list(await errors(rules, type="forward")) == ["type"]
    await api.post("/cluster/firewall/groups", group="web")
    inside = await errors("/cluster/firewall/groups/web", type="group", action="web")
    assert inside == {"type": "invalid rule type 'group' for rule_env 'group'"}
    mixed = await api.post(rules, type="in", action="DROP", source="10.0.0.1", dest="fd00::1")
    assert mixed.reason == "detected mixed ipv4/ipv6 addresses in rule"
    await api.post(rules, type="in", action="ACCEPT", macro="ssh")
    assert (await api.get(f"{rules}/0")).data["macro"] == "SSH"


async def test_options_are_set_and_removed_and_carry_a_digest(api: Api):
    for base in ("/cluster/firewall", "/nodes/pve1/firewall", GUEST):
        options = f"{base}/options"
        assert (await api.get(options)).data == {"digest": EMPTY_DIGEST}
        assert (await api.put(options, enable=1)).data is None
        assert (await api.get(options)).data["enable"] == 1
        unknown = await api.put(options, delete="nope")
        assert unknown.errors == {"delete": "no such option 'nope'"}
        await api.put(options, delete="enable")
        assert (await api.get(options)).data == {"digest": EMPTY_DIGEST}


async def test_ip_sets_hold_networks_whose_slash_is_part_of_the_path(api: Api):
    base = "/cluster/firewall/ipset"
    await api.post(base, name="mgmt", comment="who may log in")
    again = await api.post(base, name="mgmt")
    assert again.errors == {"name": "IPSet 'mgmt' already exists"}
    await api.post(f"{base}/mgmt", cidr="10.0.0.0/8", comment="all")
    twice = await api.post(f"{base}/mgmt", cidr="10.0.0.0/8")
    assert twice.errors == {"cidr": "address '10.0.0.0/8' already exists"}
    everything = await api.post(f"{base}/mgmt", cidr="0.0.0.0/0")
    assert everything.errors == {"cidr": "a zero prefix is not allowed in ipset entries"}
    await api.put(f"{base}/mgmt/10.0.0.0/8", nomatch=1)
    entry = (await api.get(f"{base}/mgmt/10.0.0.0%2F8")).data
    assert (entry["cidr"], entry["nomatch"], "comment" in entry) == ("10.0.0.0/8", 1, False)
    full = await api.delete(f"{base}/mgmt")
    assert full.reason == "IPSet 'mgmt' is not empty"
    await api.post(base, name="admin", rename="mgmt")
    assert [row["name"] for row in (await api.get(base)).data] == ["admin"]
    await api.delete(f"{base}/admin/10.0.0.0/8")
    assert (await api.get(f"{base}/admin")).data == []
    assert (await api.delete(f"{base}/admin")).data is None
    assert (await api.get(f"{base}/admin")).reason == "no such IPSet 'admin'"


async def test_aliases_are_found_in_any_case_and_listed_as_references(api: Api):
    await api.post("/cluster/firewall/aliases", name="Gate", cidr="10.1.1.1")
    await api.post(f"{GUEST}/aliases", name="own", cidr="fd00::/64", comment="v6")
    duplicate = await api.post("/cluster/firewall/aliases", name="gate", cidr="10.1.1.2")
    assert duplicate.errors == {"name": "alias 'gate' already exists"}
    alias = (await api.get("/cluster/firewall/aliases/gate")).data
    assert alias == {"name": "Gate", "cidr": "10.1.1.1", "ipversion": 4}
    await api.put("/cluster/firewall/aliases/gate", cidr="10.1.1.3", rename="door")
    assert (await api.get("/cluster/firewall/aliases/gate")).errors == {"name": "no such alias"}
    assert (await api.get(f"{GUEST}/refs")).data == [
        {"type": "alias", "name": "door", "ref": "door", "scope": "dc"},
        {"type": "alias", "name": "own", "ref": "own", "scope": "guest", "comment": "v6"},
    ]
    assert (await api.get(f"{GUEST}/refs", type="ipset")).data == []
    assert (await api.post(f"{GUEST}/rules", type="in", action="DROP", source="door")).status == 200
    assert (await api.delete("/cluster/firewall/aliases/door")).data is None


async def test_security_groups_have_rules_of_their_own(api: Api):
    base = "/cluster/firewall/groups"
    await api.post(base, group="web")
    await api.post(f"{base}/web", type="in", action="ACCEPT", macro="HTTPS", enable=1)
    assert (await api.get(f"{base}/web/0")).data["macro"] == "HTTPS"
    full = await api.delete(f"{base}/web")
    assert full.reason == "Security group 'web' is not empty"
    await api.delete(f"{base}/web/0")
    assert (await api.delete(f"{base}/web")).data is None
    assert (await api.get(f"{base}/web")).reason == "no such security group 'web'"


async def test_the_rules_of_a_guest_go_away_with_it(api: Api):
    await api.post(f"{GUEST}/rules", type="in", action="ACCEPT")
    api.cluster.world.remove_guest(api.cluster.world.guests[100])
    assert (await api.get(f"{GUEST}/rules")).data == []


async def test_without_the_privilege_nothing_is_shown_or_changed(api: Api):
    ci = api.as_token("alice@pve!ci")
    assert (await ci.get("/cluster/firewall/rules")).reason == "Permission check failed (/, Sys.Audit)"
    refused = await ci.post("/nodes/pve1/firewall/rules", type="in", action="ACCEPT")
    assert refused.reason == "Permission check failed (/nodes/pve1, Sys.Modify)"
