"""Fixed PowerShell scripts for Windows guests. Values are passed as data, never as part of the script's text."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from quorate.documents import read_json
from quorate.inside.transport import Command, Output, Transport
from quorate.inside.windows_launch import powershell_argv
from quorate.problems import Conflict, GuestRefused, NotFound, Problem, ServerFailed

KEPT = 4 * 1024 * 1024

# Values are JSON in base64, which cannot end a PowerShell string; the answer has the same form, because the console
# would convert other characters to the machine's code page.
_FRAME = """$ErrorActionPreference='Stop'
$ProgressPreference=$WarningPreference='SilentlyContinue'
$v=ConvertFrom-Json ([Text.Encoding]::UTF8.GetString([Convert]::FromBase64String('%VALUES%')))
function Seconds($t){[int64]($t.ToUniversalTime()-[datetime]'1970-01-01').TotalSeconds}
try{$answer=@{value=(& {
%BODY%
})}}catch{$e=$_.Exception
if($e -is [Management.Automation.MethodInvocationException] -and $e.InnerException){$e=$e.InnerException}
$answer=@{error="$($e.Message)";kind=$e.GetType().Name}}
$json=ConvertTo-Json -InputObject $answer -Depth 6 -Compress
[Console]::Out.Write([Convert]::ToBase64String([Text.Encoding]::UTF8.GetBytes($json)))
"""
_NOT_FOUND = ("ItemNotFoundException", "FileNotFoundException", "DirectoryNotFoundException", "ServiceNotFound")
_IN_THE_WAY = ("IOException", "InvalidOperationException", "ServiceCommandException")


def powershell_command(body: str, **values: Any) -> Command:
    """`body` run by PowerShell, with `values` as the members of $v."""
    data = base64.b64encode(json.dumps(values).encode()).decode()
    return Command(powershell_argv(_FRAME.replace("%BODY%", body).replace("%VALUES%", data)))


async def run_powershell(transport: Transport, doing: str, body: str, *, seconds: float = 45.0, **values: Any) -> Any:
    """The script's answer. `doing` introduces an error: "Reading C:\\\\x"."""
    output = await transport.run(powershell_command(body, **values), seconds=seconds, keep=KEPT)
    answer = _answer(output, doing)
    if "error" in answer:
        raise _failure(doing, str(answer["error"]), str(answer.get("kind", "")))
    return answer.get("value")


def _answer(output: Output, doing: str) -> dict[str, Any]:
    try:
        answer = read_json(base64.b64decode(output.stdout.strip(), validate=True))
        if isinstance(answer, dict):
            return answer
    except (binascii.Error, ValueError):
        pass
    if output.stdout_cut:
        raise GuestRefused(f"{doing}: the answer is too long", next_step="Ask for less")
    said = (output.stderr or output.stdout).decode("utf-8", "replace").strip()[:400]
    raise ServerFailed(f"{doing}: PowerShell gave no answer", why=f"It said: {said}" if said else None)


def _failure(doing: str, said: str, kind: str) -> Problem:
    why = f"It said: {said[:400]}"
    if kind in _NOT_FOUND:
        return NotFound(f"{doing}: it does not exist", why=why)
    return (Conflict if kind in _IN_THE_WAY else GuestRefused)(f"{doing}: not possible", why=why)
