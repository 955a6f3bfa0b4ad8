"""`pct` on the laboratory's nodes: PVE's container tool in its own words, with LXC's own tools behind it.

The file is copied to the node as its command, with the node's name and folder put in; it uses nothing but Python's
own library. As on PVE, what fails in the copying itself is reported on stderr while the exit code stays 0.
"""

import ctypes
import grp
import os
import pwd
import re
import shutil
import subprocess
import sys

NODE = "@NODE@"
HOME = "@HOME@"

_FAILED = 255
_MISSING = 2
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000


class Failure(Exception):
    """Ends the command with a text and an exit code."""

    def __init__(self, text: str, code: int = _FAILED) -> None:
        super().__init__(text)
        self.code = code


def main(args: list[str]) -> int:
    actions = {"config": config, "exec": execute, "pull": pull, "push": push, "status": status}
    name = args[0] if args else ""
    try:
        if name == "list":
            return list_all()
        if name not in actions:
            raise Failure(f"ERROR: unknown command 'pct {name}'" if name else "ERROR: no command specified")
        return actions[name](checked_id(name, args[1:]), args[2:])
    except Failure as failure:
        sys.stderr.write(f"{failure}\n")
        return failure.code


def checked_id(name: str, args: list[str]) -> str:
    """The container's number, if it is one of this node's."""
    if not args or not re.fullmatch(r"[1-9][0-9]{2,8}", args[0]):
        problem = (
            "invalid format - value does not look like a valid VM ID"
            if args
            else "property is missing and it is not optional"
        )
        raise Failure(f"400 Parameter verification failed.\nvmid: {problem}\npct {name} <vmid> [OPTIONS]")
    if not os.path.exists(f"{HOME}/lxc/{args[0]}/config"):
        raise Failure(f"Configuration file 'nodes/{NODE}/lxc/{args[0]}.conf' does not exist", _MISSING)
    return args[0]


def asked(vmid: str, *question: str) -> str:
    """One of the facts that `lxc-info` knows."""
    command = ["lxc-info", "-P", f"{HOME}/lxc", "-n", vmid, "-H", *question]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def running(vmid: str) -> bool:
    return asked(vmid, "-s") == "RUNNING"


def configuration(vmid: str) -> dict[str, str]:
    with open(f"{HOME}/lxc/{vmid}/pve.conf") as file:
        return dict(line.rstrip("\n").split(": ", 1) for line in file)


def list_all() -> int:
    row = "{:<10} {:<10} {:<12} {:<20}\n"
    sys.stdout.write(row.format("VMID", "Status", "Lock", "Name"))
    for vmid in sorted(os.listdir(f"{HOME}/lxc"), key=int):
        state = "running" if running(vmid) else "stopped"
        sys.stdout.write(row.format(vmid, state, "", configuration(vmid)["hostname"]))
    return 0


def status(vmid: str, args: list[str]) -> int:
    del args
    sys.stdout.write(f"status: {'running' if running(vmid) else 'stopped'}\n")
    return 0


def config(vmid: str, args: list[str]) -> int:
    del args
    for key, value in sorted(configuration(vmid).items()):
        sys.stdout.write(f"{key}: {value}\n")
    return 0


def execute(vmid: str, args: list[str]) -> int:
    argv, environment = list(args), "--keep-env"
    if argv and re.fullmatch(r"--?keep-env(=.*)?", argv[0]):
        option = argv.pop(0)
        value = option.partition("=")[2] or (argv.pop(0) if argv else "")
        environment = "--keep-env" if value in ("1", "yes", "on", "true") else "--clear-env"
    if argv[:1] == ["--"]:
        argv.pop(0)
    if not running(vmid):
        raise Failure(f"container '{vmid}' not running!")
    if not argv:
        raise Failure("missing command at /usr/share/perl5/PVE/CLI/pct.pm line 200.")
    attach = ["lxc-attach", "-P", f"{HOME}/lxc", "-n", vmid, environment, "--", *argv]
    os.execvp(attach[0], attach)


def push(vmid: str, args: list[str]) -> int:
    (source, target), options = paths_and_options(args)
    if not running(vmid):
        raise Failure("can only push files to a running CT")

    def work() -> None:
        try:
            handle = os.open(source, os.O_RDONLY)
        except OSError as error:
            raise Failure(f"failed to open {source} for reading") from error
        enter(vmid, as_its_root=True)
        with os.fdopen(handle, "rb") as original, created(target, options) as copy:
            shutil.copyfileobj(original, copy)

    return in_worker(work)


def pull(vmid: str, args: list[str]) -> int:
    (source, target), options = paths_and_options(args)
    if not running(vmid):
        raise Failure("can only pull files from a running VM at /usr/share/perl5/PVE/CLI/pct.pm line 577.")

    def work() -> None:
        with created(target, options) as copy:
            enter(vmid, as_its_root=False)
            try:
                handle = os.open(source, os.O_RDONLY)
            except OSError as error:
                raise Failure(f"failed to open {source}: {error.strerror}") from error
            with os.fdopen(handle, "rb") as original:
                shutil.copyfileobj(original, copy)

    return in_worker(work)


def paths_and_options(args: list[str]) -> "tuple[list[str], dict[str, str]]":
    paths, options, rest, only_paths = [], {}, list(args), False
    while rest:
        each = rest.pop(0)
        if each == "--" and not only_paths:
            only_paths = True
        elif each.startswith("-") and not only_paths:
            name, separator, value = each.lstrip("-").partition("=")
            if name not in ("user", "group", "perms"):
                raise Failure(f"Unknown option: {name}\n400 unable to parse option")
            options[name] = value if separator else (rest.pop(0) if rest else "")
        else:
            paths.append(each)
    if len(paths) != 2:
        raise Failure("400 not enough arguments" if len(paths) < 2 else "400 too many arguments")
    return paths, options


def in_worker(work) -> int:
    """PVE does the copying in a task of its own, and looks at its words but not at its end."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except Failure as failure:
            sys.stderr.write(f"{failure}\n")
        except OSError as error:
            sys.stderr.write(f"{error.strerror}\n")
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(child, 0)
    return 0


def enter(vmid: str, *, as_its_root: bool) -> None:
    """Go where the container's files are, so that its links lead nowhere else."""
    namespaces = f"/proc/{asked(vmid, '-p')}/ns"
    with open(f"{namespaces}/mnt") as mounts, open(f"{namespaces}/user") as users:
        join(mounts.fileno(), _NEW_MOUNTS)
        os.chdir("/")
        if as_its_root:
            join(users.fileno(), _NEW_USER)
            os.setgid(0)
            os.setuid(0)


def join(namespace: int, kind: int) -> None:
    if libc.setns(namespace, kind):
        raise Failure(f"failed to enter the container's namespace: {os.strerror(ctypes.get_errno())}")


def created(path: str, options: "dict[str, str]"):
    """The file to write, with owner and permissions as asked for."""
    try:
        user = number(options.get("user"), lambda name: pwd.getpwnam(name).pw_uid)
    except KeyError as error:
        raise Failure(f"failed to get uid for: {options['user']}") from error
    try:
        group = number(options.get("group"), lambda name: grp.getgrnam(name).gr_gid)
    except KeyError as error:
        raise Failure(f"failed to get gid for: {options['group']}") from error
    mode = permissions(options.get("perms"))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    except OSError as error:
        raise Failure(f"failed to create file: {path}: {error.strerror}") from error
    if mode is not None:
        os.fchmod(handle, mode)
    if user >= 0 or group >= 0:
        os.fchown(handle, user, group)
    return os.fdopen(handle, "wb")


def number(text: "str | None", look_up) -> int:
    return -1 if text is None else int(text) if text.isdigit() else look_up(text)


def permissions(text: "str | None") -> "int | None":
    if text is None:
        return None
    text = text if text.startswith("0") else f"0{text}"
    try:
        return int(text, 16 if text.lower().startswith("0x") else 8)
    except ValueError as error:
        raise Failure(f"invalid mode: '{text}'") from error


libc = ctypes.CDLL(None, use_errno=True)
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
