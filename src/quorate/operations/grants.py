"""What is granted as a mere change: endpoints and their options, each with the reason why that is acceptable.

A write that no row grants, or an option that no row lists, is unclassified and therefore DESTROY: an endpoint of a
later PVE is not trusted until someone has thought about it. Rows list options that are harmless in every value, options
that the risk table judges by value, and options that are compared with the stored object before they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from quorate.pve.wire import Request

ANY: Final = "*"
"""As an option: all of them, also those of a later PVE. Only where another, stricter call makes them take effect."""

OPTION_LISTS: Final = ("delete", "revert")
"""Parameters that list options: each option in them has to be granted."""

_HOW_TO_WRITE: Final = frozenset({"digest", "lock-token", "background_delay", "target-digest"})
"""They make PVE refuse a write or delay it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Writes that can be changed back, lose nothing and give nobody anything."""

    methods: str
    where: str
    """A regular expression that the whole path template has to match."""
    options: str
    """Separated by blanks; `net[n]` stands for all of net0, net1, …"""
    because: str

    def fits(self, method: str, template: str) -> bool:
        return method in self.methods.split() and re.fullmatch(self.where, template) is not None


_GUEST: Final = r"/nodes/{node}/(qemu|lxc)/{vmid}"
_VM: Final = r"/nodes/{node}/qemu/{vmid}"
_CT: Final = r"/nodes/{node}/lxc/{vmid}"
_PENDING: Final = "pending until it is applied, which is DESTROY"
_STORED: Final = "DESTROY if it protects less than the stored one"
_COMMANDS: Final = "like a command in the guest; rules for commands apply"

GRANTS: Final = (
    # -- guests: configuration
    Grant(
        "POST PUT",
        rf"{_GUEST}/config|/nodes/{{node}}/(qemu|lxc)",
        "arch cores cpulimit cpuunits description memory nameserver net[n] onboot ostype protection searchdomain "
        "startup tags",
        "what a guest is and how it starts, on hardware that it already shares; written back to undo it. Protection "
        "and the firewall of a network card are compared with the stored ones",
    ),
    Grant(
        "POST PUT",
        rf"{_VM}/config|/nodes/{{node}}/qemu",
        "acpi affinity agent allow-ksm audio0 autostart balloon bios boot bootdisk cpu freeze hotplug "
        "import-working-storage keyboard kvm localtime machine migrate_downtime migrate_speed name numa numa[n] reboot "
        "scsihw shares smbios1 smp sockets spice_enhancements startdate tablet tdf vcpus vga vmgenid vmstatestorage "
        "watchdog",
        "virtual hardware without a device of the node; written back to undo it",
    ),
    Grant(
        "POST PUT",
        rf"{_VM}/config|/nodes/{{node}}/qemu",
        "cicustom cipassword citype ciupgrade ciuser ipconfig[n] sshkeys",
        _COMMANDS,
    ),
    Grant(
        "POST PUT",
        rf"{_CT}/config|/nodes/{{node}}/lxc",
        "cmode console debug entrypoint env hostname swap timezone tty",
        "how the container starts, within its own root",
    ),
    Grant(
        "POST PUT",
        rf"{_GUEST}/config|/nodes/{{node}}/(qemu|lxc)",
        "efidisk0 ide[n] mp[n] rootfs sata[n] scsi[n] tpmstate0 unused[n] virtio[n]",
        "judged by the volumes that they name and replace",
    ),
    # -- guests: creation, copies, power
    Grant(
        "POST",
        r"/nodes/{node}/qemu",
        "amd-sev archive bwlimit ha-managed intel-tdx live-restore start storage unique vmid",
        "a new guest under a free id; over an existing one needs `force`",
    ),
    Grant(
        "POST",
        r"/nodes/{node}/lxc",
        "bwlimit ha-managed ignore-unpack-errors ostemplate password restore ssh-public-keys start storage unique vmid",
        "a new guest under a free id; over an existing one needs `force`",
    ),
    Grant(
        "POST",
        rf"{_GUEST}/clone",
        "bwlimit description format full hostname name newid snapname storage target",
        "a new guest; for rules, its source is looked into",
    ),
    Grant(
        "POST",
        rf"{_GUEST}/migrate",
        "bwlimit online restart target target-storage targetstorage timeout with-conntrack-state with-local-disks",
        "the guest keeps its data and can be moved back",
    ),
    Grant(
        "POST",
        rf"{_GUEST}/(move_disk|move_volume)",
        "bwlimit disk format storage target-disk target-volume volume",
        "the source stays as an unused disk unless `delete` is on",
    ),
    Grant("PUT", rf"{_GUEST}/resize", "disk size", "disks only grow"),
    Grant("POST", rf"{_GUEST}/snapshot", "description snapname vmstate", "it adds a snapshot"),
    Grant("PUT", rf"{_GUEST}/snapshot/{{snapname}}/config", "description", "a note"),
    Grant("PUT", rf"{_VM}/cloudinit", "", "the drive is written again with the settings that the guest has"),
    Grant(
        "POST",
        rf"{_GUEST}/status/(reboot|resume|shutdown|start|suspend)",
        "debug statestorage timeout todisk",
        "the guest's own system is asked, or the guest continues where it was",
    ),
    Grant(
        "POST",
        r"/nodes/{node}/(startall|suspendall|migrateall)|/cluster/bulk-action/guest/(migrate|start|suspend)",
        "max-workers maxworkers online statestorage target timeout to-disk vms with-local-disks",
        "like the same call for each guest",
    ),
    # -- guests: inside
    Grant(
        "POST",
        rf"{_VM}/agent(/(exec|file-write|fsfreeze-.+|fstrim|ping|shutdown|suspend-.+))?",
        "command content encode file input-data",
        _COMMANDS,
    ),
    Grant("PUT", rf"{_VM}/sendkey", "key", _COMMANDS),
    Grant(
        "POST PUT",
        rf"{_GUEST}/firewall/(aliases|ipset|options|rules)(/.+)?",
        "action cidr comment dest dhcp dport enable icmp-type iface ipfilter log log_level_in log_level_out macfilter "
        "macro moveto name ndp nomatch policy_in policy_out pos proto radv rename source sport type",
        f"it affects a single guest; {_STORED}",
    ),
    # -- backups and copies
    Grant(
        "POST PUT",
        r".*/vzdump|/cluster/backup(/{id})?",
        "all bwlimit compress exclude exclude-path fleecing ionice lockwait mailnotification mailto mode node "
        "notes-template notification-mode notification-policy notification-target pbs-change-detection-mode "
        "performance pigz pool protected quiet stdexcludes stdout stopwait storage vmid zstd",
        f"a backup adds data; retention is judged by value. A job is {_STORED}",
    ),
    Grant(
        "POST PUT",
        r"/cluster/backup(/{id})?",
        "comment dow enabled id repeat-missed schedule starttime",
        f"when a job runs; {_STORED}",
    ),
    Grant("POST", r"/cluster/replication", "comment disable id rate schedule target type", "it adds a copy"),
    Grant("PUT", r"/cluster/replication/{id}", "comment disable rate schedule", _STORED),
    Grant("POST", r"/nodes/{node}/replication/{id}/schedule_now", "", "the next run comes earlier"),
    # -- storage
    Grant(
        "PUT",
        r"/storage/{storage}",
        "blocksize bwlimit content create-base-path create-subdirs disable format fuse is_mountpoint krbd "
        "max-protected-backups mkdir nocow nodes nowritecache preallocation saferemove saferemove-stepsize "
        "saferemove_throughput sparse tagged_only transport",
        f"how new volumes are made; {_STORED}",
    ),
    Grant("POST", r"/nodes/{node}/storage/{storage}/content", "filename format size vmid", "it adds an empty volume"),
    Grant("PUT", r"/nodes/{node}/storage/{storage}/content/{volume}", "notes", "a note"),
    Grant("POST", r"/nodes/{node}/aplinfo", "storage template", "it adds a template of Proxmox's own list"),
    Grant(
        "POST",
        r"/nodes/{node}/storage/{storage}/(download-url|oci-registry-pull|upload)",
        "checksum checksum-algorithm compression content filename reference tmpfilename url verify-certificates",
        "it adds a file; PVE does not overwrite downloads, and uploads are judged by whether the name is free",
    ),
    # -- high availability
    Grant(
        "POST PUT",
        r"/cluster/ha/(groups|resources|rules)(/{(group|sid|rule)})?",
        "affinity auto-rebalance comment disable failback group max_relocate max_restart nodes nofailback resources "
        "restricted rule sid strict type",
        f"where guests are recovered; {_STORED}, or if a guest is stopped for it",
    ),
    Grant("POST", r"/cluster/ha/resources/{sid}/migrate", "node", "the guest keeps its data and can be moved back"),
    # -- notifications and metrics
    Grant(
        "POST PUT",
        r"/cluster/notifications/matchers(/{name})?",
        "comment disable invert-match match-calendar match-field match-severity mode name target",
        f"which existing target gets which message; {_STORED}",
    ),
    Grant(
        "POST PUT",
        r"/cluster/notifications/endpoints/sendmail(/{name})?",
        "author comment disable from-address mailto mailto-user name",
        f"mail through the node's own mail server; {_STORED}",
    ),
    Grant(
        "PUT",
        r"/cluster/notifications/endpoints/(gotify|smtp|webhook)/{name}",
        "author body comment disable from-address mailto mailto-user method username",
        f"another address is judged by value; {_STORED}",
    ),
    Grant("POST", r"/cluster/notifications/targets/{name}/test", "", "one message to a target that is already set up"),
    Grant(
        "PUT",
        r"/cluster/metrics/server/{id}",
        "api-path-prefix bucket disable influxdbproto max-body-size mtu organization otel-compression "
        "otel-max-body-size otel-path otel-protocol otel-resource-attributes otel-timeout path proto timeout",
        f"another address is judged by value; {_STORED}",
    ),
    # -- networks
    Grant(
        "POST PUT",
        r"/cluster/sdn/(controllers|fabrics|prefix-lists|route-maps|zones)(/.+)?|/cluster/sdn/vnets(/{vnet}(/subnets.*)?)?",
        ANY,
        _PENDING,
    ),
    Grant("POST", r"/nodes/{node}/network", ANY, _PENDING),
    Grant("PUT", r"/nodes/{node}/network/{iface}", ANY, _PENDING),
    Grant("POST", r"/cluster/sdn/dns", "dns fingerprint key reversemaskv6 reversev6mask ttl type url", _PENDING),
    Grant("POST", r"/cluster/sdn/ipams", "fingerprint ipam section token type url", _PENDING),
    Grant("PUT", r"/cluster/sdn/(dns/{dns}|ipams/{ipam})", "reversemaskv6 section ttl", _PENDING),
    Grant("POST PUT", r"/cluster/sdn/vnets/{vnet}/ips", "ip mac vmid zone", "an entry of the address list"),
    Grant("POST", r"/cluster/sdn/lock", "allow-pending", "it keeps others from editing until it is released"),
    # -- nodes
    Grant("POST", r"/nodes/{node}/services/{service}/(reload|restart|start)", "", "the service runs afterwards"),
    Grant(
        "POST", r"/nodes/{node}/apt/update", "notify quiet", "it refreshes the list of packages and installs nothing"
    ),
    Grant(
        "PUT",
        r"/nodes/{node}/config",
        "acme acmedomain[n] ballooning-target description location startall-onboot-delay wakeonlan",
        "notes, and settings for the next start, certificate or memory adjustment",
    ),
    Grant("PUT", r"/nodes/{node}/time", "timezone", "how times are shown and schedules are read"),
    Grant("POST", r"/nodes/{node}/wakeonlan", "", "a node that wakes up loses nothing"),
    Grant("POST PUT", r"/nodes/{node}/subscription", "key", "the key is shown and can be set again"),
    Grant(
        "POST PUT",
        r"/nodes/{node}/certificates/acme/certificate",
        "",
        "a new certificate for the same names; over one that was uploaded it needs `force`",
    ),
    Grant(
        "POST",
        r"/cluster/acme/plugins",
        "disable id nodes type validation-delay",
        "without `data` and `api`, it does nothing",
    ),
    Grant("PUT", r"/cluster/acme/plugins/{id}", "disable nodes validation-delay", _STORED),
    # -- Ceph
    Grant("POST", r"/nodes/{node}/ceph/(mds/{name}|mgr/{id}|mon/{monid})", "hotstandby mon-address", "one more daemon"),
    Grant("POST", r"/nodes/{node}/ceph/(start|restart)", "service", "the services run afterwards"),
    Grant("POST", r"/nodes/{node}/ceph/osd/{osdid}/(in|scrub)", "deep", "it adds or verifies copies"),
    Grant("POST", r"/nodes/{node}/ceph/fs/{name}", "pg_num", "a new file system"),
    Grant(
        "POST",
        r"/nodes/{node}/ceph/pool",
        "application crush_rule name pg_autoscale_mode pg_num pg_num_min target_size target_size_ratio",
        "a new pool; copies and storages are judged by value",
    ),
    Grant(
        "PUT",
        r"/nodes/{node}/ceph/pool/{name}",
        "application pg_autoscale_mode pg_num pg_num_min target_size target_size_ratio",
        "how the data is distributed, not how many copies there are",
    ),
    Grant("PUT", r"/cluster/ceph/flags(/{flag})?", "value", "clearing a flag lets Ceph work; setting one is judged"),
    # -- the cluster
    Grant(
        "PUT",
        r"/cluster/options",
        "bwlimit consent-text console description email_from keyboard language location mac_prefix max_workers next-id "
        "tag-style",
        "defaults and texts of the web interface",
    ),
    Grant(
        "POST PUT",
        r"/cluster/qemu/custom-cpu-models(/{cputype})?",
        "cputype flags guest-phys-bits hidden hv-vendor-id level phys-bits reported-model",
        "the virtual CPU of guests that name the model, from their next start on",
    ),
    Grant("POST", r"/pools", "comment poolid", "an empty pool gives nobody anything"),
    Grant("PUT", r"/pools(/{poolid})?", "allow-move comment delete poolid", "a note; members are judged"),
)


@cache
def is_granted(method: str, template: str) -> bool:
    return any(grant.fits(method, template) for grant in GRANTS)


def find_ungranted_options(request: Request, judged: frozenset[str]) -> Iterator[str]:
    """The options that the request writes, deletes or reverts, without those that a row grants or that are judged."""
    names = _options_of(request.method, request.template) | judged
    if ANY in names:
        return
    for name in request.params:
        if _lists_options(request, name):
            yield from (option for option in request.elements(name) if not _is_named(option, names))
        elif not _is_named(name, names):
            yield name


def _lists_options(request: Request, name: str) -> bool:
    """`delete` of a configuration lists options; `delete` of a moved disk is a switch."""
    schema = request.match.endpoint.schema_of(name) or {}
    return name in OPTION_LISTS and schema.get("type") != "boolean"


def _is_named(option: str, names: frozenset[str]) -> bool:
    return option in names or option in _HOW_TO_WRITE or re.sub(r"\d+$", "[n]", option) in names


@cache  # the templates of one API: a few hundred
def _options_of(method: str, template: str) -> frozenset[str]:
    return frozenset(name for grant in GRANTS if grant.fits(method, template) for name in grant.options.split())
