"""What a caller can name: everything that the world has, spelled well and badly."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from pve_simulator.world import World
from tests.oracle.estate import HIDDEN, UNTOUCHABLE

OUTSIDE: Final = ("outside.example", "198.51.100.7")
"""Addresses of strangers."""
SEPARATORS: Final = (",", ";", " ", ", ", "\t", "\n", "\0", ",,", " ;")
WORDS: Final = ("alpha", "beta-2", "gamma", "web", "x1")
_CONFIG_KEYS: Final = (
    *("scsi0", "scsi1", "scsi2", "ide0", "ide2", "sata0", "virtio0", "unused0", "unused1", "efidisk0", "tpmstate0"),
    *("rootfs", "mp0", "mp1", "cdrom", "net0", "description", "tags", "name", "hostname", "onboot", "protection"),
    *("agent", "vmstate", "parent", "lock", "memory", "cores", "boot", "startup", "hostpci0", "virtiofs0", "digest"),
)


class Names:
    """Draws of one generator; the same seed draws the same."""

    def __init__(self, world: World, chance: Random) -> None:
        self.chance = chance
        self._world = world
        self.move_on()

    def move_on(self, node: str | None = None) -> None:
        """Look at another node: what is named from now on is mostly there, for most calls are about one node."""
        self._here = node if node in self._world.nodes else self.chance.choice(list(self._world.nodes))

    def pick(self, *options: Any) -> Any:
        return self.chance.choice(options)

    def _one(self, *names: str) -> str:
        return self.chance.choice(names)

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    # -- guests ------------------------------------------------------------------------------------------------------

    def vmid(self, kind: str | None = None) -> int:
        """Rather a free one: of a protected one it is soon said that it is."""
        vmids = [vmid for vmid, guest in self._world.guests.items() if kind in (None, guest.kind)]
        if self.often(0.5):
            vmids = [vmid for vmid in vmids if self._world.guests[vmid].node == self._here] or vmids
        free = [vmid for vmid in vmids if vmid not in UNTOUCHABLE]
        return self.chance.choice(free if free and self.often(0.5) else vmids)

    def free_vmid(self) -> int:
        return self.chance.choice((self.chance.randint(400, 999), self.chance.randint(10_000, 99_999), 315, 888))

    def guest(self) -> Any:
        """As a tool takes it: by id or name."""
        vmid = self.vmid()
        spelled = self.pick(vmid, vmid, vmid, str(vmid), self._world.guests[vmid].name)
        return self.badly(spelled) if self.often(0.08) else spelled

    def badly(self, value: Any) -> Any:
        """The same in another spelling."""
        text = str(value)
        return self.pick(
            *(f" {text}", f"{text} ", f"0{text}", f"+{text}", text.upper(), text.title(), f"{text}\n", f"\t{text}"),
            *(
                "".join(chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character for character in text),
                f"{text}.0",
                f"{text}\0",
            ),
            *(text.replace("o", "\u043e"), f"{text}\u200b", [value], [text, None], f"vm/{text}", f"vm:{text}"),
        )

    def snapshot(self) -> str:
        names = [name for vmid, guest in self._world.guests.items() if vmid not in HIDDEN for name in guest.snapshots]
        return self._one(*names, "alpha", "current")

    def config_key(self, vmid: int | None = None) -> str:
        guest = self._world.guests.get(vmid) if vmid is not None else None
        own = tuple(guest.config) if guest else ()
        key = str(self.pick(*own) if own and self.often(0.8) else self.pick(*_CONFIG_KEYS))
        return str(self.badly(key)) if self.often(0.08) else key

    def sid(self) -> str:
        """As the HA manager calls a guest."""
        vmid = self.vmid()
        guest = self._world.guests[vmid]
        return self._one(guest.sid, guest.sid, str(vmid))

    def task(self) -> str:
        return self._one(*self._world.tasks._by_upid)

    def host(self) -> str:
        """A machine that is known here: names that would have to be looked up are not asked for."""
        return self._one(str(self.guest()), self.node(), "127.0.0.1")

    def address_of_resource(self) -> str:
        inside = (f"guests/{self.guest()}", f"nodes/{self.node()}", f"storage/{self.storage()}", f"tasks/{self.task()}")
        return f"pve://{self._one('cluster', *inside)}"

    def typed(self) -> str:
        """The beginning of a name, as someone types it."""
        return str(self.guest())[: self.chance.randint(0, 3)]

    # -- the rest ----------------------------------------------------------------------------------------------------

    def node(self) -> str:
        return self._here if self.often(0.6) else self._one(*self._world.nodes, "localhost")

    def node_of(self, vmid: int) -> str:
        guest = self._world.guests.get(vmid)
        return guest.node if guest and self.often(0.9) else self.node()

    def storage(self) -> str:
        return self._one(*self._world.storages)

    def volume(self) -> str:
        return self._one(*(volid for _, volid in self._volumes()))

    def disk_volume(self) -> str:
        return self._volume_of("images", "rootdir")

    def backup(self) -> str:
        return self._volume_of("backup")

    def file(self) -> str:
        return self._volume_of("iso", "vztmpl", "import")

    def backup_storage(self) -> str:
        return self._one("nas", "nas", "local", "pbs", self.storage())

    def _volume_of(self, *contents: str) -> str:
        return self._one(*(volid for content, volid in self._volumes() if content in contents))

    def _volumes(self) -> list[tuple[str, str]]:
        near = self.often(0.8)
        return [
            (volume.content, volume.volid)
            for storage in self._world.storages.values()
            for node, space in storage.spaces.items()
            for volume in space.volumes.values()
            if not near or node in ("", self._here)
        ]

    def pool(self) -> str:
        return self._one(*self._world.access.pools)

    def user(self) -> str:
        return self._one(*self._world.access.users, "eve@pve")

    def tag(self) -> str:
        return self._one("sacred", "unseen", "kept", "free", "lab", "prod", "new-tag")

    def word(self) -> str:
        return self._one(*WORDS)

    def address(self) -> str:
        return self._one(*OUTSIDE, "192.168.10.5", "10.9.0.1")

    def url(self) -> str:
        return f"https://{self._one(*OUTSIDE)}/{self.word()}.iso"

    def flag(self) -> Any:
        return self.pick(0, 1, True, False, "0", "1", None, "", "yes", "on")

    def listed(self, draw: Any, most: int = 3) -> Any:
        """Several of a kind, as a list, as a text, or as a list whose elements are texts with separators in them."""
        parts = [draw() for _ in range(self.chance.randint(1, most))]
        joined = str(self.pick(*SEPARATORS)).join(str(part) for part in parts)
        return self.pick(parts, ",".join(map(str, parts)), joined, joined, [joined], [joined], [*parts, None])

    def misshapen(self, value: Any) -> Any:
        """The same in a shape that someone might misread."""
        return self.pick(
            *(None, "", [value], [value, value], [None, value], {"a": value}, f"{value},{value}", self.badly(value))
        )
