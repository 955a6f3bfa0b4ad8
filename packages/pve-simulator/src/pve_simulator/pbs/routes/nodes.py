"""/nodes: the machine, and its tasks. There is one node, which answers to any name."""

from __future__ import annotations

from typing import Any

from pve_simulator.pbs.refusals import Refusal
from pve_simulator.pbs.routing import Call, Payload, Raw, route
from pve_simulator.pbs.tasks import Task, unescape

_SERVICES = (
    "proxmox-backup",
    "proxmox-backup-proxy",
    "sshd",
    "systemd-journald",
    "cron",
    "postfix",
    "systemd-timesyncd",
)
_KERNEL = "6.17.2-1-pve"
_GIB = 1 << 30


@route("GET", "/nodes")
def list_nodes(call: Call) -> Any:
    return [{"node": call.server.node}]


@route("GET", "/nodes/{node}/status")
def read_status(call: Call) -> Any:
    sizes = call.server.sizes()
    return {
        "boot-info": {"mode": "efi", "secureboot": False},
        "cpu": 0.04,
        "cpuinfo": {"cpus": 4, "model": "Intel(R) N100", "sockets": 1},
        "current-kernel": {"machine": "x86_64", "release": _KERNEL, "sysname": "Linux", "version": "#1 SMP"},
        "info": {"fingerprint": call.server.fingerprint},
        "kversion": f"Linux {_KERNEL} #1 SMP",
        "loadavg": [0.12, 0.2, 0.18],
        "memory": {"free": 12 * _GIB, "total": 16 * _GIB, "used": 4 * _GIB},
        "root": sizes,
        "swap": {"free": 0, "total": 0, "used": 0},
        "uptime": 864_000,
        "wait": 0.0,
    }


@route("GET", "/nodes/{node}/services")
def list_services(_: Call) -> Any:
    return [
        {"desc": name, "name": name, "service": name, "state": "running", "unit-state": "enabled"} for name in _SERVICES
    ]


@route("GET", "/nodes/{node}/time")
def read_time(call: Call) -> Any:
    now = int(call.server.clock.now())
    return {"localtime": now, "time": now, "timezone": "Etc/UTC"}


@route("GET", "/nodes/{node}/dns")
def read_dns(call: Call) -> Any:
    return {"digest": call.server.digest("dns"), "dns1": "192.168.1.1"}


@route("GET", "/nodes/{node}/subscription")
def read_subscription(_: Call) -> Any:
    url = "https://www.proxmox.com/en/proxmox-backup-server/pricing"
    return {"message": "There is no subscription key", "serverid": "0" * 32, "status": "notfound", "url": url}


@route("GET", "/nodes/{node}/certificates/info")
def list_certificates(call: Call) -> Any:
    subject = f"O = Proxmox Backup Server, CN = {call.server.node}"
    now = int(call.server.clock.now())
    return [
        {
            "filename": "proxy.pem",
            "fingerprint": call.server.fingerprint,
            "issuer": subject,
            "notafter": now + 3650 * 86400,
            "notbefore": now - 86400,
            "pem": "",
            "public-key-bits": 4096,
            "public-key-type": "rsaEncryption",
            "san": ["localhost", call.server.node],
            "subject": subject,
        }
    ]


@route("GET", "/nodes/{node}/config")
def read_config(call: Call) -> Any:
    return Payload({}, {"digest": call.server.digest()})


@route("GET", "/nodes/{node}/apt/versions")
def list_versions(_: Call) -> Any:
    common = dict.fromkeys(("Arch", "Description", "Origin", "Priority", "Section", "Title", "Version"), "unknown")
    extra = {"proxmox-backup": f"running kernel: {_KERNEL}", "proxmox-backup-server": "running version: 4.1.1"}
    return [{**common, "ExtraInfo": text, "Package": package} for package, text in extra.items()]


@route("GET", "/nodes/{node}/apt/update")
def list_updates(_: Call) -> Any:
    return []


@route("GET", "/nodes/{node}/disks/list")
def list_disks(_: Call) -> Any:
    missing = "No such file or directory (os error 2)"
    command = '"pvs" "--reportformat" "json" "--noheadings" "--readonly" "-o" "pv_name"'
    raise Refusal(f"failed to execute {command} - {missing}")


@route("GET", "/nodes/{node}/rrd")
def read_rrd(call: Call) -> Any:
    now = int(call.server.clock.now()) // 60 * 60
    return [{"time": now - 60 * back} for back in range(60, -1, -1)]


@route("GET", "/nodes/{node}/network")
def list_network(call: Call) -> Any:
    digest = call.server.digest("network")
    card = {"active": True, "autostart": False, "digest": digest, "iface": "eth0", "method": "manual", "name": "eth0"}
    return [{**card, "type": "eth"}]


@route("GET", "/admin/traffic-control")
def list_traffic_rules(call: Call) -> Any:
    return Payload([], {"digest": call.server.digest()})


@route("GET", "/config/s3")
def list_s3_clients(call: Call) -> Any:
    return Payload([], {"digest": call.server.digest()})


@route("GET", "/config/notifications/targets")
def list_targets(_: Call) -> Any:
    comment = "Send mails to root@pam's email address"
    return [{"comment": comment, "name": "mail-to-root", "origin": "builtin", "type": "sendmail"}]


@route("GET", "/config/notifications/matchers")
def list_matchers(_: Call) -> Any:
    return [
        {
            "comment": "Route everything but successful prune job notifications to mail-to-root",
            "invert-match": True,
            "match-field": ["exact:type=prune"],
            "match-severity": ["info"],
            "mode": "all",
            "name": "default-matcher",
            "origin": "builtin",
            "target": ["mail-to-root"],
        }
    ]


@route("GET", "/backup", "/reader")
def refuse_protocol(call: Call) -> Any:
    """The backup protocol runs in an upgraded connection, which is not simulated."""
    raise Refusal("invalid protocol name" if "Upgrade" in call.headers else "missing Upgrade header")


# -- tasks -------------------------------------------------------------------------------------------------------------


def _row(task: Task) -> dict[str, Any]:
    row: dict[str, Any] = {
        "upid": task.upid,
        "node": "localhost",
        "pid": task.pid,
        "pstart": task.pstart,
        "starttime": int(task.start),
        "worker_type": task.type,
        "worker_id": task.id,
        "user": task.auth_id,
    }
    return row if task.end is None else {**row, "endtime": int(task.end), "status": task.status}


def _outcome(task: Task) -> str:
    if task.end is None:
        return ""
    first = task.status.partition(":")[0].lower()
    return {"ok": "ok", "warnings": "warning", "unknown": "unknown"}.get(first, "error")


@route("GET", "/nodes/{node}/tasks")
def list_tasks(call: Call) -> Any:
    """Newest first. `total` counts one more than shown when there are more."""
    params = call.params
    sees_all = call.holds("Sys.Audit", path="/system/tasks")
    tasks = [task for task in reversed(call.server.tasks.all) if sees_all or task.auth_id == call.auth_id]
    chosen = [task for task in tasks if _fits(task, params)]
    start, limit = int(params.get("start", 0)), int(params.get("limit", 50))
    shown = chosen[start:] if limit == 0 else chosen[start : start + limit]
    total = start + len(shown) + (1 if start + len(shown) < len(chosen) else 0)
    return Payload([_row(task) for task in shown], {"total": total})


def _fits(task: Task, params: dict[str, Any]) -> bool:
    if params.get("running") and task.end is not None:
        return False
    if params.get("errors") and task.end is not None and task.status == "OK":
        return False
    if params.get("store", task.store) != task.store:
        return False
    if params.get("typefilter", "") not in task.type or params.get("userfilter", "") not in task.auth_id:
        return False
    if "statusfilter" in params and _outcome(task) not in params["statusfilter"]:
        return False
    return float(params.get("since", 0)) <= task.start <= float(params.get("until", task.start))


@route("GET", "/nodes/{node}/tasks/{upid}")
def index_of_task(_: Call) -> Any:
    return [{"subdir": "log"}, {"subdir": "status"}]


@route("GET", "/nodes/{node}/tasks/{upid}/status")
def read_task(call: Call) -> Any:
    """A task that never existed also has a status: stopped, unknown."""
    upid = str(call["upid"])
    fields = _fields(upid)
    task = _visible(call, upid, fields)
    running = call.server.tasks.find_running(upid) is not None
    user, _, token = fields[8].partition("!")
    row: dict[str, Any] = {
        "id": unescape(fields[7]),
        "node": fields[1],
        "pid": int(fields[2], 16),
        "pstart": int(fields[3], 16),
        "starttime": int(fields[5], 16),
        "status": "running" if running else "stopped",
        "type": fields[6],
        "upid": upid,
        "user": user,
    }
    row |= {"tokenid": token} if token else {}
    if not running:
        row["exitstatus"] = "unknown" if task is None else task.status
    return row


@route("GET", "/nodes/{node}/tasks/{upid}/log")
def read_log(call: Call) -> Any:
    upid = str(call["upid"])
    task = _visible(call, upid, _fields(upid))
    if task is None:
        raise Refusal("No such file or directory (os error 2)")
    if call.params.get("download"):
        return Raw("".join(f"{line}\n" for line in task.lines).encode(), "text/plain")
    start, limit = max(1, int(call.params.get("start", 1))), int(call.params.get("limit", 50))
    lines = task.lines[start - 1 :] if limit == 0 else task.lines[start - 1 : start - 1 + limit]
    extra: dict[str, Any] = {"success": 1, "total": len(task.lines)}
    if call.params.get("test-status"):
        extra["active"] = task.end is None
    return Payload([{"n": number, "t": text} for number, text in enumerate(lines, start)], extra)


@route("DELETE", "/nodes/{node}/tasks/{upid}")
def stop_task(call: Call) -> None:
    upid = str(call["upid"])
    owner = _fields(upid)[8]
    if owner != call.auth_id and not call.holds("Sys.Modify", path="/system/tasks"):
        raise Refusal("missing permissions 'Sys.Modify' on '/system/tasks'")
    task = call.server.tasks.find_running(upid)
    if task is not None:
        call.server.tasks.stop(task)


def _fields(upid: str) -> list[str]:
    fields = upid.split(":")
    if len(fields) != 10 or fields[0] != "UPID":
        raise Refusal("unable to parse UPID")
    return fields


def _visible(call: Call, upid: str, fields: list[str]) -> Task | None:
    task = call.server.tasks.find(upid)
    if fields[8] == call.auth_id or call.holds("Sys.Audit", path="/system/tasks"):
        return task
    store = unescape(fields[7]).partition(":")[0]
    if store in call.server.datastores and call.holds("Datastore.Modify", path=f"/datastore/{store}"):
        return task
    raise Refusal("task access not allowed")
