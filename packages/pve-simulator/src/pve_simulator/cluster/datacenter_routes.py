"""Settings of the datacenter: custom CPU models, metric servers and scheduled jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pve_schema.calendar_events import parse_calendar_event
from pve_simulator.cluster.config_files import UNDEFINED_TYPE, Section, SectionFile, options_of
from pve_simulator.cluster.option_routes import Datacenter
from pve_simulator.cluster.sections import Sections, always, texts
from pve_simulator.guests import options
from pve_simulator.http.refusals import Refusal, bad_parameters, failure
from pve_simulator.http.routing import Call, route


@route("GET /cluster/qemu/cpu-flags")
def flags(_call: Call) -> list[dict[str, str]]:
    return options.cpu_flags()


class _CpuModels(Sections):
    path, key, kind = "/cluster/qemu/custom-cpu-models", "cputype", "cpu-model"
    locks_early = True
    missing = always("Custom cputype '{name}' not found")

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Datacenter).cpu_models

    def name(self, call: Call) -> str:
        return super().name(call).removeprefix("custom-")

    def row(self, call: Call, name: str, section: Section) -> Section:
        return options_of(super().row(call, f"custom-{name}", section), "type")

    def duplicate_error(self, _call: Call, name: str) -> Refusal:
        return bad_parameters({"cputype": f"custom CPU model '{name}' already exists"})


_CpuModels()


class _MetricServers(Sections):
    path, named_in_path = "/cluster/metrics/server", True
    locks_early = True
    taken = "Metric server '{name}' already exists"
    missing = texts(
        read="status server entry '{name}' does not exist", update="no such server '{name}'", delete=UNDEFINED_TYPE
    )

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Datacenter).metric_servers

    def list(self, call: Call) -> list[Section]:
        return [
            {"id": name, "disable": server.get("disable", 0)} | {key: server[key] for key in ("type", "server", "port")}
            for name, server in sorted(self.all(call).items())
        ]

    def read(self, call: Call) -> Section:
        return options_of(super().read(call), "id", "digest", "token")  # the secret is stored in a separate file


_MetricServers()


@route("GET /cluster/jobs/schedule-analyze")
def analyze_schedule(call: Call) -> list[dict[str, Any]]:
    """The next run times of a schedule."""
    event = parse_calendar_event(call.params["schedule"])
    moment = float(call.params.get("starttime", call.world.clock.now()))
    rows: list[dict[str, Any]] = []
    for _ in range(call.params.get("iterations", 10)):
        following = event.next_after(moment)
        if following is None:
            break
        utc = datetime.fromtimestamp(following, UTC).strftime("%a %b %e %H:%M:%S %Y")
        rows.append({"timestamp": int(following), "utc": utc})
        moment = following
    return rows


class _RealmSyncJobs(Sections):
    """Errors under PVE's lock of this file get no prefix, but are flattened."""

    path, kind, named_in_path = "/cluster/jobs/realm-sync", "realm-sync", True
    locks_early = True
    taken = "Job '{name}' already exists"
    missing = texts(
        update="no such realm-sync job", delete="400 Parameter verification failed.\nid: No such job '{name}'"
    )

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Datacenter).realm_sync_jobs

    def list(self, call: Call) -> list[Section]:
        rows = []
        for name, job in self.all(call).items():
            following = parse_calendar_event(job["schedule"]).next_after(call.world.clock.now())
            rows.append({"id": name, "last-run": None, **job, **({"next-run": int(following)} if following else {})})
        return rows

    def read(self, call: Call) -> Section:
        return options_of(super().read(call), "id", "digest")

    def new_section(self, call: Call) -> Section:
        given, realms = super().new_section(call), call.world.access.realms
        realm = given.get("realm", "")
        if realm not in realms:
            raise failure(f"400 Parameter verification failed.\nrealm: No such realm '{realm}'")
        if realms[realm].type not in ("ldap", "ad"):
            raise failure("400 Parameter verification failed.\nrealm: Only LDAP/AD realms can be synced.")
        return {"enabled": 1, **given}

    def missing_error(self, call: Call, verb: str, name: str) -> Refusal:
        missing = bad_parameters({"id": f"No such job '{name}'"})
        return missing if verb == "read" else super().missing_error(call, verb, name)


_RealmSyncJobs()
