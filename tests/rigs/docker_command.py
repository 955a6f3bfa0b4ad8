"""A host with a `docker` command and a Compose project: the subcommands that the tools use, on a state in a file.

    host = DockerCommand(folder); pass host.options to the homelab rig
    host.publish("app:1", "healthy")   a new image of that tag in the registry; its containers become healthy, or not
    host.state()                       images by name, containers by id, unused objects, every call

The real engine is in tests/real.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.rigs.host_tools import plain_tools

_DOCKER = """#!@PYTHON@ -SE
import json, sys
from pathlib import Path

file = Path("@HERE@/state.json")
state = json.loads(file.read_text())
words = sys.argv[1:]
state["calls"].append(" ".join(words))
out = []


def ended(code=0, error=""):
    file.write_text(json.dumps(state))
    print("\\n".join(out)) if out else None
    if error:
        print(error, file=sys.stderr)
    sys.exit(code)


def row(one):
    image = state["registry_of"][one["image_id"]]
    return {"Id": one["id"], "Name": "/" + one["name"], "Image": one["image_id"], "RestartCount": 0,
            "Config": {"Image": one["image"], "Labels": {
                "com.docker.compose.project": "shop", "com.docker.compose.service": one["service"],
                "com.docker.compose.project.working_dir": "@HERE@",
                "com.docker.compose.project.config_files": "@HERE@/compose.yaml"}},
            "State": {"Status": "running", "Health": {"Status": image}}}


match words:
    case ["compose", "version", *_]:
        pass
    case ["compose", "-p", _, "-f", _, "pull", *_]:
        state["images"].update(state["registry"])
    case ["compose", "-p", _, "-f", _, "up", "--detach", *services]:
        for one in state["containers"]:
            if not services or one["service"] in services:
                one["image_id"] = state["images"][one["image"]]
    case ["ps", "--all", "--quiet", "--no-trunc", "--filter", "label=com.docker.compose.project=shop"]:
        out = [one["id"] for one in state["containers"]]
    case ["ps", "--all", "--quiet", "--no-trunc"]:
        out = [one["id"] for one in state["containers"]]
    case ["ps", *_]:
        out = ["shop"] if "project" in words[-1] and len(words) == 6 else []
    case ["inspect", "--format", "{{.Image}}", *ids]:
        out = [one["image_id"] for one in state["containers"] if one["id"] in ids]
    case ["inspect", *ids]:
        out = [json.dumps([row(one) for one in state["containers"] if one["id"] in ids])]
    case ["image", "inspect", "--format", _, name]:
        if name not in state["images"]:
            ended(1, "No such image")
        out = [state["images"][name]]
    case ["tag", image, name]:
        state["images"][name] = image
    case ["logs", *_]:
        out = ["the last words"]
    case ["system", "df", *_]:
        out = ["Images\\t3\\t1\\t900MB\\t600MB (66%)", "Build Cache\\t4\\t0\\t50MB\\t50MB"]
    case ["images", "--no-trunc", "--filter", "dangling=true", *_]:
        out = [one + "\\t300MB" for one in state["dangling"]]
    case ["images", *_]:
        out = ["app\\t1\\t300MB", "db\\t2\\t1.2GB"]
    case ["rmi", image]:
        if image in state["busy"]:
            ended(1, "image is being used by running container")
        state["dangling"].remove(image)
    case ["builder", "prune", *_]:
        pass
    case _:
        ended(1, "docker: unknown " + " ".join(words))
ended()
"""
OLD = "sha256:" + "a" * 64


class DockerCommand:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._path = plain_tools(folder / "tools")
        docker = folder / "tools/docker"
        docker.write_text(_DOCKER.replace("@PYTHON@", sys.executable).replace("@HERE@", str(folder)))
        docker.chmod(0o755)
        (folder / "compose.yaml").write_text("services: {}\n")
        services = {"one": "app:1", "two": "db:2"}
        self._write(
            {
                "images": dict.fromkeys(services.values(), OLD),
                "registry": {},
                "registry_of": {OLD: "healthy"},
                "containers": [
                    {"id": name * 8, "name": f"shop-{name}-1", "service": name, "image": image, "image_id": OLD}
                    for name, image in services.items()
                ],
                "dangling": [],
                "busy": [],
                "calls": [],
            }
        )

    @property
    def options(self) -> dict[str, Any]:
        return {"environment": {"PATH": self._path}}

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    def publish(self, image: str, health: str) -> str:
        state = self.state()
        new = f"sha256:{len(state['registry_of']):064x}"
        state["registry"][image] = new
        state["registry_of"][new] = health
        self._write(state)
        return new

    def leave(self, *dangling: str, busy: str = "") -> None:
        self._write({**self.state(), "dangling": list(dangling), "busy": [busy] if busy else []})

    def running(self) -> dict[str, str]:
        """Service -> id of its image."""
        return {container["service"]: container["image_id"] for container in self.state()["containers"]}

    def _write(self, state: dict[str, Any]) -> None:
        (self.folder / "state.json").write_text(json.dumps(state))
