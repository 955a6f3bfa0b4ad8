"""Commands inside guests."""

from __future__ import annotations

from quorate.operations.registry import Risk
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.gates import ELEVATED
from quorate.surfaces.compat.gilby125.markdown import bold, card, fenced
from quorate.surfaces.compat.gilby125.shapes import BOTH, NODE, VMID, told
from quorate.surfaces.compat.placed import placed
from quorate.surfaces.compat.running import Done, Run

STREAMS = (("Output", "stdout"), ("Errors", "stderr"))
REMARKS = ("signal", "timed_out", "stdout_cut", "stderr_cut", "stdout_note", "stderr_note", "note")


async def execute(run: Run) -> str:
    """Whichever of the two kinds it is: the id tells."""
    guest = await placed(run)
    done = await run.change("guest_exec", guest=guest.vmid, command=run["command"], follow=None if run["wait"] else 0.0)
    kind = next(kind for kind in BOTH if kind.type == guest.type)
    if done.was_dry_run:
        return str(await told("💻", f"Command in {kind.word}", {})(run, done))
    facts = {"VM ID": guest.vmid, "Type": kind.label, "Node": guest.node}
    code = done.facts.get("exit_code")
    ended = {"Exit Code": code} if code is not None else {"Background Job": done.facts.get("job")}
    state = "still running" if done.is_running else "done"
    return card("💻", bold(f"Command in {kind.word}: {state}"), facts | ended, *_remarks(done), *_outputs(done))


def _remarks(done: Done) -> list[str]:
    return [f"**Note**: {done.facts[name]}" for name in REMARKS if name in done.facts]


def _outputs(done: Done) -> list[str]:
    """What the guest printed, fenced in: it is a stranger's text."""
    printed = [
        (f"{title} (base64)" if encoded else title, str(done.facts[key]))
        for title, stream in STREAMS
        for encoded, key in ((False, stream), (True, f"{stream}_base64"))
        if done.facts.get(key)
    ]
    return [f"{bold(title)}:\n{fenced(text)}" for title, text in printed]


TOOLS = (
    Tool(
        "proxmox_execute_vm_command",
        "Run a shell command inside a running VM (by its guest agent) or container (by pct on its node).",
        (
            NODE,
            VMID,
            need("command", "string", "For the guest's shell"),
            may("type", "string", "qemu", "Found out by itself", choices=("qemu", "lxc")),
            may("wait", "boolean", True, "false: only begin it"),
        ),
        Risk.CHANGE,
        "guest_exec",
        execute,
        ELEVATED,
    ),
)
