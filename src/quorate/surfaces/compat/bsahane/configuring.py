"""Changing guests: options, disks, network cards, cloud-init, firewall, template."""

from __future__ import annotations

import re
from typing import Any

from quorate.operations.registry import Risk
from quorate.pve import values
from quorate.pve.errors import BadArgument
from quorate.surfaces.compat.bsahane.shapes import (
    CONTAINER,
    GUEST,
    SURE,
    VM,
    act,
    acting,
    chosen,
    following,
    keys_in,
    patience,
    read,
    told,
)
from quorate.surfaces.compat.declaring import Recipe, may
from quorate.surfaces.compat.running import Done, Found, Run

PARAMS = may("params", "object", about="Options of PVE: memory, cores, agent, net0 …")
CLOUD_INIT = frozenset({"ciuser", "cipassword", "sshkeys", "nameserver", "searchdomain", "ipconfig0"})
# Arguments of guest_configure that take the value as it is; whatever else PVE knows goes through its `options`.
NAMED = ("cores", "sockets", "memory", "balloon", "cpu", "name", "description", "onboot", "startup", "protection")

CARD = {
    "model": "model",
    "bridge": "bridge",
    "tag": "vlan",
    "firewall": "firewall",
    "rate": "rate",
    "mtu": "mtu",
    "link_down": "link_down",
    "macaddr": "mac",
    "hwaddr": "mac",
    "name": "name",
    "ip": "ip",
    "gw": "gateway",
    "ip6": "ip6",
    "gw6": "gateway6",
}
"""Parts of netN, and what nic_set calls them."""


def configure(type: str) -> Recipe:
    """Options of a guest. Network cards and cloud-init are changes of their own here, made one after the other."""

    async def recipe(run: Run) -> dict[str, Any]:
        guest = await chosen(run, type)
        params = run["params"]
        cards = {key: text for key, text in params.items() if values.bus_of(key) == "net"}
        init = {key: text for key, text in params.items() if key in CLOUD_INIT and type == VM}
        rest = {key: value for key, value in params.items() if key not in cards and key not in init}
        done = [await _set_card(run, guest, key, str(text)) for key, text in cards.items()]
        if init:
            done.append(await run.change("cloudinit_set", guest=guest.vmid, **_cloud_init(init)))
        if rest:
            done.append(await run.change("guest_configure", follow=patience(run), guest=guest.vmid, **_options(rest)))
        return await _told_all(run, done)

    return recipe


async def _told_all(run: Run, done: list[Done]) -> dict[str, Any]:
    told_each = [await told(run, one) for one in done]
    if not told_each:
        return {"result": None, "unchanged": ["All of it is there already"]}
    return told_each[0] if len(told_each) == 1 else {"results": told_each}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    named = {key: value for key, value in given.items() if key in NAMED}
    if "hostname" in given:
        named["name"] = given["hostname"]
    if "tags" in given:
        named["tags"] = [tag for tag in re.split(r"[,;\s]+", str(given["tags"])) if tag]
    if "agent" in given:
        named["agent"] = str(given["agent"])
    if "delete" in given:
        named["unset"] = [key for key in str(given["delete"]).split(",") if key]
    taken = {*NAMED, "hostname", "tags", "agent", "delete"}
    return {**named, "options": {key: value for key, value in given.items() if key not in taken} or None}


async def _set_card(run: Run, guest: Found, key: str, text: str) -> Done:
    """netN as PVE writes it: `virtio=<mac>,bridge=vmbr0,tag=20`."""
    parts = values.parse_nic(text)
    arguments: dict[str, Any] = {}
    for part, value in parts.items():
        if part not in CARD:
            raise BadArgument(f"{key} cannot be given {part!r}", next_step=f"Known are {', '.join(CARD)}")
        arguments[CARD[part]] = values.is_on(value) if part in ("firewall", "link_down") else value
    return await run.change("nic_set", guest=guest.vmid, nic=key, **arguments)


def _cloud_init(given: dict[str, Any]) -> dict[str, Any]:
    addresses = values.parse(given.get("ipconfig0") or "")
    return {
        "user": given.get("ciuser"),
        "password": given.get("cipassword"),
        "ssh_keys": keys_in(given.get("sshkeys")),
        "nameserver": given.get("nameserver"),
        "searchdomain": given.get("searchdomain"),
        "ip": addresses.get("ip"),
        "gateway": addresses.get("gw"),
        "ip6": addresses.get("ip6"),
        "gateway6": addresses.get("gw6"),
    }


async def cloud_init(run: Run) -> dict[str, Any]:
    guest = await chosen(run, VM)
    given = {name: run[name] for name in ("ipconfig0", "sshkeys", "ciuser", "cipassword")}
    return await told(run, await run.change("cloudinit_set", guest=guest.vmid, **_cloud_init(given)))


async def firewall(run: Run) -> dict[str, Any]:
    guest = await chosen(run, VM)
    return {
        "options": await run.get(f"{guest.path}/firewall/options"),
        "rules": await run.get(f"{guest.path}/firewall/rules"),
    }


async def set_firewall(run: Run) -> dict[str, Any]:
    """The rules first, so that nobody is shut out between the two."""
    guest = await chosen(run, VM)
    if run["enable"] is None and not run["rules"]:
        raise BadArgument(f"{run.tool} has nothing to set", next_step="Give enable, rules or both")
    about: dict[str, Any] = {"scope": "guest", "of": guest.vmid}
    there = await run.get(f"{guest.path}/firewall/rules")
    new = [rule for rule in run["rules"] or () if not any(_is_same(rule, one) for one in there)]
    done = [await run.change("firewall_rule_set", **about, **_rule(rule)) for rule in new]
    if run["enable"] is not None:
        done.append(await run.change("firewall_options_set", **about, enable=run["enable"]))
    return await _told_all(run, done)


def _is_same(wanted: dict[str, Any], there: dict[str, Any]) -> bool:
    """Whether a rule stands already: a call that was made twice does not add it twice."""
    return all(values.same(value, there.get(key)) for key, value in wanted.items())


def _rule(given: dict[str, Any]) -> dict[str, Any]:
    """A rule as PVE writes it: its dashes and its ones and noughts."""
    rule = {key.replace("-", "_"): value for key, value in given.items()}
    if "enable" in rule:
        rule["enable"] = bool(int(rule["enable"]))
    return {key: str(value) if key in ("dport", "sport") else value for key, value in rule.items()}


TOOLS = (
    act(
        "proxmox-resize-vm-disk",
        "Make a disk of a VM larger.",
        "disk_change action=resize",
        acting("disk_change", VM, {"disk": "disk", "size": lambda run: f"+{run['grow_gb']}G"}, action="resize"),
        *GUEST,
        may("disk", "string", "scsi0"),
        may("grow_gb", "integer", 0, "GiB to add"),
        *SURE,
        *following(True, 900),
        needs=("grow_gb",),
    ),
    act(
        "proxmox-configure-vm",
        "Change options of a VM.",
        "guest_configure",
        configure(VM),
        *GUEST,
        PARAMS,
        *SURE,
        *following(False, 600),
        needs=("params",),
    ),
    act(
        "proxmox-configure-lxc",
        "Change options of a container.",
        "guest_configure",
        configure(CONTAINER),
        *GUEST,
        PARAMS,
        *SURE,
        *following(False, 600),
        needs=("params",),
    ),
    act(
        "proxmox-cloudinit-set",
        "Set what cloud-init does in a VM: address, keys, user.",
        "cloudinit_set",
        cloud_init,
        *GUEST,
        may("ipconfig0", "string", about="Such as ip=dhcp"),
        may("sshkeys", "string", about="Public keys, one a line"),
        may("ciuser", "string"),
        may("cipassword", "string"),
        *SURE,
    ),
    act(
        "proxmox-vm-nic-add",
        "Add a network card to a VM.",
        "nic_set",
        acting("nic_set", VM, {"bridge": "bridge", "model": "model", "vlan": "vlan"}),
        *GUEST,
        may("bridge", "string"),
        may("model", "string", "virtio"),
        may("vlan", "integer"),
        *SURE,
    ),
    act(
        "proxmox-vm-nic-remove",
        "Remove a network card of a VM.",
        "nic_remove",
        acting("nic_remove", VM, {"nic": "slot"}),
        *GUEST,
        may("slot", "integer", 0, "The number of netN"),
        *SURE,
    ),
    read("proxmox-vm-firewall-get", "Firewall of a VM.", "firewall_get scope=guest", firewall, *GUEST),
    act(
        "proxmox-vm-firewall-set",
        "Add firewall rules to a VM; switch its firewall on or off.",
        "firewall_rule_set, firewall_options_set scope=guest",
        set_firewall,
        *GUEST,
        may("enable", "boolean"),
        may("rules", "array<object>", about="Each as PVE writes it: type, action, proto, dport …"),
        *SURE,
    ),
    act(
        "proxmox-template-vm",
        "Turn a VM into a template; there is no way back.",
        "guest_template",
        acting("guest_template", VM),
        *GUEST,
        *SURE,
        risk=Risk.DESTROY,
    ),
)
