"""Files of Windows guests, through PowerShell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.hints import GUEST_EXEC, GUEST_FILE_READ, GUEST_PATH_STAT, Advice
from quorate.inside.entries import Entry, Listing, WriteTarget
from quorate.inside.powershell import run_powershell
from quorate.inside.transport import Transport
from quorate.problems import BadArgument, Conflict

MAX_LISTED = 5000

_TELL = """function Tell($i){@{name=$i.Name;folder=[bool]$i.PSIsContainer;size=$(if($i.PSIsContainer){0}else{$i.Length})
modified=Seconds $i.LastWriteTimeUtc;attributes="$($i.Attributes)";target="$($i.Target)"
link=[bool]($i.LinkType -and ($i.Attributes -band [IO.FileAttributes]::ReparsePoint))}}
"""
_STAT = (
    _TELL
    + """$i=Get-Item -LiteralPath $v.path -Force
$t=Tell $i
$t.owner=$(try{(Get-Acl -LiteralPath $v.path).Owner}catch{''})
$t"""
)
_LIST = (
    _TELL
    + """$i=Get-Item -LiteralPath $v.path -Force
if(-not $i.PSIsContainer){@{folder=$false}}else{
$all=@(Get-ChildItem -LiteralPath $v.path -Force|Select-Object -First ($v.most+1)|ForEach-Object{Tell $_})
@{folder=$true;cut=($all.Count -gt $v.most);entries=@($all|Select-Object -First $v.most)}}"""
)
_PREPARE = """$f=[IO.Path]::GetDirectoryName($v.path)
if($v.parents){[void][IO.Directory]::CreateDirectory($f)}
if([IO.Directory]::Exists($v.path)){@{folder=$true}}
elseif(-not [IO.Directory]::Exists($f)){throw (New-Object IO.DirectoryNotFoundException("no folder $f"))}else{
$old=$null
if([IO.File]::Exists($v.path)){$old=([IO.FileInfo]$v.path).Length}
$temporary=''
if($old -eq $null -or -not $v.append){
$temporary=[IO.Path]::Combine($f,'.quorate-'+[Guid]::NewGuid().ToString('N'))
[IO.File]::Create($temporary).Dispose()
if($old -ne $null){Set-Acl -LiteralPath $temporary -AclObject (Get-Acl -LiteralPath $v.path)}}
@{folder=$false;old=$old;temporary=$temporary}}"""
_FINISH = """if(([IO.FileInfo]$v.temporary).Length -ne $v.size){
throw (New-Object IO.IOException('the file did not arrive as a whole'))}
if([IO.File]::Exists($v.path)){[IO.File]::Replace($v.temporary,$v.path,[NullString]::Value)}
else{[IO.File]::Move($v.temporary,$v.path)}"""
_DISCARD = "Remove-Item -LiteralPath $v.path -Force -ErrorAction SilentlyContinue"


async def stat_path(transport: Transport, path: str) -> Entry:
    return _entry(await run_powershell(transport, f"Reading the status of {path}", _STAT, path=path))


async def list_folder(transport: Transport, path: str) -> Listing:
    answer = await run_powershell(transport, f"Listing {path}", _LIST, path=path, most=MAX_LISTED)
    if not answer["folder"]:
        raise Conflict(f"{path} is a file, not a folder", next_step=Advice("Read it", GUEST_PATH_STAT, GUEST_FILE_READ))
    return Listing([_entry(one) for one in answer["entries"]], bool(answer["cut"]))


def _entry(item: Mapping[str, Any]) -> Entry:
    return Entry(
        name=str(item["name"]).encode("utf-8", "replace"),
        type="link" if item["link"] else "folder" if item["folder"] else "file",
        size=int(item["size"]),
        modified=float(item["modified"]),
        mode=str(item["attributes"]),
        owner=str(item.get("owner") or ""),
        target=str(item["target"] or "") if item["link"] else "",
    )


async def prepare(transport: Transport, path: str, *, parents: bool, append: bool) -> WriteTarget:
    """Create missing folders if requested, and a temporary file with the permissions of the existing one."""
    answer = await run_powershell(transport, f"Writing {path}", _PREPARE, path=path, parents=parents, append=append)
    if answer["folder"]:
        raise Conflict(f"{path} is a folder, not a file", next_step="Give the path of a file in it")
    old = None if answer["old"] is None else Entry(b"", "file", int(answer["old"]), 0.0)
    return WriteTarget(path, str(answer["temporary"] or ""), old)


async def finish(transport: Transport, target: WriteTarget, *, size: int) -> None:
    """Move the temporary file over the target, which keeps its permissions."""
    await run_powershell(
        transport, f"Writing {target.path}", _FINISH, path=target.path, temporary=target.temporary, size=size
    )


async def discard(transport: Transport, path: str) -> None:
    await run_powershell(transport, f"Removing {path}", _DISCARD, path=path)


def refuse_ownership(owner: str | None, mode: str | None) -> None:
    if owner or mode:
        raise BadArgument(
            "mode and owner are not supported on Windows", next_step=Advice("Omit them, and run icacls", GUEST_EXEC)
        )
