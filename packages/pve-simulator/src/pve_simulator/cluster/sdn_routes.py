"""SDN zones, vnets, subnets and controllers; the id of a subnet is `zone-network-mask`."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pve_simulator.cluster.config_files import Section, SectionFile, changing
from pve_simulator.cluster.sdn import Kind, Sdn, dhcp_ranges
from pve_simulator.cluster.sections import Sections, always, texts
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call
from pve_simulator.world import World


def sdn_of(world: World) -> Sdn:
    return world.part(Sdn)


class SdnSections(Sections):
    """Sections that change under the lock of the SDN configuration."""

    word = ""
    no_options: tuple[str, ...] = ("lock-token", "digest", "delete", "pending", "running")
    readers = ("SDN.Audit", "SDN.Allocate")
    missing = always("sdn '{name}' does not exist")

    def __init__(self) -> None:
        if self.word:
            self.key, self.acl = self.word, f"/sdn/{self.word}s/{{name}}"
            self.failing = f"{{verb}} sdn {self.word} object failed"
            self.taken = f"sdn {self.word} object ID '{{name}}' already defined"
        super().__init__()

    @contextmanager
    def lock(self, call: Call, verb: str) -> Iterator[None]:
        with changing(self.failing.format(verb=verb)):
            sdn_of(call.world).check_lock(call.params.get("lock-token"))
            yield


class _Objects(SdnSections):
    """What waits for `apply`: shown with pending changes marked, as running, or as configured."""

    objects: Kind

    def file(self, call: Call) -> SectionFile:
        return sdn_of(call.world).files[self.objects]

    def select_sections(self, call: Call) -> Mapping[str, Section]:
        sdn, found = sdn_of(call.world), self.all(call)
        if call.params.get("pending"):
            found = sdn.pending(self.objects)
        elif call.params.get("running"):
            found = sdn.running(self.objects)
        return dict(sorted(found.items()))

    def digest(self, call: Call) -> str | None:
        """Only the configuration itself has a digest; the other views carry an empty one."""
        return None if call.params.get("pending") or call.params.get("running") else self.file(call).digest()

    def row(self, call: Call, name: str, section: Section) -> Section:
        return {self.key: name, **section, "digest": self.digest(call)}


class _Zones(_Objects):
    path, word, objects = "/cluster/sdn/zones", "zone", "zones"

    def check(self, call: Call, name: str, section: Section, before: Section | None) -> None:
        sdn = sdn_of(call.world)
        has_subnets = any(subnet.startswith(f"{name}-") for subnet in sdn.files["subnets"].sections)
        if before is not None and section.get("ipam") != before.get("ipam") and has_subnets:
            raise bad_parameters({"ipam": "can't change ipam if a subnet is already defined in this zone"})
        sdn.check_zone(section)

    def check_unused(self, call: Call, name: str) -> None:
        sdn_of(call.world).check_zone_unused(name)


class _Controllers(_Objects):
    path, word, objects = "/cluster/sdn/controllers", "controller", "controllers"

    def check_unused(self, call: Call, name: str) -> None:
        for zone, section in sdn_of(call.world).files["zones"].sections.items():
            if section.get("controller") == name:
                raise failure(f"controller {name} is used by {zone}")


def require_vnet(call: Call, *privileges: str) -> None:
    """The zone of a vnet is part of its permission path, so the vnet must exist."""
    vnet = call.values["vnet"]
    zone = sdn_of(call.world).require_object("vnets", vnet)["zone"]
    call.require(f"/sdn/zones/{zone}/{vnet}", *privileges, any_of=True)


class _InZone(_Objects):
    """Objects under a vnet's permission path."""

    def update(self, call: Call) -> None:
        require_vnet(call, "SDN.Allocate")
        super().update(call)

    def delete(self, call: Call) -> None:
        require_vnet(call, "SDN.Allocate")
        super().delete(call)


class _Vnets(_InZone):
    path, word, objects = "/cluster/sdn/vnets", "vnet", "vnets"
    kind, locks_early = "vnet", True

    def visible(self, call: Call, name: str, section: Section) -> bool:
        zone = section.get("zone", section.get("pending", {}).get("zone"))
        return call.allowed(f"/sdn/zones/{zone}/{name}", *self.readers)

    def read(self, call: Call) -> Any:
        name = self.name(call)
        existing(self.all(call).get(name), f"sdn vnet '{name}' does not exist")
        require_vnet(call, *self.readers)
        return super().read(call)

    def check(self, call: Call, name: str, section: Section, before: Section | None) -> None:
        sdn = sdn_of(call.world)
        if before is not None and section["zone"] != before["zone"] and sdn.subnets_of(name):
            raise bad_parameters({"zone": "can't change zone if subnets exist"})
        sdn.check_vnet(name, section)

    def check_unused(self, call: Call, name: str) -> None:
        if sdn_of(call.world).subnets_of(name):
            raise bad_parameters({"vnet": "Can't delete vnet if subnets exists"})


class _Subnets(_InZone):
    path, word, objects = "/cluster/sdn/vnets/{vnet}/subnets", "subnet", "subnets"
    kind, locks_early = "subnet", True
    missing = texts(read="sdn subnet '{name}' does not exist", update="sdn subnet '{name}' does not exist")

    def name(self, call: Call) -> str:
        given = super().name(call)
        if "/" not in given:
            return given
        zone = sdn_of(call.world).require_object("vnets", call.values["vnet"])["zone"]
        return f"{zone}-{given.replace('/', '-')}"

    def list(self, call: Call) -> Any:
        require_vnet(call, *self.readers)
        return super().list(call)

    def read(self, call: Call) -> Any:
        require_vnet(call, *self.readers)
        row = super().read(call)
        if row["vnet"] != call.values["vnet"]:
            raise bad_parameters({"vnet": "wrong vnet"})
        return row

    def create(self, call: Call) -> None:
        _check_network(call.params["subnet"])
        require_vnet(call, "SDN.Allocate")
        super().create(call)

    def visible(self, call: Call, _name: str, section: Section) -> bool:
        return section.get("vnet") == call.values["vnet"]

    def row(self, call: Call, name: str, subnet: Section) -> Section:
        """A subnet with the fields that its id implies."""
        zone, network, mask = name.split("-")
        return {
            "subnet": name,
            "id": name,
            **subnet,
            "zone": zone,
            "network": network,
            "mask": mask,
            "cidr": f"{network}/{mask}",
            "dhcp-range": dhcp_ranges(subnet),
            "digest": self.digest(call),
        }

    def check(self, call: Call, name: str, section: Section, _before: Section | None) -> None:
        sdn_of(call.world).check_subnet(name, section)


for _kind in (_Zones, _Controllers, _Vnets, _Subnets):
    _kind()


def _check_network(text: str) -> None:
    """The format of the parameter: a network, or an id that contains one."""
    network = text
    if "/" not in text:
        parts = text.split("-")
        network = "/".join(parts[1:]) if len(parts) == 3 else ""
    try:
        ipaddress.ip_network(network, strict=False)
    except ValueError as error:
        problem = "invalid format - value does not look like a valid CIDR network\n"
        raise bad_parameters({"subnet": problem}) from error
    if "/" not in network:
        raise bad_parameters({"subnet": "invalid format - value does not look like a valid CIDR network\n"})
