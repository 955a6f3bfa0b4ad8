"""What a request does: every effect of it, each with its risk, its reason and whether it can be undone.

One table decides, for named tools and the raw API alike. It looks at requests in wire form, with PVE's defaults behind
them. Reading is READ; what looks inside a guest, or makes PVE ask another machine, is LOOK_INSIDE. Of the writes,
CHANGE is what `grants` lists; everything that deletes or overwrites data, grants privileges, hands out the node's own
devices or files, stops a node, rewrites networks or cannot be undone is DESTROY, and so is what nobody has classified.
Some endpoints are not called at all: `refusal` says which and why.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pve_schema.schema import Endpoint, Match
from quorate.hints import ToolHint, tools
from quorate.operations.grants import find_ungranted_options, is_granted
from quorate.operations.registry import Risk
from quorate.pve import values
from quorate.pve.privileges import root_only
from quorate.pve.targets import NamedVolume, drive_volumes, owner
from quorate.pve.wire import Request, encode

ORDER: Final = (Risk.READ, Risk.LOOK_INSIDE, Risk.CHANGE, Risk.DESTROY)


class Reason(enum.Enum):
    """Why a request has its risk. Code uses the name; people read the words."""

    def __init__(self, risk: Risk, words: str, undoable: bool = True) -> None:
        self.risk = risk
        self.words = words
        self.undoable = undoable
        """Whether another call can bring back what was there before."""

    READS = Risk.READ, "it reads"
    ASKS_GUEST = Risk.LOOK_INSIDE, "the guest itself is queried"
    SHOWS_FILES = Risk.LOOK_INSIDE, "it shows files of guests"
    ASKS_OUTSIDE = Risk.LOOK_INSIDE, "PVE contacts a machine outside the cluster"

    CHANGES = Risk.CHANGE, "it changes something that can be changed back"

    DELETES = Risk.DESTROY, "it deletes something that can be created again"
    DELETES_DATA = Risk.DESTROY, "it deletes data", False
    DELETES_LOGIN = Risk.DESTROY, "it deletes a login and its secrets", False
    ENDS_TASK = Risk.DESTROY, "it ends a task halfway"
    GRANTS = Risk.DESTROY, "it grants or revokes privileges"
    JOINS_POOL = Risk.DESTROY, "roles on a pool apply to its members"
    FIREWALL = Risk.DESTROY, "it opens or closes the firewall"
    NETWORKS = Risk.DESTROY, "it rewrites the networks of nodes"
    DROPS_EDITS = Risk.DESTROY, "it discards edits permanently", False
    NODE_FILE = Risk.DESTROY, "it overwrites a file of the node"
    STOPS_NODE = Risk.DESTROY, "it stops a node or all its guests", False
    STOPS_GUESTS = Risk.DESTROY, "it stops guests, if necessary by force", False
    STOPS_SERVICE = Risk.DESTROY, "the node may be lost to the cluster"
    UNGUARDED = Risk.DESTROY, "it decides whether guests are recovered"
    ANY_CALL = Risk.DESTROY, "it runs arbitrary other calls", False
    OVERWRITES_DISK = Risk.DESTROY, "it overwrites a disk", False
    STOPS_STORAGE = Risk.DESTROY, "it stops storage"
    CERTIFICATE = Risk.DESTROY, "it overwrites the certificate and its key", False
    MEMBERSHIP = Risk.DESTROY, "it changes the cluster's members", False
    CUTS_POWER = Risk.DESTROY, "unsaved data is lost", False
    ROLLS_BACK = Risk.DESTROY, "everything since the snapshot is lost", False
    MAKES_TEMPLATE = Risk.DESTROY, "the guest becomes a template and never runs again", False
    LEAVES_CLUSTER = Risk.DESTROY, "the guest leaves the cluster", False
    MONITOR = Risk.DESTROY, "QEMU executes any monitor command", False
    SETS_PASSWORD = Risk.DESTROY, "it sets a password", False
    REPLACES_SECRET = Risk.DESTROY, "it drops a stored secret, which cannot be read back", False
    OPENS_CONSOLE = Risk.DESTROY, "it opens a console"
    MAPS_DEVICE = Risk.DESTROY, "it gives guests devices or folders of the nodes"
    NEW_STORAGE = Risk.DESTROY, "it gives storage users access to folders, disks or servers"

    FORCED = Risk.DESTROY, "by force", False
    LOCKS = Risk.DESTROY, "only root on the node can unlock it again", False
    TAKES_DISK = Risk.DESTROY, "it removes a disk"
    REASSIGNS_DISK = Risk.DESTROY, "it gives a disk to another guest"
    TAKES_DEVICE = Risk.DESTROY, "it removes a device"
    DISK_PLACE = Risk.DESTROY, "it may replace a disk"
    FOREIGN_VOLUME = Risk.DESTROY, "the volume belongs to another guest, or its owner is unknown", False
    COPIES_VOLUME = Risk.DESTROY, "it copies the data of another guest, or of an unknown owner"
    NODE_DEVICE = Risk.DESTROY, "it gives the guest a device or folder of the node"
    PRIVILEGED = Risk.DESTROY, "root in the container is root on the node"
    NODE_CODE = Risk.DESTROY, "the node executes its content"
    DELETES_SOURCE = Risk.DESTROY, "it deletes the source", False
    PRUNES = Risk.DESTROY, "it deletes older backups", False
    BACKUPS = Risk.DESTROY, "backups may be lost", False
    DELETES_COPIES = Risk.DESTROY, "it deletes the copies", False
    DROPS_COPIES = Risk.DESTROY, "copies of data may be dropped", False
    REDIRECTS = Risk.DESTROY, "stored secrets or all traffic may be sent to another machine", False
    UNREADABLE = Risk.DESTROY, "it cannot be parsed reliably", False
    SENDS_OUT = Risk.DESTROY, "messages or metrics are sent to a machine that the caller chooses", False
    MISPLACES = Risk.DESTROY, "PVE may look for volumes where they are not"
    NODE_MEMORY = Risk.DESTROY, "it reserves memory of the node that other guests need"
    NODE_PACKAGES = Risk.DESTROY, "it decides where the node gets its packages"
    INTERNAL = Risk.DESTROY, "PVE uses it between its own nodes"
    WEAKENS = Risk.DESTROY, "it stops protecting something that is protected now"
    EMPTIES_BACKUPS = Risk.DESTROY, "new backups contain less, and the older ones are pruned", False
    UNKNOWN_OBJECT = Risk.DESTROY, "what it changes cannot be read, so what it would stop protecting is unknown"
    UNCLASSIFIED = Risk.DESTROY, "unclassified: no rule says that it is harmless"


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that a request does."""

    reason: Reason
    about: str = ""
    """The parameter that says so, or the default that does."""

    @property
    def risk(self) -> Risk:
        return self.reason.risk

    @property
    def undoable(self) -> bool:
        return self.reason.undoable

    def __str__(self) -> str:
        return f"{self.about}: {self.reason.words}" if self.about else self.reason.words


# -- by method and path ------------------------------------------------------------------------------------------------

_GUEST: Final = r"/nodes/{node}/(qemu|lxc)/{vmid}"
_CONFIG: Final = rf"{_GUEST}/config"
_CREATION: Final = r"/nodes/{node}/(qemu|lxc)"
_WRITES: Final = "POST PUT DELETE"
_VOLUMES: Final = r"/nodes/{node}/storage/{storage}/(content/{volume}|prunebackups)"

_RULES: Final = (
    ("GET", rf"{_GUEST}/agent/.+", Reason.ASKS_GUEST),
    ("GET", r".*/file-restore/.+", Reason.SHOWS_FILES),
    ("GET", r"/cluster/acme/(meta|tos)", Reason.ASKS_OUTSIDE),
    ("GET", r"/nodes/{node}/(query-url-metadata|query-oci-repo-tags|apt/changelog)", Reason.ASKS_OUTSIDE),
    ("GET", r"/nodes/{node}/scan/(cifs|glusterfs|iscsi|nfs|pbs)", Reason.ASKS_OUTSIDE),
    ("DELETE", rf"{_GUEST}(/snapshot/.*)?|{_VOLUMES}|/nodes/{{node}}/(disks|ceph)/.*", Reason.DELETES_DATA),
    ("DELETE", r"/access/(users|domains|tfa)/.*", Reason.DELETES_LOGIN),
    ("DELETE", r"/nodes/{node}/tasks/{upid}", Reason.ENDS_TASK),
    (_WRITES, r"/access(/.*)?|/cluster/jobs/realm-sync/.*", Reason.GRANTS),
    ("POST PUT", r"/(cluster|nodes/{node}|cluster/sdn/vnets/{vnet})/firewall/.*", Reason.FIREWALL),
    ("PUT", r"/nodes/{node}/network|/cluster/sdn", Reason.NETWORKS),
    ("POST", r"/nodes/{node}/ceph/init", Reason.NETWORKS),  # also those of a Ceph that already exists
    ("POST", r"/cluster/sdn/rollback", Reason.DROPS_EDITS),
    ("PUT POST", r"/nodes/{node}/(dns|hosts)", Reason.NODE_FILE),
    ("POST", r"/nodes/{node}/(status|stopall)", Reason.STOPS_NODE),
    ("POST", r"/cluster/bulk-action/guest/shutdown|/cluster/ha/resources/{sid}/relocate", Reason.STOPS_GUESTS),
    ("POST", r"/nodes/{node}/services/{service}/stop", Reason.STOPS_SERVICE),
    ("POST", r"/cluster/ha/status/(arm|disarm)-ha", Reason.UNGUARDED),
    ("POST", r"/nodes/{node}/execute", Reason.ANY_CALL),
    ("POST PUT", r"/nodes/{node}/disks/.*", Reason.OVERWRITES_DISK),
    ("POST", r"/nodes/{node}/ceph/osd", Reason.OVERWRITES_DISK),
    ("POST", r"/nodes/{node}/ceph/stop", Reason.STOPS_STORAGE),
    ("POST", r"/nodes/{node}/certificates/custom", Reason.CERTIFICATE),
    ("POST PUT", r"/cluster/config(/.*)?", Reason.MEMBERSHIP),
    ("POST", rf"{_GUEST}/status/(stop|reset)", Reason.CUTS_POWER),
    ("POST", rf"{_GUEST}/snapshot/{{snapname}}/rollback", Reason.ROLLS_BACK),
    ("POST", rf"{_GUEST}/template", Reason.MAKES_TEMPLATE),
    ("POST", rf"{_GUEST}/remote_migrate", Reason.LEAVES_CLUSTER),
    ("PUT", rf"{_GUEST}/unlink", Reason.TAKES_DISK),
    ("POST", rf"{_GUEST}/monitor", Reason.MONITOR),
    ("POST", rf"{_GUEST}/agent/set-user-password", Reason.SETS_PASSWORD),
    ("POST", r".*/(vncproxy|termproxy|spiceproxy|vncshell|spiceshell|mtunnel)", Reason.OPENS_CONSOLE),
    ("POST PUT", r"/cluster/mapping/.*", Reason.MAPS_DEVICE),
    ("POST", r"/storage", Reason.NEW_STORAGE),
    ("POST", r"/nodes/{node}/storage/{storage}/content/{volume}", Reason.COPIES_VOLUME),
    ("POST", r"/cluster/(metrics/server/{id}|notifications/endpoints/(gotify|smtp|webhook))", Reason.SENDS_OUT),
    ("POST PUT", r"/nodes/{node}/apt/repositories", Reason.NODE_PACKAGES),
    ("POST", r"/nodes/{node}/ceph/osd/{osdid}/out", Reason.DROPS_COPIES),
    ("POST PUT", r"/cluster/acme/account(/{name})?", Reason.CERTIFICATE),
    ("POST", rf"{_GUEST}/dbus-vmstate", Reason.INTERNAL),
)
_OTHERWISE: Final = {"GET": Reason.READS, "DELETE": Reason.DELETES, "POST": Reason.CHANGES, "PUT": Reason.CHANGES}
"""What remains of reads, of deletions and of what is granted."""


# -- by parameters -----------------------------------------------------------------------------------------------------


def _is_given(request: Request, name: str) -> bool:
    return request.has(name)


def _not_empty(request: Request, name: str) -> bool:
    return bool(request.params.get(name))


def _on(request: Request, name: str) -> bool:
    return request.has(name) and request.is_on(name)


def _not_on(request: Request, name: str) -> bool:
    """Off, or left out where PVE takes that for off. What is restored keeps what its backup says."""
    return not request.is_on(name) and (request.has(name) or not request.is_on("restore"))


def _given_and_not_on(request: Request, name: str) -> bool:
    return request.has(name) and not request.is_on(name)


def _weakens_container(request: Request, name: str) -> bool:
    parts = request.parts(name)
    return request.has(name) and (parts is None or bool({"mknod", "mount", "force_rw_sys"} & parts.keys()))


def _presses_sysrq(request: Request, name: str) -> bool:
    """Linux then resets, powers off or kills at once, whatever the third key is. QEMU also knows the key by number."""
    keys = {key.strip().lower() for key in request.text(name).split("-")}
    return bool(keys & {"sysrq", "print", "0x54", "0x37", "0xb7"})


def _is_path(request: Request, name: str) -> bool:
    return request.text(name).startswith("/")


def _not_secure(request: Request, name: str) -> bool:
    """How guests move between nodes."""
    return request.has(name) and request.text(name) not in ("secure", "type=secure")


def _one_of(*words: str) -> Callable[[Request, str], bool]:
    return lambda request, name: request.text(name) in words


def _lists(*names: str) -> Callable[[Request, str], bool]:
    return lambda request, name: bool({*names} & {*request.elements(name)})


def _lists_devices(*kinds: str) -> Callable[[Request, str], bool]:
    return lambda request, name: any(values.bus_of(element) in kinds for element in request.elements(name))


def _lists_unknown(request: Request, name: str) -> bool:
    """A list of options with at least one that PVE is not known to have."""
    return any(request.match.endpoint.schema_of(element) is None for element in request.elements(name))


def _takes_node_device(request: Request, name: str) -> bool:
    """Whether an option passes a device of the node on. Sockets and SPICE channels are not devices."""
    parts = request.parts(name) or {}
    return request.text(name) != "socket" and parts.get("host", "").lower() != "spice"


def _takes_node_entropy(request: Request, name: str) -> bool:
    return "/dev/hwrng" in request.text(name)


def _adds_storage(request: Request, name: str) -> bool:
    """A pool with erasure coding becomes a storage by default."""
    return request.has(name) and request.params.get("add_storages") != "0"


def _rebalances(request: Request, name: str) -> bool:
    """Lets the HA manager move running guests at any time."""
    parts = request.parts(name)
    return request.has(name) and (parts is None or values.is_on(parts.get("ha-auto-rebalance", "0")))


def _keeps_all(request: Request) -> bool:
    return request.has("prune-backups") and (request.parts("prune-backups") or {}).get("keep-all") == "1"


def _prunes(request: Request, name: str) -> bool:
    """Retention that drops something."""
    if name == "prune-backups":
        return request.has(name) and not _keeps_all(request)
    return request.has(name) and request.text(name) != "0"


def _prunes_by_default(request: Request, name: str) -> bool:
    return request.is_on(name) and not _keeps_all(request)


@dataclass(frozen=True, slots=True)
class RiskParameter:
    """A parameter that makes a write riskier than its path suggests, by its value or by PVE's default."""

    where: str
    """A regular expression that the whole path template has to match."""
    names: tuple[str, ...]
    """`usb[n]` stands for all of usb0, usb1, …"""
    says_so: Callable[[Request, str], bool]
    reason: Reason
    methods: str = "POST PUT"

    def fits(self, method: str, template: str) -> bool:
        return method in self.methods.split() and re.fullmatch(self.where, template) is not None

    def matching_parameters(self, request: Request) -> Iterator[str]:
        """The parameters that say so; also one that is not given, where its default does."""
        for name in self.names:
            if not name.endswith("[n]"):
                yield from (name,) if self.says_so(request, name) else ()
                continue
            numbered = re.compile(re.escape(name.removesuffix("[n]")) + r"\d+")
            yield from (param for param in request.params if numbered.fullmatch(param) and self.says_so(request, param))


_FORCE: Final = ("force", "force-delete", "forceStop", "force-stop", "overrule-shutdown", "skiplock")
_BACKUP_RUN: Final = r".*/vzdump|/cluster/backup"
_SENDS_SECRETS: Final = (
    r"/cluster/(metrics/server/{id}|notifications/endpoints/.*/{name}|sdn/(dns/{dns}|ipams/{ipam}))|/storage/{storage}"
)
_PLACES: Final = (
    "content-dirs", "mountpoint", "options", "pool", "data-pool", "namespace", "subdir", "fs-name", "zfs-base-path",
)  # fmt: skip
"""Options that say where on the node or the server a storage has its volumes."""
_ADDRESSES: Final = ("server", "server2", "url", "port", "monhost", "header", "otel-headers")
_PROOFS: Final = (
    "fingerprint",
    "verify-certificate",
    "otel-verify-ssl",
    "skip-cert-verification",
    "mode",
    "smbversion",
)
"""How PVE verifies that it talks to the right server, and that nobody listens."""

_HOLDS_SECRETS: Final = rf"{_SENDS_SECRETS}|/cluster/acme/plugins/{{id}}"
_STORED_SECRETS: Final = ("password", "keyring", "token", "key", "secret", "data")
_MIGRATION: Final = ("migration", "migration_unsecure", "replication")
_CEPH_FLAGS: Final = (
    "nobackfill", "nodeep-scrub", "nodown", "noin", "noout", "norebalance", "norecover", "noscrub", "notieragent",
    "noup",
)  # fmt: skip
"""They keep Ceph from noticing or repairing lost copies."""
_BETWEEN_NODES: Final = (
    "force-cpu", "machine", "migratedfrom", "migration_network", "migration_type", "nets-host-mtu", "stateuri",
    "targetstorage", "with-conntrack-state", "nocheck", "keepActive",
)  # fmt: skip

RISK_PARAMETERS: Final = (
    RiskParameter(r".*", _FORCE, _on, Reason.FORCED),
    RiskParameter(r"/nodes/{node}/qemu/{vmid}/sendkey", ("key",), _presses_sysrq, Reason.CUTS_POWER),
    RiskParameter(_CONFIG, ("delete",), _lists_devices("unused"), Reason.DELETES_DATA),
    RiskParameter(_CONFIG, ("delete",), _lists_devices(*values.DISKS), Reason.TAKES_DISK),
    RiskParameter(_CONFIG, ("delete",), _lists_devices("net", "ipconfig"), Reason.TAKES_DEVICE),
    RiskParameter(_CONFIG, ("delete",), _lists_unknown, Reason.UNREADABLE),
    RiskParameter(_CONFIG, ("delete",), _lists("lock"), Reason.FORCED),
    RiskParameter(_CONFIG, ("lock",), _is_given, Reason.LOCKS),
    RiskParameter(_CONFIG, ("template",), _on, Reason.MAKES_TEMPLATE),
    RiskParameter(
        rf"{_CONFIG}|{_CREATION}",
        ("hostpci[n]", "usb[n]", "serial[n]", "parallel[n]", "virtiofs[n]", "dev[n]"),
        _takes_node_device,
        Reason.NODE_DEVICE,
    ),
    RiskParameter(rf"{_CONFIG}|{_CREATION}", ("features",), _weakens_container, Reason.NODE_DEVICE),
    RiskParameter(rf"{_CONFIG}|{_CREATION}", ("ivshmem",), _is_given, Reason.NODE_DEVICE),
    RiskParameter(rf"{_CONFIG}|{_CREATION}", ("rng0",), _takes_node_entropy, Reason.NODE_DEVICE),
    RiskParameter(_CREATION, ("archive", "ostemplate"), _is_path, Reason.NODE_DEVICE),
    RiskParameter(r"/nodes/{node}/lxc", ("unprivileged",), _not_on, Reason.PRIVILEGED),
    RiskParameter(r"/nodes/{node}/lxc/{vmid}/config", ("unprivileged",), _given_and_not_on, Reason.PRIVILEGED),
    RiskParameter(rf"{_CONFIG}|{_CREATION}", ("args", "hookscript"), _is_given, Reason.NODE_CODE),
    RiskParameter(rf"{_CREATION}|{_GUEST}/clone", ("pool",), _not_empty, Reason.JOINS_POOL, "POST"),
    RiskParameter(r"/pools(/{poolid})?", ("vms", "storage"), _not_empty, Reason.JOINS_POOL, "PUT"),
    RiskParameter(rf"{_GUEST}/(move_disk|move_volume)", ("target-vmid",), _is_given, Reason.REASSIGNS_DISK),
    RiskParameter(rf"{_GUEST}/(move_disk|move_volume|migrate)", ("delete",), _on, Reason.DELETES_SOURCE),
    RiskParameter(_BACKUP_RUN, ("remove",), _prunes_by_default, Reason.PRUNES, "POST"),
    RiskParameter(r"/cluster/backup/{id}", ("remove",), _prunes, Reason.PRUNES),
    RiskParameter(r"/cluster/backup/{id}", ("delete",), _lists("remove", "prune-backups", "maxfiles"), Reason.PRUNES),
    RiskParameter(r".*/vzdump|/cluster/backup.*|/storage", ("prune-backups", "maxfiles"), _prunes, Reason.PRUNES),
    RiskParameter(r".*/vzdump|/cluster/backup.*", ("script",), _is_given, Reason.NODE_CODE),
    RiskParameter(r".*/vzdump|/cluster/backup.*", ("dumpdir", "tmpdir"), _is_given, Reason.NODE_FILE),
    RiskParameter(r".*/vzdump|/cluster/backup.*", ("stop",), _on, Reason.ENDS_TASK),
    RiskParameter(r"/storage/{storage}", ("prune-backups", "maxfiles"), _prunes, Reason.PRUNES),
    RiskParameter(r"/storage/{storage}", ("encryption-key", "master-pubkey", "delete"), _is_given, Reason.BACKUPS),
    RiskParameter(_VOLUMES, ("protected",), _given_and_not_on, Reason.BACKUPS),
    RiskParameter(r"/storage/{storage}", _PLACES, _is_given, Reason.NEW_STORAGE),
    RiskParameter(r"/cluster/replication.*", ("remove_job",), _is_given, Reason.DELETES_COPIES),
    RiskParameter(r".*/ceph/pool.*", ("size", "min_size"), _is_given, Reason.DROPS_COPIES),
    RiskParameter(r".*/ceph/(pool|fs/{name})", ("add_storages", "add-storage"), _on, Reason.NEW_STORAGE, "POST"),
    RiskParameter(r".*/ceph/pool", ("erasure-coding",), _adds_storage, Reason.NEW_STORAGE, "POST"),
    RiskParameter(r"/cluster/ceph/flags", ("pause",), _on, Reason.STOPS_STORAGE),
    RiskParameter(r"/cluster/ceph/flags/{flag}", ("flag",), _one_of("pause"), Reason.STOPS_STORAGE),
    RiskParameter(r"/cluster/ha/resources(/{sid})?", ("state",), _one_of("stopped", "disabled"), Reason.STOPS_GUESTS),
    RiskParameter(r"/cluster/ha/resources(/{sid})?", ("state",), _one_of("ignored"), Reason.UNGUARDED),
    RiskParameter(_SENDS_SECRETS, (*_ADDRESSES, *_PROOFS), _is_given, Reason.REDIRECTS, "PUT"),
    RiskParameter(_SENDS_SECRETS, ("delete",), _lists(*_ADDRESSES, *_PROOFS), Reason.REDIRECTS, "PUT"),
    RiskParameter(_HOLDS_SECRETS, _STORED_SECRETS, _is_given, Reason.REPLACES_SECRET, "PUT"),
    RiskParameter(_HOLDS_SECRETS, ("delete",), _lists(*_STORED_SECRETS), Reason.REPLACES_SECRET, "PUT"),
    RiskParameter(r"/cluster/options", ("http_proxy",), _is_given, Reason.REDIRECTS),
    RiskParameter(r"/cluster/options", ("crs",), _rebalances, Reason.STOPS_GUESTS),
    RiskParameter(r"/cluster/options", ("ha", "fencing"), _is_given, Reason.UNGUARDED),
    RiskParameter(r"/cluster/options", _MIGRATION, _not_secure, Reason.REDIRECTS),
    RiskParameter(rf"{_GUEST}/migrate", ("migration_type", "migration_network"), _not_secure, Reason.REDIRECTS),
    RiskParameter(r"/cluster/options", ("notify",), _is_given, Reason.WEAKENS),
    RiskParameter(r"/cluster/ceph/flags", _CEPH_FLAGS, _on, Reason.WEAKENS),
    RiskParameter(r"/cluster/ceph/flags/{flag}", ("value",), _on, Reason.WEAKENS),
    RiskParameter(r".*/ceph/pool/{name}", ("crush_rule",), _is_given, Reason.DROPS_COPIES),
    RiskParameter(rf"{_GUEST}/status/(start|resume|shutdown)", _BETWEEN_NODES, _is_given, Reason.INTERNAL),
    RiskParameter(r".*/vzdump", ("job-id",), _is_given, Reason.INTERNAL),
    RiskParameter(r"/cluster/replication(/{id})?", ("source",), _is_given, Reason.INTERNAL),
    RiskParameter(rf"{_CONFIG}|{_CREATION}", ("hugepages", "keephugepages"), _is_given, Reason.NODE_MEMORY),
    RiskParameter(_CONFIG, ("amd-sev", "intel-tdx"), _is_given, Reason.WEAKENS),
    RiskParameter(_CONFIG, ("delete",), _lists("amd-sev", "intel-tdx"), Reason.WEAKENS),
    RiskParameter(_CREATION, ("lock",), _is_given, Reason.LOCKS),
    RiskParameter(_CREATION, ("template",), _on, Reason.MAKES_TEMPLATE),
    RiskParameter(r"/storage/{storage}", ("shared", "snapshot-as-volume-chain"), _is_given, Reason.MISPLACES),
    RiskParameter(r"/storage/{storage}", ("domain", "username"), _is_given, Reason.STOPS_STORAGE),
    RiskParameter(r"/storage/{storage}", ("comstar_hg", "comstar_tg", "lio_tpg"), _is_given, Reason.NEW_STORAGE),
    RiskParameter(r"/cluster/acme/plugins", ("data", "api"), _is_given, Reason.NODE_CODE, "POST"),
    RiskParameter(r"/cluster/acme/plugins/{id}", ("api",), _is_given, Reason.REDIRECTS, "PUT"),
    RiskParameter(
        r"/cluster/options",
        ("user-tag-access", "registered-tags", "webauthn", "u2f", "delete"),
        _is_given,
        Reason.GRANTS,
    ),
)


# -- by volumes --------------------------------------------------------------------------------------------------------

_NEW_VOLUME: Final = re.compile(r"(?:[^/:\s]+:)?\d+(?:\.\d+)?")
"""`local-lvm:32` makes a volume of 32 GiB."""
_NOBODYS: Final = re.compile(r"none|[^/:\s]+:(?:cloudinit|iso/[^/\s]+)")
_NODE_DRIVE: Final = "cdrom"
"""As a volume: the node's own drive, with whatever disc is in it."""
_IMAGE: Final = re.compile(r"[^/:\s]+:(?:import|iso)/.+")
"""Intended to be copied."""


_SNIPPETS: Final = "cicustom"
"""The guest gets their content. Most belong to nobody, but a name may say whose they are: `vm-100-user.yml`."""


def _is_nobodys(volume: NamedVolume) -> bool:
    patterns = (_NEW_VOLUME, _NOBODYS, _IMAGE) if volume.copied else (_NEW_VOLUME, _NOBODYS)
    return any(pattern.fullmatch(volume.volume) for pattern in patterns)


def _volume_effects(request: Request) -> Iterator[Effect]:
    """What happens to the volumes that a guest is given, and to those that were in their place."""
    if not re.fullmatch(rf"{_CONFIG}|{_CREATION}", request.template) or request.method not in ("POST", "PUT"):
        return
    if re.fullmatch(_CONFIG, request.template):
        for name in request.params:
            if values.bus_of(name) in values.DISKS:
                yield Effect(Reason.DISK_PLACE, name)
    named = drive_volumes(request)
    if named is None:
        yield Effect(Reason.UNREADABLE, "a drive")
    own = request.text("vmid")
    for volume in named or ():
        if volume.volume.startswith("/") or volume.volume == _NODE_DRIVE:
            yield Effect(Reason.NODE_DEVICE, volume.parameter)
        elif not _is_nobodys(volume) and str(owner(volume.volume)) != own:
            yield Effect(Reason.COPIES_VOLUME if volume.copied else Reason.FOREIGN_VOLUME, volume.parameter)
    snippets = request.parts(_SNIPPETS) or {} if request.has(_SNIPPETS) else {}
    if any(str(owner(snippet)) not in (own, "None") for snippet in snippets.values()):
        yield Effect(Reason.COPIES_VOLUME, _SNIPPETS)


# -- judging -----------------------------------------------------------------------------------------------------------


def effects(request: Request) -> list[Effect]:
    """Everything that a request does, the highest risk first; never empty."""
    reasons, parameters = _by_path(request.method, request.template)
    call_effects = [Effect(reason) for reason in reasons]
    call_effects += [
        Effect(parameter.reason, name) for parameter in parameters for name in parameter.matching_parameters(request)
    ]
    call_effects += _volume_effects(request)
    if request.method != "GET":
        call_effects += [Effect(Reason.UNREADABLE, name) for name in request.doubtful]
    if request.method in ("POST", "PUT") and not reasons:
        call_effects += _unclassified_effects(request, parameters)
    call_effects = list(dict.fromkeys(call_effects)) or [Effect(_OTHERWISE[request.method])]
    return sorted(call_effects, key=lambda effect: -ORDER.index(effect.risk))


def _unclassified_effects(request: Request, parameters: tuple[RiskParameter, ...]) -> Iterator[Effect]:
    """What no row of any table is about. Parameters that PVE does not have are refused by the facts check."""
    if not is_granted(request.method, request.template):
        yield Effect(Reason.UNCLASSIFIED)
        return
    judged = frozenset(name for parameter in parameters for name in parameter.names)
    for name in find_ungranted_options(request, judged):
        if name not in request.params or request.match.endpoint.schema_of(name) is not None:
            yield Effect(Reason.UNCLASSIFIED, name)


@cache  # the templates of one API: a few hundred
def _by_path(method: str, template: str) -> tuple[tuple[Reason, ...], tuple[RiskParameter, ...]]:
    """The reasons that the path alone gives, and the parameters to look at."""
    reasons = (
        reason for methods, where, reason in _RULES if method in methods.split() and re.fullmatch(where, template)
    )
    return tuple(reasons), tuple(parameter for parameter in RISK_PARAMETERS if parameter.fits(method, template))


def effects_of(endpoint: Endpoint, params: Mapping[str, Any] | None = None) -> list[Effect]:
    """What a call of an endpoint does, wherever its path leads."""
    return effects(Request(Match(endpoint, {}), encode(params or {}, endpoint)))


def worst(risks: list[Risk]) -> Risk:
    return max(risks, key=ORDER.index)


# -- what is not called at all -----------------------------------------------------------------------------------------

_CONSOLES: Final = (
    r".*/(vncproxy|termproxy|spiceproxy|vncshell|spiceshell|vncwebsocket|mtunnel|mtunnelwebsocket|dbus-vmstate)"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an endpoint is never called through the raw API, and the tool that serves instead, if any."""

    why: str
    instead: ToolHint | None = None

    def __str__(self) -> str:
        return self.why


_REFUSED: Final[tuple[tuple[str, str, Refusal], ...]] = (
    (_WRITES + " GET", _CONSOLES, Refusal("it opens a console or tunnel, which needs a live connection of its own")),
    ("GET POST", r"/access/(ticket|vncticket|openid/.+)", Refusal("it hands out tickets, which are credentials")),
    (_WRITES, r"/access/(password|tfa/.+)", Refusal("passwords and second factors belong to the person who logs in")),
    ("POST", r".*/storage/{storage}/upload", Refusal("it takes a file", tools.image_upload)),
    ("GET", r".*/file-restore/download", Refusal("it answers with the bytes of a file, not with facts")),
)


def refusal(endpoint: Endpoint) -> Refusal | None:
    """None if it may be called."""
    for methods, where, why in _REFUSED:
        if endpoint.method in methods.split() and re.fullmatch(where, endpoint.template):
            return why
    if root_only(endpoint.permission):
        return Refusal("PVE reserves it for root@pam logged in with a password, which Quorate does not use")
    if not endpoint.allow_token:
        return Refusal("PVE does not accept it from an API token")
    return None
