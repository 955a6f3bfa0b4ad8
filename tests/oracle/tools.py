"""Calls of tools: the required arguments, some of the optional ones, drawn by name from what the world has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pve_schema.schema import Facts
from tests.generators.population import KEY
from tests.oracle.api import ApiCalls
from tests.oracle.names import Names

Schema = Mapping[str, Any]
_OPTIONS: Final = (
    *("cdrom", "scsi[n]", "unused[n]", "delete", "ide[n]", "template", "mp[n]", "rootfs", "force", "pool", "archive"),
    *("virtiofs[n]", "tags", "name", "hostname", "protection"),
)
"""Of the options of a guest: those worth trying."""
_USUAL: Final = ("vmid", "name", "snapname", "storage", "target", "new_vmid", "newid", "volid", "disk", "size")


class ToolCalls:
    def __init__(self, facts: Facts, names: Names, api: ApiCalls) -> None:
        self._names = names
        self._api = api
        self._chance = names.chance
        self._options_of = [
            facts.endpoint("PUT", f"/nodes/{{node}}/{kind}/{{vmid}}/config").parameters for kind in ("qemu", "lxc")
        ]
        self._draws = self._by_name()

    def arguments(self, schema: Schema, bases: list[dict[str, Any]], most: int = 3) -> dict[str, Any]:
        """From arguments that go together, if there are any, else from the required ones."""
        properties, names = schema.get("properties", {}), self._names
        names.move_on()
        if bases and names.often(0.6):
            arguments = dict(self._chance.choice(bases))
            arguments |= {name: self.value(name, properties.get(name, {})) for name in arguments if names.often(0.3)}
        else:
            arguments = {name: self.value(name, properties[name]) for name in schema.get("required", [])}
        optional = [
            name for name in properties if name not in arguments and name not in ("dry_run", "wait", "plan_token")
        ]
        for _ in range(self._chance.randint(0, most) if optional else 0):
            name = self._chance.choice(optional)
            arguments[name] = self.value(name, properties[name])
        if arguments and names.often(0.15):
            name = self._chance.choice([*arguments])
            arguments[name] = names.misshapen(arguments[name])
        return arguments

    def of_another_server(self, tool: str, schema: Schema) -> dict[str, Any]:
        """Those servers want a guest's node and kind as well, and a word that it is meant."""
        names, properties = self._names, schema.get("properties", {})
        arguments = self.arguments(schema, [], most=5)
        for name in _USUAL:
            if name in properties and name not in arguments and names.often(0.5):
                arguments[name] = self.value(name, properties[name])
        arguments |= {name: True for name in ("confirm", "destructive") if name in properties and names.often(0.9)}
        if "vmid" in arguments and names.often(0.8):
            self._make_fit(tool, schema, arguments)
        arguments.pop("dry_run", None)
        return arguments

    def _make_fit(self, tool: str, schema: Schema, arguments: dict[str, Any]) -> None:
        """A guest of the kind that the tool is for, on its own node, and not by another name at once."""
        kind = "lxc" if "lxc" in tool or "container" in tool else "qemu" if "vm" in tool else None
        vmid = self._names.vmid(arguments["type"] if arguments.get("type") in ("qemu", "lxc") else kind)
        if "create" not in tool and "restore" not in tool:
            arguments["vmid"] = str(vmid) if isinstance(arguments["vmid"], str) else vmid
            if "name" not in schema.get("required", ()) and self._names.often(0.7):
                arguments.pop("name", None)
        if "node" in arguments:
            arguments["node"] = self._names.node_of(vmid)

    def value(self, name: str, spec: Schema) -> Any:
        draw = self._draws.get(name)
        if draw is None:
            return self._by_type(name, spec)
        drawn = draw()
        if spec.get("type") == "array" and not isinstance(drawn, list):
            return [drawn] if self._names.often(0.7) else [drawn, draw()]
        return str(drawn) if spec.get("type") == "string" and not isinstance(drawn, str) else drawn

    def _by_type(self, name: str, spec: Schema) -> Any:
        if "enum" in spec:
            return self._chance.choice(spec["enum"])
        if "anyOf" in spec:
            return self._by_type(name, self._chance.choice(spec["anyOf"]))
        match spec.get("type"):
            case "boolean":
                return self._names.pick(True, False)
            case "integer" | "number":
                least = int(spec.get("minimum", 0))
                return self._names.pick(least, least + 1, self._chance.randint(least, least + 40))
            case "array":
                return [self._by_type(name, spec.get("items", {})) for _ in range(self._chance.randint(1, 2))]
            case "object":
                return self.options()
        return self._names.word()

    # -- what is made of several values --------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        """Any options of a guest, by PVE's own names."""
        schema = self._chance.choice(self._options_of)
        options = {}
        for _ in range(self._names.pick(1, 1, 2)):
            name = self._names.pick(*_OPTIONS) if self._names.often(0.7) else self._names.pick(*schema)
            options[name.replace("[n]", str(self._chance.randint(0, 3)))] = self._api.value(name, schema.get(name, {}))
        return options

    def _disk(self) -> Any:
        names = self._names
        more = names.pick(
            {"file": names.disk_volume()}, {"volume": names.disk_volume()}, {"import_from": names.volume()},
            {"import-from": names.volume()}, {"media": "cdrom"}, {"storage": names.storage()}, {"format": "qcow2"},
            {"bus": names.pick("scsi", "virtio", "sata", "ide")}, {},
        )  # fmt: skip
        return names.pick(
            "4G", f"{names.storage()}:4G", names.disk_volume(), f"{names.storage()}:1,file={names.disk_volume()}",
            {"size": names.pick("1G", 2), **more}, {"size": "1G", "storage": "local-lvm", **more}, more,
            {"size": "1G", "storage": "local-lvm", "file": names.disk_volume()},
        )  # fmt: skip

    def _document(self) -> dict[str, Any]:
        """An infrastructure document with guests in it, some of which are there already."""
        names = self._names
        guests = {}
        for _ in range(names.pick(1, 1, 2, 4)):
            base: dict[str, Any] = names.pick(
                {"type": "ct", "template": "debian-13"}, {"type": "vm", "clone": "debian-13-cloud"}, {"type": "vm"}
            )
            more = names.pick(
                {}, {"running": False}, {"memory": "1G"}, {"cores": 1}, {"replicas": 2},
                {"settings": {"pool": names.pool()}}, {"settings": {"node": names.node()}},
                {"settings": {"options": self.options()}}, {"settings": {"vmid": names.free_vmid()}},
                {"settings": {"disks": [self._disk()]}},
            )  # fmt: skip
            guests[str(names.pick(names.word(), names.guest()))] = {**base, **more}
        return {"name": names.pick("farm", "farm", "other"), "guests": guests}

    def _changes(self) -> dict[str, Any]:
        names = self._names
        resources = names.pick({"cores": 2}, {"memory": "1G"}, self.options())
        return self._chance.choice(
            ({"resources": resources}, {"services": {"cron": "restart"}}, {"network": {"hostname": "x1"}})
        )

    def _place(self) -> dict[str, Any]:
        names = self._names
        more = names.pick({}, {"pool": names.pool()}, {"node": names.node()}, {"options": self.options()})
        return {"type": names.pick("ct", "vm"), "name": names.word(), **more}

    def _guests(self) -> list[Any]:
        return [self._names.guest() for _ in range(self._chance.randint(1, 5))]

    def _by_name(self) -> dict[str, Callable[[], Any]]:
        names, api = self._names, self._api
        pick, word, guest, guests = names.pick, names.word, names.guest, self._guests
        one_or_more = lambda: pick(guest(), guest(), guests())  # noqa: E731
        keys = lambda: names.listed(names.config_key)  # noqa: E731
        return {
            # -- guests
            "guest": one_or_more, "guests": lambda: pick(guests(), guest(), names.tag()), "exclude": one_or_more,
            "of": lambda: pick(guest(), names.node(), "web"), "targets": one_or_more, "device": guest,
            "device_id": guest, "device_ids": lambda: [guest()], "vm_name": guest, "host": names.host,
            "name": lambda: pick(word(), word(), "ledger-2", "docker*", guest()), "hostname": names.host,
            "vmid": lambda: pick(names.vmid(), names.vmid(), names.free_vmid()), "source_vmid": names.vmid,
            "target_vmid": names.vmid, "new_vmid": names.free_vmid, "newid": names.free_vmid,
            "tag": names.tag, "tags": lambda: pick([names.tag()], [names.tag(), names.tag()], names.tag()),
            "add_tags": lambda: [names.tag()], "remove_tags": lambda: pick([names.tag()], ["sacred"]),
            "snapshot": names.snapshot, "snapname": names.snapshot, "task": names.task, "upid": names.task,
            # -- places
            "node": names.node, "target": names.node, "target_node": names.node, "source_node": names.node,
            "nodes": lambda: names.listed(names.node), "storage": names.storage, "target_storage": names.storage,
            "root_storage": names.storage, "template_storage": names.storage, "pool": names.pool,
            "poolid": names.pool, "add_guests": lambda: [guest()], "remove_guests": lambda: [guest()],
            "add_storages": lambda: [names.storage()], "remove_storages": lambda: [names.storage()],
            # -- volumes and disks
            "backup": names.backup, "archive": names.backup, "volume": names.volume, "volid": names.volume,
            "iso": names.file, "ostemplate": names.file, "import_from": names.volume, "source": names.volume,
            "cdrom": lambda: pick("none", names.file(), names.disk_volume(), api.drive()),
            "template": lambda: pick(names.file(), guest()), "disk": names.config_key, "slot": names.config_key,
            "nic": lambda: pick("net0", 0, names.config_key()),
            "disks": lambda: [self._disk(), self._disk()][: pick(1, 2)],
            "rootfs": lambda: pick("4G", names.disk_volume(), f"{names.storage()}:4G", f"volume={names.disk_volume()}"),
            "mounts": lambda: [pick(
                {"size": "1G", "path": "/srv"}, {"volume": names.disk_volume(), "path": "/srv"},
                f"{names.disk_volume()},mp=/x", "/etc,mp=/x",
            )],
            "size": lambda: pick(2, "2G", "+1G", "1G"),
            # -- options
            "options": lambda: pick(self.options(), self.options(), {pick("file", "volume"): names.disk_volume()}),
            "config_changes": self._changes, "changes": self._changes, "params": self.options,
            "vm_config": self.options, "unset": keys, "revert": keys, "remove": keys,
            "delete": lambda: pick(True, False, names.config_key()), "document": self._document, "place": self._place,
            "deployment_plan": lambda: pick(self._document(), {"services": [{"name": word(), "target_device_id": 1}]}),
            "change_plan": self._document, "plan": lambda: pick("farm", word()), "replicas": lambda: pick(0, 1, 2, 5),
            "scaling_plan": lambda: {"scale_up": [{"service_name": word(), "target_replicas": 2}]},
            "memory": lambda: pick(512, 1024, "1G"), "cores": lambda: pick(1, 2), "digest": lambda: "0" * 40,
            "keep": lambda: pick("last=1", "all", "daily=2", {"last": 1}, True), "startup": lambda: "order=2",
            "job": lambda: pick("nightly", "weekly", "jewels", "102-0", "311-0", "new"),
            "schedule": lambda: pick("21:00", "*/15"),
            "state": lambda: pick("started", "stopped", "disabled", "ignored"),
            "bridge": lambda: pick("vmbr0", "vmbr9"), "net0": lambda: "virtio,bridge=vmbr0",
            "networks": lambda: ["vmbr0"],
            "ip": lambda: pick("dhcp", "10.0.0.7/24"), "bios": lambda: pick("ovmf", "seabios"),
            "content": lambda: pick("iso", "backup", "images"),
            # -- the rest
            "file": lambda: "/nowhere/restored",  # files of this machine are not the oracle's to write
            "url": names.url, "user": names.user, "userid": names.user,
            "service": lambda: pick("cron", "ssh", "pvestatd", "uptime-kuma"),
            "path": lambda: pick("/srv/data", "/etc/hostname", "/vms/301", "/"), "sort": word, "search": word,
            "command": lambda: pick(["true"], "uptime", ["ls"]), "confirm": lambda: pick(True, True, False),
            "description": lambda: pick("a note", "two\nlines", "delete: scsi0"), "cipassword": lambda: "long-enough",
            "password": lambda: "long-enough", "ssh_keys": lambda: [KEY], "sshkeys": lambda: KEY,
            "wait": lambda: 5, "timeout": lambda: pick(1, 5), "timeoutSeconds": lambda: 1, "seconds": lambda: 1,
        }  # fmt: skip
