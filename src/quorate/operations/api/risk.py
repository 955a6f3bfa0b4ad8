"""What a raw API call can do, derived from its method, its path and a few telling parameters.

One table decides. Reading is READ, what looks inside a guest is LOOK_INSIDE, and of the writes everything that deletes
or overwrites data, grants rights, stops a node, rewrites networks or cannot be undone is DESTROY; the rest is CHANGE.
Some endpoints are not called at all: `refusal` says which and why.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from quorate.operations.registry import Risk
from quorate.pve import values
from quorate.pve.privileges import root_only
from quorate.pve.schema import Endpoint

ORDER: Final = (Risk.READ, Risk.LOOK_INSIDE, Risk.CHANGE, Risk.DESTROY)

_GUEST: Final = r"/nodes/{node}/(qemu|lxc)/{vmid}"


@dataclass(frozen=True, slots=True)
class _Rule:
    methods: str
    where: str
    """A regular expression that the whole path template has to match."""
    risk: Risk
    because: str

    def fits(self, method: str, template: str) -> bool:
        return method in self.methods.split() and re.fullmatch(self.where, template) is not None


_WRITES: Final = "POST PUT DELETE"

# The first rule that fits decides; the last ones fit everything.
_RULES: Final = (
    _Rule("GET", rf"{_GUEST}/agent/.+", Risk.LOOK_INSIDE, "the guest itself is asked"),
    _Rule("GET", r".*/file-restore/.+", Risk.LOOK_INSIDE, "it shows files of guests"),
    _Rule("GET", r".*", Risk.READ, "it reads"),
    _Rule("DELETE", r".*", Risk.DESTROY, "it deletes"),
    _Rule(_WRITES, r"/access(/.*)?", Risk.DESTROY, "it grants or takes rights"),
    _Rule(_WRITES, r"/cluster/jobs/realm-sync/.*", Risk.DESTROY, "it makes users and groups"),
    _Rule("PUT", r"/pools(/.*)?", Risk.DESTROY, "pool members pass on rights"),
    _Rule("POST PUT", r"/(cluster|nodes/{node})/firewall/.*", Risk.DESTROY, "it opens or closes the firewall"),
    _Rule("POST PUT", r"/cluster/sdn/vnets/{vnet}/firewall/.*", Risk.DESTROY, "it opens or closes the firewall"),
    _Rule("PUT", r"/nodes/{node}/network|/cluster/sdn", Risk.DESTROY, "it rewrites the networks of nodes"),
    _Rule("POST", r"/cluster/sdn/rollback", Risk.DESTROY, "it drops edits for good"),
    _Rule("PUT POST", r"/nodes/{node}/(dns|hosts)", Risk.DESTROY, "it overwrites a file of the node"),
    _Rule("POST", r"/nodes/{node}/(status|stopall)", Risk.DESTROY, "it stops a node or all its guests"),
    _Rule("POST", r"/cluster/bulk-action/guest/shutdown", Risk.DESTROY, "it stops guests, by force in the end"),
    _Rule("POST", r"/nodes/{node}/services/{service}/stop", Risk.DESTROY, "the node may be lost to the cluster"),
    _Rule("POST", r"/cluster/ha/status/(arm|disarm)-ha", Risk.DESTROY, "it decides whether guests are saved"),
    _Rule("POST", r"/nodes/{node}/execute", Risk.DESTROY, "it runs any other calls"),
    _Rule("POST PUT", r"/nodes/{node}/disks/.*", Risk.DESTROY, "it overwrites a disk"),
    _Rule("POST", r"/nodes/{node}/ceph/(osd|stop)", Risk.DESTROY, "it overwrites a disk or stops storage"),
    _Rule("POST", r"/nodes/{node}/certificates/custom", Risk.DESTROY, "it overwrites the certificate and its key"),
    _Rule("POST PUT", r"/cluster/config(/.*)?", Risk.DESTROY, "it changes the cluster's members"),
    _Rule("POST", rf"{_GUEST}/status/stop", Risk.DESTROY, "unsaved data is lost"),
    _Rule("POST", rf"{_GUEST}/snapshot/{{snapname}}/rollback", Risk.DESTROY, "everything since the snapshot is lost"),
    _Rule("POST", rf"{_GUEST}/template", Risk.DESTROY, "it cannot be undone"),
    _Rule("POST", rf"{_GUEST}/remote_migrate", Risk.DESTROY, "the guest leaves the cluster"),
    _Rule("PUT", rf"{_GUEST}/unlink", Risk.DESTROY, "it takes disks away"),
    _Rule("POST", rf"{_GUEST}/monitor", Risk.DESTROY, "QEMU does whatever it is told there"),
    _Rule("POST", rf"{_GUEST}/agent/set-user-password", Risk.DESTROY, "it sets a password"),
    _Rule("POST", r".*/(vncproxy|termproxy|spiceproxy|vncshell|spiceshell|mtunnel)", Risk.DESTROY, "it opens a way in"),
    _Rule("POST PUT", r".*", Risk.CHANGE, "it changes something that can be changed back"),
)


def _is_on(value: Any) -> bool:
    return str(value).lower() not in ("", "0", "false", "none")


def _is_given(_value: Any) -> bool:
    return True


def _names_devices(kinds: Collection[str] | None, value: Any) -> bool:
    """A `delete` list with devices of these kinds in it, or of any kind."""
    names = value if isinstance(value, list) else re.split(r"[,;\s]+", str(value))
    buses = [bus for name in names if (bus := values.bus_of(str(name))) is not None]
    return any(kinds is None or bus in kinds for bus in buses)


@dataclass(frozen=True, slots=True)
class _Telling:
    """A parameter that makes a write worse than its path says."""

    where: str
    names: tuple[str, ...]
    says_so: Any
    because: str


TELLING: Final = (
    _Telling(r".*", ("force", "force-delete", "forceStop", "force-stop", "overrule-shutdown"), _is_on, "by force"),
    _Telling(rf"{_GUEST}/config", ("delete",), partial(_names_devices, {"unused"}), "it deletes a volume"),
    _Telling(rf"{_GUEST}/config", ("delete",), partial(_names_devices, values.DISKS), "it takes a disk away"),
    _Telling(rf"{_GUEST}/config", ("delete",), partial(_names_devices, None), "it takes a device away"),
    _Telling(rf"{_GUEST}/(move_disk|move_volume)", ("target-vmid",), _is_given, "it takes a disk away"),
    _Telling(rf"{_GUEST}/(move_disk|move_volume|migrate)", ("delete",), _is_on, "it deletes the source"),
    _Telling(r".*/vzdump|/cluster/backup.*", ("remove", "prune-backups"), _is_on, "it deletes older backups"),
    _Telling(r"/storage/{storage}", ("prune-backups", "encryption-key", "delete"), _is_given, "backups may be lost"),
    _Telling(r"/cluster/replication.*", ("remove_job",), _is_given, "it deletes the copies"),
    _Telling(r".*/ceph/pool.*", ("size", "min_size"), _is_given, "copies of data may be dropped"),
    _Telling(
        r"/cluster/options",
        ("user-tag-access", "registered-tags", "webauthn", "u2f", "delete"),
        _is_given,
        "it grants rights",
    ),
)


def risk_of(method: str, template: str, params: Mapping[str, Any] | None = None) -> Risk:
    """The risk of a call to an endpoint, with these parameters."""
    return judge(method, template, params)[0]


def judge(method: str, template: str, params: Mapping[str, Any] | None = None) -> tuple[Risk, str]:
    """The risk and, in a few words, the reason."""
    rule = next((rule for rule in _RULES if rule.fits(method, template)), None)
    if rule is None:  # an unknown method: the worst is supposed
        return Risk.DESTROY, "it is not known"
    if method == "GET" or rule.risk is Risk.DESTROY:
        return rule.risk, rule.because
    if worse := _untold(method, template, params or {}):
        return Risk.DESTROY, worse
    for telling in TELLING:
        for name in telling.names:
            if params and name in params and telling.says_so(params[name]) and re.fullmatch(telling.where, template):
                return Risk.DESTROY, f"{name}: {telling.because}"
    return rule.risk, rule.because


def _untold(method: str, template: str, params: Mapping[str, Any]) -> str | None:
    """What is worse than the path says without a single parameter that says so."""
    if template.endswith("/vzdump") and method == "POST" and _is_on(params.get("remove", 1)):
        return "remove: unless it is 0, PVE deletes older backups"
    if re.fullmatch(rf"{_GUEST}/config", template) and any(values.bus_of(name) in values.DISKS for name in params):
        return "it may take the place of a disk"
    return None


def worst(risks: list[Risk]) -> Risk:
    return max(risks, key=ORDER.index)


# -- what is not called at all -----------------------------------------------------------------------------------------

_CONSOLES: Final = (
    r".*/(vncproxy|termproxy|spiceproxy|vncshell|spiceshell|vncwebsocket|mtunnel|mtunnelwebsocket|dbus-vmstate)"
)
_REFUSED: Final = (
    (_WRITES + " GET", _CONSOLES, "it opens a console or tunnel, which needs a live connection of its own"),
    ("GET POST", r"/access/(ticket|vncticket|openid/.+)", "it hands out tickets, which are credentials"),
    (_WRITES, r"/access/(password|tfa/.+)", "passwords and second factors belong to the person who logs in"),
    ("POST", r".*/storage/{storage}/upload", "it takes a file; image_upload sends one"),
    ("GET", r".*/file-restore/download", "it answers with the bytes of a file, not with facts"),
)


def refusal(endpoint: Endpoint) -> str | None:
    """Why an endpoint is never called through the raw API, None if it may be."""
    for methods, where, why in _REFUSED:
        if endpoint.method in methods.split() and re.fullmatch(where, endpoint.template):
            return why
    if root_only(endpoint.permission):
        return "PVE keeps it for root@pam logged in by password, which Quorate does not use"
    if not endpoint.allow_token:
        return "PVE does not accept it from an API token"
    return None
