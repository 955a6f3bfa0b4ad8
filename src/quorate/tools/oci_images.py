"""Application images from registries, which containers can be made from: references, tags, and the call that pulls one.

PVE stores a pulled image as a container template. Its own name for that file has neither registry nor owner, so Quorate
gives one: two images of the same name are not mistaken for each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from quorate.hints import Advice, either, see, tools
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, Target
from quorate.problems import BadArgument, Conflict, NotFound, PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.suggestions import suggest

FILE_ENDING: Final = ".tar"
"""Of an application image among the container templates; archives of systems are compressed."""
LATE: Final = ("entrypoint", "env")
"""Options that PVE takes from the image while it creates the container, whatever the call says."""

_SCHEME: Final = re.compile(r"(?:docker|oci)://", re.I)
_REFERENCE: Final = re.compile(
    r"(?P<repository>(?:[a-zA-Z\d][a-zA-Z\d.-]*(?::\d+)?/)?[a-z\d]+(?:[._-]+[a-z\d]+)*(?:/[a-z\d]+(?:[._-]+[a-z\d]+)*)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?"
)
_FILE: Final = re.compile(r"(?:[^/]*:)?vztmpl/|.*\.tar(?:\.\w+)?$", re.I)
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9_.\-]")
_VARIABLE: Final = re.compile(r"\w+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HUB: Final = "docker.io"


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image in a registry: `docker.io/library/nginx:1.29`."""

    repository: str
    tag: str = ""

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}" if self.tag else self.repository

    @property
    def stem(self) -> str:
        """The name of its file, without the extension that PVE adds."""
        return _UNSAFE.sub("_", str(self))

    @property
    def file_name(self) -> str:
        return f"{self.stem}{FILE_ENDING}"

    def pull(self, node: str, storage: str) -> Call:
        """The step that fetches it from its registry."""
        return Call(
            f"Pull {self} to {storage} on {node}",
            "POST",
            f"/nodes/{node}/storage/{storage}/oci-registry-pull",
            {"reference": str(self), "filename": self.stem},
            Target("storage", storage, node=node),
            task_id=self.file_name,
        )


def parse_image(text: str) -> ImageReference | None:
    """The image that a text refers to, by its full name; None if it is the name of a file or of an appliance.

    A plain word is an appliance; with a tag or an owner it is an image, of Docker Hub if it names no registry.
    """
    bare = _SCHEME.sub("", text.strip())
    explicit = bare != text.strip()
    if "@" in bare and (explicit or "/" in bare):
        raise BadArgument(f"PVE pulls images by tag, and {text!r} has a digest", next_step="Write it as name:tag")
    if not explicit and _FILE.match(bare):
        return None
    match = _REFERENCE.fullmatch(bare)
    if match is None or not (explicit or match["tag"] or "/" in match["repository"]):
        if explicit:
            raise BadArgument(f"{text!r} is not a reference to an image", next_step="Write it like nginx:1.29")
        return None
    return ImageReference(_full_name(match["repository"]), match["tag"] or "")


def parse_repository(text: str) -> ImageReference:
    """The image whose tags are asked for, where a plain word is one of Docker Hub's own."""
    named = parse_image(text) or parse_image(f"docker://{text}")
    assert named is not None  # what is not a reference is refused, because the text says that it is one
    return named


def _full_name(repository: str) -> str:
    first, slash, _ = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return repository
    return f"{_HUB}/{repository}" if slash else f"{_HUB}/library/{repository}"


# -- the registry, as a node sees it -----------------------------------------------------------------------------------


async def read_tags(pve: Cluster, node: str, repository: str) -> list[str]:
    """The tags of a repository, asked by the node that would pull them."""
    await _require_version(pve)
    try:
        return [str(tag) for tag in await pve.get(f"/nodes/{node}/query-oci-repo-tags", reference=repository) or ()]
    except PermissionMissing:
        raise
    except Problem as problem:
        raise _explain(problem, node, repository) from None


async def _require_version(pve: Cluster) -> None:
    """Images came with PVE 9.1, so older facts do not have their endpoint."""
    if (await pve.facts()).find("GET", "/nodes/pve/query-oci-repo-tags") is None:
        version = (await pve.version()).get("version", "")
        raise BadArgument(
            f"PVE {version} cannot make containers from application images",
            why="That requires PVE 9.1",
            next_step=either(
                "Upgrade the nodes", Advice("run the image with Docker inside a guest", tools.workload_deploy)
            ),
        )


def _explain(problem: Problem, node: str, repository: str) -> Problem:
    if "skopeo'" in problem.what and "Install" in problem.what:
        return Conflict(
            f"Node {node} cannot read registries",
            why=problem.what,
            next_step=f"Install the package skopeo on {node}",
        )
    return NotFound(
        f"Node {node} cannot read the tags of {repository}",
        why=problem.what,
        next_step="Check the name, and that the node reaches the registry; PVE sends no login, so the image must be "
        "public",
    )


async def require_tag(pve: Cluster, node: str, image: ImageReference) -> None:
    """Refuse an image that its registry does not have, or that names no tag, with the tags that exist."""
    present = await read_tags(pve, node, image.repository)
    if image.tag in present:
        return
    listing = tools.template_list(image=image.repository)
    if not image.tag:
        raise BadArgument(
            f"Which tag of {image}?",
            why=f"It has {len(present)}, such as {', '.join(_newest(present))}" if present else "It has none",
            next_step=Advice(f"Write it as {image.repository}:{(_newest(present) or ['latest'])[0]}").then(
                see("See all", listing)
            ),
        )
    hint = suggest(image.tag, present, see("See its tags", listing), count=3, cutoff=0.4)
    raise NotFound(f"{image.repository} has no tag {image.tag!r}", next_step=hint)


def _newest(tags: list[str], count: int = 5) -> list[str]:
    """The tags that look like the newest versions, best first; those without a number come last."""
    return sorted(tags, key=lambda tag: [int(number) for number in re.findall(r"\d+", tag)], reverse=True)[:count]


# -- entry point and variables -----------------------------------------------------------------------------------------


def environment(value: Any) -> str:
    """The option `env` as PVE takes it, from an object, a list or a text of NAME=value."""
    if isinstance(value, Mapping):
        pairs = [f"{name}={_plain(name, inner)}" for name, inner in value.items()]
    else:
        pairs = [str(pair) for pair in value] if isinstance(value, list) else str(value).split("\0") if value else []
    for pair in pairs:
        name, equals, content = pair.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise BadArgument(f"{name!r} is not a variable", next_step='Write variables as {"NAME": "value"}')
        if _CONTROL.search(content):
            raise BadArgument(f"The variable {name} has a control character", why="PVE refuses them, line breaks too")
    return "\0".join(pairs)


def merge_environment(stored: str, changes: Mapping[str, Any] | str) -> str:
    """The option `env` with some variables changed; null removes one. PVE itself would replace all of them."""
    if isinstance(changes, str):
        return "\0".join((_by_name(stored) | _by_name(changes)).values())
    kept = {name: pair for name, pair in _by_name(stored).items() if changes.get(name, "") is not None}
    new = environment({name: value for name, value in changes.items() if value is not None}) if changes else ""
    return "\0".join((kept | _by_name(new)).values())


def _plain(name: Any, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise BadArgument(f"The variable {name} takes a single value")
    return str(value)


def late_settings(pve: Cluster, target: Target, path: str, settings: Mapping[str, Any]) -> Call | Action | None:
    """The step that sets entry point and variables of a container that was made from an image.

    PVE's option replaces all variables, and without those of the image (PATH) it rarely starts; so they are kept.
    """
    late = {name: settings[name] for name in LATE if name in settings}
    if not late:
        return None
    names = ", ".join(_by_name(str(late.get("env", ""))))
    parts = ("entry point" if "entrypoint" in late else "", f"variables {names}" if names else "")
    call = Call(f"Set {' and '.join(filter(None, parts))} of {target}", "PUT", path, late, target)
    if "env" not in late:
        return call

    async def perform(context: StepContext) -> ActionResult:
        merged = merge_environment(str((await pve.get(path)).get("env", "")), str(late["env"]))
        complete = replace(call, params={**late, "env": merged})
        await context.carry_out(pve, Plan(call.summary, (complete,)), context.wait, context.report)
        return ActionResult()

    started = f"entrypoint={late['entrypoint']}, " if "entrypoint" in late else ""
    return Action(call.summary, f"{started}set {names}, keep the other variables", perform, target, (call,))


def _by_name(text: str) -> dict[str, str]:
    return {pair.partition("=")[0]: pair for pair in text.split("\0") if pair}
