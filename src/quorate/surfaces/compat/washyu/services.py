"""The service catalog, Terraform, Ansible, and community scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.problems import Problem
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.recipes import Source, map_arguments
from quorate.surfaces.compat.washyu.answers import change_answer, success
from quorate.surfaces.compat.washyu.machines import PATIENCE, logged_in_host

SECONDS = 50.0


async def list_all(call: ToolCall) -> dict[str, Any]:
    rows = await call.rows("service_list")
    return success(total_services=len(rows), services=rows)


async def info(call: ToolCall) -> dict[str, Any]:
    return success(service=await call.facts("service_info", service=call["service_name"]))


def service_read(operation: str, parameters: Mapping[str, Source] | None = None, **fixed: Any) -> Recipe:
    """Read a service on the machine of the call."""

    async def recipe(call: ToolCall) -> dict[str, Any]:
        async with logged_in_host(call) as host:
            facts = await call.facts(
                operation, host=host, service=call["service_name"], **fixed, **map_arguments(call, parameters or {})
            )
        return success(hostname=call["hostname"], service=call["service_name"], result=facts)

    return recipe


def service_change(operation: str, parameters: Mapping[str, Source] | None = None) -> Recipe:
    """A change of a service on the machine of the call, followed to its end."""

    async def recipe(call: ToolCall) -> dict[str, Any]:
        async with logged_in_host(call) as host:
            done = await call.change(
                operation,
                follow=PATIENCE,
                host=host,
                service=call["service_name"],
                **map_arguments(call, parameters or {}),
            )
        return change_answer(done, hostname=call["hostname"], service=call["service_name"])

    return recipe


_PLAY = {"tags": "tags", "extra_vars": "extra_vars"}
_TRY = service_read("ansible_check", _PLAY, seconds=PATIENCE)
_RUN = service_change("ansible_run", _PLAY)


async def play(call: ToolCall) -> Any:
    return await (_TRY if call["check_mode"] else _RUN)(call)


# -- community scripts -------------------------------------------------------------------------------------------------


PREVIEW = 500
INSTALLER = "-install"
"""What ct/jellyfin.sh runs inside its container is jellyfin-install: for who looks for one, they are the same."""


async def search(call: ToolCall) -> dict[str, Any]:
    """Names only, unless more is asked for."""
    rows, rest = await call.listing("script_search", words=call["query"], category=_category(call))
    scripts = rows if call["include_metadata"] else [{key: row[key] for key in ("script", "category")} for row in rows]
    return success(query=call["query"], total_found=len(scripts), scripts=scripts, **rest)


async def script_info(call: ToolCall) -> dict[str, Any]:
    """With the beginning of its text, where that can be fetched."""
    asked = {"script": call["script_name"].removesuffix(".sh").removesuffix(INSTALLER), "category": _category(call)}
    try:
        facts = await call.facts("script_info", text=True, **asked)
        facts["preview"] = str(facts.pop("content"))[:PREVIEW]
    except Problem as problem:
        facts = await call.facts("script_info", **asked)
        facts["no_preview"] = str(problem)
    return success(script={name: value for name, value in facts.items() if name not in ("next_offset", "to_run")})


def _category(call: ToolCall) -> str | None:
    return "ct" if call["category"] == "install" else call["category"]


RECIPES: dict[str, Recipe] = {
    "list_available_services": list_all,
    "get_service_info": info,
    "check_service_requirements": service_read("service_check"),
    "install_service": service_change("service_install", {"settings": "config_override"}),
    "get_service_status": service_read("service_status"),
    "plan_terraform_service": service_read("terraform_plan", {"settings": "config_override"}, seconds=SECONDS),
    "destroy_terraform_service": service_change("terraform_destroy"),
    "refresh_terraform_service": service_read("terraform_refresh", seconds=SECONDS),
    "check_ansible_service": service_read("ansible_check", seconds=PATIENCE),
    "run_ansible_playbook": play,
    "search_proxmox_scripts": search,
    "get_proxmox_script_info": script_info,
}
