"""Changing guests: options, disks, network cards, cloud-init, firewall, template."""

from __future__ import annotations

import re
from typing import Any

from quorate.problems import BadArgument
from quorate.pve import values
from quorate.surfaces.compat.bsahane.recipes import (
    CONTAINER,
    VM,
    find_guest,
    guest_change,
    keys_in,
    patience,
    task_answer,
)
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ChangeResult, LocatedGuest, ToolCall

CLOUD_INIT = frozenset({"ciuser", "cipassword", "sshkeys", "nameserver", "searchdomain", "ipconfig0"})
# Arguments of guest_configure that take the value unchanged; all other PVE options go through `options`.
NAMED = ("cores", "sockets", "memory", "balloon", "cpu", "name", "description", "onboot", "startup", "protection")

RULE = {"pos": "move_to"}
"""Keys of a firewall rule that firewall_rule_set calls something else."""
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
    """Set options of a guest. Network cards and cloud-init are separate native changes, made one after the other."""

    async def recipe(call: ToolCall) -> dict[str, Any]:
        guest = await find_guest(call, type)
        params = call["params"]
        cards = {key: text for key, text in params.items() if values.bus_of(key) == "net"}
        init = {key: text for key, text in params.items() if key in CLOUD_INIT and type == VM}
        rest = {key: value for key, value in params.items() if key not in cards and key not in init}
        done = [await _set_card(call, guest, key, str(text)) for key, text in cards.items()]
        if init:
            done.append(await call.change("cloudinit_set", guest=guest.vmid, **_cloud_init(init)))
        if rest:
            done.append(await call.change("guest_configure", follow=patience(call), guest=guest.vmid, **_options(rest)))
        return await _all_answers(call, done)

    return recipe


async def _all_answers(call: ToolCall, done: list[ChangeResult]) -> dict[str, Any]:
    answers = [await task_answer(call, task) for task in done]
    if not answers:
        return {"result": None, "unchanged": ["All of it already exists"]}
    return answers[0] if len(answers) == 1 else {"results": answers}


def _options(options: dict[str, Any]) -> dict[str, Any]:
    named = {key: value for key, value in options.items() if key in NAMED}
    if "hostname" in options:
        named["name"] = options["hostname"]
    if "tags" in options:
        named["tags"] = [tag for tag in re.split(r"[,;\s]+", str(options["tags"])) if tag]
    if "agent" in options:
        named["agent"] = str(options["agent"])
    if "delete" in options:
        named["unset"] = [key for key in str(options["delete"]).split(",") if key]
    map_arguments = {*NAMED, "hostname", "tags", "agent", "delete"}
    return {**named, "options": {key: value for key, value in options.items() if key not in map_arguments} or None}


async def _set_card(call: ToolCall, guest: LocatedGuest, key: str, text: str) -> ChangeResult:
    """netN as PVE writes it: `virtio=<mac>,bridge=vmbr0,tag=20`."""
    parts = values.parse_nic(text)
    arguments: dict[str, Any] = {}
    for part, value in parts.items():
        if part not in CARD:
            raise BadArgument(f"{key} cannot be given {part!r}", next_step=f"Known: {', '.join(CARD)}")
        arguments[CARD[part]] = values.is_on(value) if part in ("firewall", "link_down") else value
    return await call.change("nic_set", guest=guest.vmid, nic=key, **arguments)


def _cloud_init(settings: dict[str, Any]) -> dict[str, Any]:
    addresses = values.parse(settings.get("ipconfig0") or "")
    return {
        "user": settings.get("ciuser"),
        "password": settings.get("cipassword"),
        "ssh_keys": keys_in(settings.get("sshkeys")),
        "nameserver": settings.get("nameserver"),
        "searchdomain": settings.get("searchdomain"),
        "ip": addresses.get("ip"),
        "gateway": addresses.get("gw"),
        "ip6": addresses.get("ip6"),
        "gateway6": addresses.get("gw6"),
    }


async def cloud_init(call: ToolCall) -> dict[str, Any]:
    names = ("ipconfig0", "sshkeys", "ciuser", "cipassword")
    settings = {name: call[name] for name in names}
    if all(value is None for value in settings.values()):
        raise BadArgument(f"{call.tool} has nothing to set", next_step=f"Give {', '.join(names[:-1])} or {names[-1]}")
    guest = await find_guest(call, VM)
    return await task_answer(call, await call.change("cloudinit_set", guest=guest.vmid, **_cloud_init(settings)))


async def add_card(call: ToolCall) -> dict[str, Any]:
    guest = await find_guest(call, VM)
    card = {name: call[name] for name in ("bridge", "model", "vlan")}
    done = await call.change("nic_set", follow=patience(call), guest=guest.vmid, **card)
    return {**await task_answer(call, done), "added": done.facts.get("nic")}


async def remove_card(call: ToolCall) -> dict[str, Any]:
    guest = await find_guest(call, VM)
    done = await call.change("nic_remove", follow=patience(call), guest=guest.vmid, nic=call["slot"])
    return {**await task_answer(call, done), "removed": f"net{call['slot']}"}


async def firewall(call: ToolCall) -> dict[str, Any]:
    guest = await find_guest(call, VM)
    return {
        "options": await call.get(f"{guest.path}/firewall/options"),
        "rules": await call.get(f"{guest.path}/firewall/rules"),
    }


async def set_firewall(call: ToolCall) -> dict[str, Any]:
    """Add the rules before the firewall is enabled, so that nobody is locked out; they go above existing ones."""
    guest = await find_guest(call, VM)
    if call["enable"] is None and not call["rules"]:
        raise BadArgument(f"{call.tool} has nothing to set", next_step="Give enable, rules or both")
    about: dict[str, Any] = {"scope": "guest", "of": guest.vmid}
    there = await call.get(f"{guest.path}/firewall/rules")
    new = [rule for rule in call["rules"] or () if not any(_is_same(rule, existing) for existing in there)]
    done = []
    for position, rule in enumerate(new):
        last = len(there) if call["dry_run"] else position  # a dry run adds none, so nothing follows them
        place = {"move_to": min(position, last), **_rule(rule)}
        done.append(await call.change("firewall_rule_set", **about, **place))
    if call["enable"] is not None:
        done.append(await call.change("firewall_options_set", **about, enable=call["enable"]))
    return {**await _all_answers(call, done), **({"rules_added": len(new)} if new and not call["dry_run"] else {})}


def _is_same(requested: dict[str, Any], there: dict[str, Any]) -> bool:
    """Whether the rule already exists: a repeated call does not add it twice."""
    return all(values.same(value, there.get(key)) for key, value in requested.items() if key != "pos")


def _rule(fields: dict[str, Any]) -> dict[str, Any]:
    """A rule in PVE's form: dashes in names, 1 and 0 for booleans, and its position."""
    rule = {RULE.get(key, key.replace("-", "_")): value for key, value in fields.items()}
    if "enable" in rule:
        rule["enable"] = bool(int(rule["enable"]))
    return {key: str(value) if key in ("dport", "sport") else value for key, value in rule.items()}


RECIPES: dict[str, Recipe] = {
    "proxmox-resize-vm-disk": guest_change(
        "disk_change", VM, {"disk": "disk", "size": lambda call: f"+{call['grow_gb']}G"}, action="resize"
    ),
    "proxmox-configure-vm": configure(VM),
    "proxmox-configure-lxc": configure(CONTAINER),
    "proxmox-cloudinit-set": cloud_init,
    "proxmox-vm-nic-add": add_card,
    "proxmox-vm-nic-remove": remove_card,
    "proxmox-vm-firewall-get": firewall,
    "proxmox-vm-firewall-set": set_firewall,
    "proxmox-template-vm": guest_change("guest_template", VM),
}
