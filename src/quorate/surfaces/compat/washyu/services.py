"""Services of the catalogue on machines: requirements, installing, and what Terraform and Ansible do for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Risk
from quorate.surfaces.compat.declaring import Recipe, Tool, may, need
from quorate.surfaces.compat.recipes import Source, taken
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.washyu.shapes import ACCOUNT, HOSTNAME, PASSWORD, PATIENCE, PORT, good, reached, told

SERVICE = need("service_name", "string", "As list_available_services tells it")
USERNAME = may("username", "string", ACCOUNT, "Default: the registered login, else mcp_admin")
OVERRIDE = may("config_override", "object", about="Settings, as get_service_info lists them")
SECONDS = 50.0


async def listing(run: Run) -> dict[str, Any]:
    rows = await run.rows("service_list")
    return good(total_services=len(rows), services=rows)


async def info(run: Run) -> dict[str, Any]:
    return good(service=await run.facts("service_info", service=run["service_name"]))


def looking(operation: str, parameters: Mapping[str, Source] | None = None, **fixed: Any) -> Recipe:
    """A look at a service on the machine of the call."""

    async def recipe(run: Run) -> dict[str, Any]:
        async with reached(run) as host:
            found = await run.facts(
                operation, host=host, service=run["service_name"], **fixed, **taken(run, parameters or {})
            )
        return good(hostname=run["hostname"], service=run["service_name"], result=found)

    return recipe


def acting(operation: str, parameters: Mapping[str, Source] | None = None) -> Recipe:
    """A change of a service on the machine of the call, followed to its end."""

    async def recipe(run: Run) -> dict[str, Any]:
        async with reached(run) as host:
            done = await run.change(
                operation, follow=PATIENCE, host=host, service=run["service_name"], **taken(run, parameters or {})
            )
        return told(done, hostname=run["hostname"], service=run["service_name"])

    return recipe


_PLAY = {"tags": "tags", "extra_vars": "extra_vars"}
_TRY = looking("ansible_check", _PLAY, seconds=PATIENCE)
_RUN = acting("ansible_run", _PLAY)


async def play(run: Run) -> Any:
    return await (_TRY if run["check_mode"] else _RUN)(run)


ON_HOST = (SERVICE, HOSTNAME, USERNAME, PASSWORD)

TOOLS = (
    Tool("list_available_services", "Services that can be installed.", (), Risk.READ, "service_list", listing),
    Tool(
        "get_service_info",
        "What a service needs, its settings, ports and health check.",
        (SERVICE,),
        Risk.READ,
        "service_info",
        info,
    ),
    Tool(
        "check_service_requirements",
        "Whether a machine has what a service needs: ports, memory, disk, architecture.",
        (*ON_HOST, PORT),
        Risk.LOOK_INSIDE,
        "service_check",
        looking("service_check"),
    ),
    Tool(
        "install_service",
        "Install a service on a machine; done when it is healthy.",
        (*ON_HOST, OVERRIDE, PORT),
        Risk.CHANGE,
        "service_install",
        acting("service_install", {"settings": "config_override"}),
    ),
    Tool(
        "get_service_status",
        "How a service on a machine is: what runs, health, version.",
        (*ON_HOST, PORT),
        Risk.LOOK_INSIDE,
        "service_status",
        looking("service_status"),
    ),
    Tool(
        "plan_terraform_service",
        "What Terraform would create, change or destroy for a service. Nothing is applied.",
        (*ON_HOST, OVERRIDE, PORT),
        Risk.LOOK_INSIDE,
        "terraform_plan",
        looking("terraform_plan", {"settings": "config_override"}, seconds=SECONDS),
    ),
    Tool(
        "destroy_terraform_service",
        "Destroy everything that Terraform made for a service.",
        (*ON_HOST, PORT),
        Risk.DESTROY,
        "terraform_destroy",
        acting("terraform_destroy"),
    ),
    Tool(
        "refresh_terraform_service",
        "What differs from what Terraform made for a service.",
        (*ON_HOST, PORT),
        Risk.LOOK_INSIDE,
        "terraform_refresh",
        looking("terraform_refresh", seconds=SECONDS),
    ),
    Tool(
        "check_ansible_service",
        "Try the playbook of a service on a machine in check mode.",
        (*ON_HOST, PORT),
        Risk.LOOK_INSIDE,
        "ansible_check",
        looking("ansible_check", seconds=PATIENCE),
    ),
    Tool(
        "run_ansible_playbook",
        "Run the playbook of a service on a machine, or try it with check_mode.",
        (
            *ON_HOST,
            may("tags", "array<string>", about="Only tasks with one of these"),
            may("extra_vars", "object", about="Settings, as get_service_info lists them"),
            may("check_mode", "boolean", False, "Only tell what it would change"),
            PORT,
        ),
        Risk.CHANGE,
        "ansible_run",
        play,
    ),
)
