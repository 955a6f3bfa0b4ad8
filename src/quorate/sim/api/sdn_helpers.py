"""What SDN zones lean on: controllers, IP address managers, DNS servers, and the (empty) list of fabrics."""

from __future__ import annotations

from typing import Any

from quorate.sim.api.sdn_common import digest_shown, options, sdn_change, sdn_of, view
from quorate.sim.config_files import EMPTY_DIGEST
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.sdn import Sdn, network_of
from quorate.sim.sections import Section, SectionFile

_CONTROLLER = "/cluster/sdn/controllers/{controller}"


@route("GET /cluster/sdn/controllers")
def list_controllers(call: Call) -> list[Section]:
    wanted = call.params.get("type")
    return [
        {"controller": name, **controller, "digest": digest_shown(call, "controllers")}
        for name, controller in sorted(view(call, "controllers").items())
        if wanted in (None, controller.get("type"))
        and call.allowed(f"/sdn/controllers/{name}", "SDN.Audit", "SDN.Allocate")
    ]


@route(f"GET {_CONTROLLER}")
def one_controller(call: Call) -> Section:
    name = call.values["controller"]
    controller = view(call, "controllers").get(name)
    if controller is None:
        raise failure(f"sdn '{name}' does not exist")
    return {"controller": name, **controller, "digest": digest_shown(call, "controllers")}


@route("POST /cluster/sdn/controllers")
def create_controller(call: Call) -> None:
    name = call.params["controller"]
    file = sdn_of(call.world).files["controllers"]
    given = file.new_section(call.params["type"], options(call, "controller", "type"))
    with sdn_change(call, "create sdn controller object"):
        if name in file.sections:
            raise failure(f"sdn controller object ID '{name}' already defined")
        file.sections[name] = given


@route(f"PUT {_CONTROLLER}")
def update_controller(call: Call) -> None:
    with sdn_change(call, "update sdn controller object") as sdn:
        file = sdn.files["controllers"]
        file.check_digest(call.params.get("digest"))
        section = sdn.configured("controllers", call.values["controller"])
        file.change(section, options(call, "controller"), call.params.get("delete"))


@route(f"DELETE {_CONTROLLER}")
def delete_controller(call: Call) -> None:
    name = call.values["controller"]
    with sdn_change(call, "delete sdn controller object") as sdn:
        sdn.configured("controllers", name)
        for zone, section in sdn.files["zones"].sections.items():
            if section.get("controller") == name:
                raise failure(f"controller {name} is used by {zone}")
        del sdn.files["controllers"].sections[name]


class _Plain:
    """IPAMs and DNS servers: changes to them count at once."""

    def __init__(self, word: str, path: str) -> None:
        self.word = word
        self.path = path
        route(f"GET {path}")(self.list)
        route(f"POST {path}")(self.create)
        route(f"GET {path}/{{{word}}}")(self.read)
        route(f"PUT {path}/{{{word}}}")(self.update)
        route(f"DELETE {path}/{{{word}}}")(self.delete)

    def list(self, call: Call) -> list[Section]:
        wanted = call.params.get("type")
        rows = [self._row(call, name, section) for name, section in sorted(self._sections(call).items())]
        return [
            row
            for row in rows
            if wanted in (None, row["type"])
            and call.allowed(f"/sdn/{self.word}s/{row[self.word]}", "SDN.Audit", "SDN.Allocate")
        ]

    def read(self, call: Call) -> Section:
        return self._row(call, call.values[self.word], self._existing(call))

    def create(self, call: Call) -> None:
        name, file = call.params[self.word], self._file(call)
        given = file.new_section(call.params["type"], options(call, self.word, "type"))
        with sdn_change(call, f"create sdn {self.word} object"):
            if name in self._sections(call):
                raise failure(f"sdn {self.word} object ID '{name}' already defined")
            file.sections[name] = given

    def update(self, call: Call) -> None:
        with sdn_change(call, f"update sdn {self.word} object"):
            file = self._file(call)
            file.check_digest(call.params.get("digest"))
            file.change(self._existing(call), options(call, self.word), call.params.get("delete"))

    def delete(self, call: Call) -> None:
        name = call.values[self.word]
        with sdn_change(call, f"delete sdn {self.word} object") as sdn:
            self._existing(call)
            for zone, section in sdn.files["zones"].sections.items():
                if name in (section.get(self.word), section.get(f"reverse{self.word}")):
                    raise failure(f"{self.word} {name} is used by {zone}")
            self._file(call).sections.pop(name, None)

    def _file(self, call: Call) -> SectionFile:
        sdn = call.world.part(Sdn)
        return sdn.ipams if self.word == "ipam" else sdn.dns

    def _sections(self, call: Call) -> dict[str, Section]:
        """Beside the configured ones there is always PVE's own address manager."""
        builtin: dict[str, Section] = {"pve": {"type": "pve"}} if self.word == "ipam" else {}
        return builtin | self._file(call).sections

    def _existing(self, call: Call) -> Section:
        name = call.values[self.word]
        section = self._sections(call).get(name)
        if section is None:
            raise failure(f"sdn '{name}' does not exist")
        return section

    def _row(self, call: Call, name: str, section: Section) -> Section:
        return {self.word: name, **section, "digest": self._file(call).digest()}


_Plain("ipam", "/cluster/sdn/ipams")
_Plain("dns", "/cluster/sdn/dns")


@route("GET /cluster/sdn/ipams/{ipam}/status")
def addresses(call: Call) -> list[dict[str, Any]]:
    """What PVE's own address manager knows: the gateways of the subnets."""
    if call.values["ipam"] != "pve":
        raise bad_parameters({"ipam": "only the PVE IPAM plugin supports this"})
    sdn = sdn_of(call.world)
    rows = []
    for name, subnet in sorted(sdn.files["subnets"].sections.items()):
        zone = name.split("-")[0]
        seen = call.allowed(f"/sdn/zones/{zone}/{subnet['vnet']}", "SDN.Audit", "SDN.Allocate")
        if seen and "gateway" in subnet:
            row = {"zone": zone, "vnet": subnet["vnet"], "subnet": str(network_of(name)), "gateway": 1}
            rows.append({**row, "ip": subnet["gateway"]})
    return rows


@route("GET /cluster/sdn/fabrics/fabric", "GET /cluster/sdn/fabrics/node")
def no_fabrics(_call: Call) -> list[Any]:
    return []


@route("GET /cluster/sdn/fabrics/all")
def all_fabrics(_call: Call) -> dict[str, Any]:
    """Without fabrics PVE still lists the digests of its two empty files."""
    return {"fabrics": [{"digest": EMPTY_DIGEST}, {"digest": EMPTY_DIGEST}], "nodes": []}
