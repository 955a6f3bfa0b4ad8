"""/config: datastores and jobs."""

from __future__ import annotations

from typing import Any

from pve_simulator.pbs.datastores import Datastore
from pve_simulator.pbs.jobs import NOUNS
from pve_simulator.pbs.refusals import Refusal, bad_parameter
from pve_simulator.pbs.routing import Call, Payload, route
from pve_simulator.pbs.sections import apply_changes, check_digest, check_schedule
from pve_simulator.pbs.tasks import Task, TaskFailure

_CREATION_PERCENTS = range(1, 100)


# -- datastores --------------------------------------------------------------------------------------------------------


@route("GET", "/config/datastore")
def list_datastores(call: Call) -> Any:
    rows = [
        store.config
        for store in call.server.datastores.values()
        if call.holds("Datastore.Audit", path=f"/datastore/{store.name}")
    ]
    return Payload(rows, _digest(call))


@route("GET", "/config/datastore/{name}")
def read_datastore(call: Call) -> Any:
    return Payload(call.server.datastore(str(call["name"])).config, _digest(call))


@route("POST", "/config/datastore")
def create_datastore(call: Call) -> Any:
    """Starts a task, in which an unsuitable path fails."""
    name, path = str(call["name"]), str(call["path"])
    server = call.server
    if not path.startswith("/"):
        raise bad_parameter("path", f"expected an absolute path, '{path}' is not")
    check_schedule(call, "gc-schedule", "prune-schedule")
    if name in server.datastores:
        raise bad_parameter("name", f"datastore '{name}' already exists.")
    config = {key: value for key, value in call.params.items() if key != "reuse-datastore"}

    def work(task: Task) -> None:
        for other in server.datastores.values():
            if f"{path}/".startswith(f"{other.path}/") or f"{other.path}/".startswith(f"{path}/"):
                text = f"nested datastores not allowed: '{other.name}' already in \"{other.path}\""
                raise TaskFailure(f"parameter verification failed - 'path': {text}")
        if path in server.occupied_folders and not call.params.get("reuse-datastore"):
            raise TaskFailure("datastore path not empty")
        for percent in _CREATION_PERCENTS:
            task.log(f"Chunkstore create: {percent}%")
        task.log("Access time update check successful.")
        server.datastores[name] = Datastore(name, config)

    return call.start_task("create-datastore", name, work)


@route("PUT", "/config/datastore/{name}")
def update_datastore(call: Call) -> None:
    store = call.server.datastore(str(call["name"]))
    check_digest(call, _digest(call)["digest"])
    for name in call.params:
        if name.startswith("keep-") or name == "prune-schedule":
            raise bad_parameter(name, "datastore prune settings have been replaced by prune jobs")
    check_schedule(call, "gc-schedule")
    mode = str(call.params.get("maintenance-mode", ""))
    apply_changes(call, store.config, fixed=("name",))
    if mode:
        store.config["maintenance-mode"] = mode.removeprefix("type=").replace('"', "")


@route("DELETE", "/config/datastore/{name}")
def delete_datastore(call: Call) -> Any:
    """Keeps the data unless asked to destroy it, and removes the jobs of the store unless asked to keep them."""
    name = str(call["name"])
    server = call.server
    if name not in server.datastores:
        raise Refusal(f"datastore '{name}' does not exist.", 404)
    check_digest(call, _digest(call)["digest"])

    def work(task: Task) -> None:
        if call.params.get("destroy-data"):
            task.log(f"Destroying datastore '{name}' data...")
        del server.datastores[name]
        if not call.params.get("keep-job-configs"):
            for kind in NOUNS:
                jobs = server.sections[kind]
                server.sections[kind] = {job_id: job for job_id, job in jobs.items() if job["store"] != name}

    return call.start_task("delete-datastore", name, work)


def _digest(call: Call) -> dict[str, str]:
    return {"digest": call.server.digest(*(store.config for store in call.server.datastores.values()))}


# -- jobs --------------------------------------------------------------------------------------------------------------

_READ = {
    "verify": ("Datastore.Audit", "Datastore.Verify"),
    "prune": ("Datastore.Audit",),
    "sync": ("Datastore.Audit",),
}
_WRITE = {"verify": "Datastore.Verify", "prune": "Datastore.Modify", "sync": "Datastore.Modify"}


def visible_jobs(call: Call, kind: str) -> dict[str, dict[str, Any]]:
    """The jobs of the stores that the caller may see; only pulls unless other directions are asked for."""
    direction = call.params.get("sync-direction", "pull")
    jobs = {
        job_id: job
        for job_id, job in call.server.sections[kind].items()
        if call.holds(*_READ[kind], path=_path(job)) and call.params.get("store", job["store"]) == job["store"]
    }
    if kind != "sync" or direction == "all":
        return jobs
    return {job_id: job for job_id, job in jobs.items() if job.get("sync-direction", "pull") == direction}


def jobs_digest(call: Call, kind: str) -> dict[str, str]:
    return {"digest": call.server.digest(*call.server.sections[kind].items())}


def _path(job: dict[str, Any]) -> str:
    return "/".join(part for part in ("/datastore", str(job["store"]), str(job.get("ns", ""))) if part)


def _find_section(call: Call, kind: str) -> dict[str, Any]:
    job = call.server.sections[kind].get(str(call["id"]))
    if job is None:
        raise Refusal(f"no such {NOUNS[kind]} '{call['id']}'")
    return job


def _require_write(call: Call, kind: str, job: dict[str, Any]) -> None:
    call.server.access.require(call.auth_id, _path(job), [_WRITE[kind]])


def _check(call: Call) -> None:
    check_schedule(call, "schedule")
    for text in call.params.get("group-filter", []):
        rule = text.removeprefix("exclude:").removeprefix("include:")
        if rule.partition(":")[0] not in ("group", "type", "regex"):
            expected = "<group:GROUP||type:<vm|ct|host>|regex:REGEX>"
            raise bad_parameter("group-filter", f"input doesn't match expected format '{expected}'")


def _declare(kind: str) -> None:
    @route("GET", f"/config/{kind}")
    def list_jobs(call: Call) -> Any:
        return Payload(list(visible_jobs(call, kind).values()), jobs_digest(call, kind))

    @route("GET", f"/config/{kind}/{{id}}")
    def read_job(call: Call) -> Any:
        job = _find_section(call, kind)
        call.server.access.require(call.auth_id, _path(job), _READ[kind], any_of=True)
        return Payload(job, jobs_digest(call, kind))

    @route("POST", f"/config/{kind}")
    def create_job(call: Call) -> None:
        """Also for stores and remotes that do not exist."""
        _check(call)
        _require_write(call, kind, call.params)
        if str(call["id"]) in call.server.sections[kind]:
            raise bad_parameter("id", f"job '{call['id']}' already exists.")
        call.server.sections[kind][str(call["id"])] = dict(call.params)

    @route("PUT", f"/config/{kind}/{{id}}")
    def update_job(call: Call) -> None:
        check_digest(call, jobs_digest(call, kind)["digest"])
        _check(call)
        job = _find_section(call, kind)
        _require_write(call, kind, job)
        apply_changes(call, job, fixed=("id",))

    @route("DELETE", f"/config/{kind}/{{id}}")
    def delete_job(call: Call) -> None:
        job = _find_section(call, kind)
        _require_write(call, kind, job)
        check_digest(call, jobs_digest(call, kind)["digest"])
        del call.server.sections[kind][str(call["id"])]
        call.server.job_states.pop((kind, str(call["id"])), None)


for _kind in NOUNS:
    _declare(_kind)
