"""The administration account of a host: create, test, add to groups, remove."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import HOST_ADMIN_SETUP, Advice, either
from quorate.homelab.admin import account_changes
from quorate.homelab.admin.account import (
    USUAL_GROUPS,
    AccountLedger,
    AccountRecord,
    AccountState,
    FormerLogin,
    disconnect,
    read_account_state,
    require_account,
    require_groups,
    try_account,
)
from quorate.homelab.admin.keys import AdminKey, admin_key
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import Machine, resolve_host, with_login
from quorate.homelab.selection import select
from quorate.operations.hosts.parameters import HostRefs, Key, Password, Port, User, given_login
from quorate.operations.hosts.several import describe_each, plan_each
from quorate.operations.machine import machine_action
from quorate.operations.plan import Action, ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, Table, operation
from quorate.problems import Conflict, NotFound, Problem

Account = Annotated[str, Meta(description="Name of the administration account")]
Groups = Annotated[list[str], Meta(description="Instead of docker, lxd, libvirt, kvm, incus-admin, where present")]
USUAL_ACCOUNT = "quorate"


@operation(
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="create administration account admin user ssh key sudo passwordless automation setup mcp admin",
    example="host=nas dry_run=true",
)
async def host_admin_setup(
    homelab: Homelab,
    host: HostRefs,
    account: Account = USUAL_ACCOUNT,
    groups: Groups | None = None,
    sudo: Annotated[bool, Meta(description="Passwordless sudo to root")] = True,
    register: Annotated[bool, Meta(description="Use it as the login of the registered host")] = False,
    adopt: Annotated[bool, Meta(description="Also take over an account that Quorate did not create")] = False,
    user: User | None = None,
    key: Key | None = None,
    password: Password | None = None,
    port: Port | None = None,
) -> Plan:
    """Create an administration account on hosts, with its own key, a verified sudo rule and groups. Existing
    settings stay; an account that Quorate did not create is changed only with adopt."""
    login = given_login(user, key, password, port)

    async def prepare(one: Machine) -> Plan:
        found = await _find(homelab, one, account, groups)
        return await _setup(homelab, found, sudo=sudo, register=register, adopt=adopt)

    does = f"Set up the administration account {account} on"
    return await plan_each(homelab, host, does, prepare, ("verified", "registered"), login=login)


async def _setup(homelab: Homelab, found: AdminAccount, *, sudo: bool, register: bool, adopt: bool) -> Plan:
    account, host = found.account, found.machine.ref
    kept = await (homelab.hosts.get(host) if register else homelab.hosts.find(host))
    if not adopt:
        _require_ours(found)
    missing_sudo = sudo and found.standing.sudo not in ("ours", "same")
    account_changes.require_programs(found.machine, found.standing, user=not found.standing.exists, sudo=missing_sudo)
    if found.standing.sudo == "other" and not found.made.sudo:
        raise Conflict(
            f"/etc/sudoers.d/{account} on {found.machine} is not from Quorate",
            next_step="Choose another account, or look at that file and remove it",
        )
    steps, present = [], []
    if found.standing.exists:
        present.append(f"account {account} (uid {found.standing.uid})")
    else:
        steps.append(found.step(f"Create the account {account}", f"useradd {account}", _make_user(found)))
    if found.standing.key:
        present.append("its key in authorized_keys")
    else:
        steps.append(found.step("Authorize its key", f"authorized_keys += {found.key.path}.pub", _let_key_in(found)))
    if missing_sudo:
        rule = f"visudo -cf; install /etc/sudoers.d/{account}: {account} ALL=(ALL) NOPASSWD: ALL"
        steps.append(found.step("Let it use sudo without a password", rule, _allow_sudo(found)))
    elif sudo:
        present.append("its sudo rule")
    steps += _join(found)
    present += [f"group {name}" for name in found.standing.groups if name in found.standing.member]
    other_login = kept is not None and (kept.user, kept.key) != (account, str(found.key.path))
    if kept is not None and other_login and register:
        summary = f"Try the login as {account}, then use it for {kept}"
        steps.append(found.step(summary, f"registry: {kept.name} user={account}", _register(homelab, found, kept)))
    hint = Advice("Make it the login of the registered host", HOST_ADMIN_SETUP(register=True))
    return Plan(
        f"Set up the administration account {account} on {found.machine}",
        tuple(steps),
        unchanged=tuple(f"{one} already exists" for one in present),
        facts={"account": account, "key": str(found.key.path)},
        next_step=hint if other_login and not register else None,
        after=lambda: _verify_account(found),
    )


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="check administration account works sudo key login docker kvm usable",
    example="host=nas",
)
async def host_admin_verify(
    homelab: Homelab, host: HostRefs, account: Account = USUAL_ACCOUNT
) -> dict[str, Any] | Table:
    """Log in as the administration account with its key: sudo, groups, and whether docker, lxd, libvirt and kvm can
    be used."""
    key = admin_key(homelab.settings, require_account(account))
    if key.line is None:
        raise NotFound(
            f"There is no key for an account {account} yet", next_step=Advice("Create both", HOST_ADMIN_SETUP)
        )

    async def describe(one: Machine) -> dict[str, Any]:
        return {"host": str(one), **await try_account(with_login(one, account, key.path))}

    return await describe_each(await select(homelab, host), describe)


@operation(
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="add administration account to group docker lxd libvirt kvm incus usermod",
    example="host=nas groups=docker",
)
async def host_admin_groups(
    homelab: Homelab, host: HostRefs, groups: Groups | None = None, account: Account = USUAL_ACCOUNT
) -> Plan:
    """Add the administration account to the groups of installed software: docker, lxd, libvirt, kvm, incus-admin."""

    async def prepare(one: Machine) -> Plan:
        found = await _find(homelab, one, account, groups)
        if not found.standing.exists:
            raise NotFound(
                f"There is no account {account} on {found.machine}", next_step=Advice("Create it", HOST_ADMIN_SETUP)
            )
        _require_ours(found)
        present = [name for name in found.standing.groups if name in found.standing.member]
        return Plan(
            f"Add {account} on {found.machine} to groups",
            tuple(_join(found)),
            unchanged=tuple(f"It is already in {name}" for name in present),
            facts={"account": account},
        )

    return await plan_each(homelab, host, f"Add {account} to groups on", prepare, ("joined",))


@operation(
    risk=Risk.DESTROY,
    idempotent=True,
    search_words="remove administration account undo admin user take away revoke key sudo",
    example="host=nas",
)
async def host_admin_remove(
    homelab: Homelab,
    host: HostRefs,
    account: Account = USUAL_ACCOUNT,
    user: User | None = None,
    key: Key | None = None,
    password: Password | None = None,
    port: Port | None = None,
) -> Plan:
    """Remove what host_admin_setup created: key, sudo rule, groups, and the account itself if it created that. Home
    directories are never deleted."""
    login = given_login(user, key, password, port)

    async def prepare(one: Machine) -> Plan:
        return await _removal(homelab, await _find(homelab, one, account, [], former=user is None))

    does = f"Remove the administration account {account} from"
    return await plan_each(homelab, host, does, prepare, ("registered",), login=login)


async def _removal(homelab: Homelab, found: AdminAccount) -> Plan:
    standing, made, account = found.standing, found.made, found.account
    _require_ours(found)
    if found.machine.target is not None and found.machine.target.user == account:
        raise Conflict(
            f"{account} cannot remove itself from {found.machine}",
            next_step="Give another login: user with key or password",
        )
    goes = found.made_by_us
    groups = tuple(name for name in made.groups if name in standing.member)
    steps = []
    if standing.key:
        steps.append(found.step("Remove its key", f"authorized_keys -= {found.key.path}.pub", _shut_key_out(found)))
    if standing.sudo == "ours" or (standing.sudo in ("other", "same") and made.sudo):
        steps.append(found.step("Remove its sudo rule", f"rm /etc/sudoers.d/{account}", _forbid_sudo(found)))
    if groups and not goes:
        steps.append(found.step(f"Take it out of {', '.join(groups)}", f"groups -= {groups}", _leave(found, groups)))
    if goes:
        steps.append(found.step(f"Remove the account {account}", f"userdel {account}", _remove_user(found)))
    kept = await homelab.hosts.find(found.machine.ref)
    if kept is not None and kept.user == account and made.former is not None:
        steps.append(
            found.step(
                f"Log in to {kept} as before", f"registry: {kept.name} as before", _restore(homelab, found, kept)
            )
        )
    left = [f"the private key {found.key.path}, which other hosts may use"] if found.key.line else []
    if standing.exists:
        left.append(
            f"the home directory {standing.home}" if goes else f"the account {account}: Quorate did not create it"
        )
    if standing.sudo in ("other", "same") and not made.sudo:
        left.append(f"/etc/sudoers.d/{account}, which is not from Quorate")
    return Plan(
        f"Remove the administration account {account} from {found.machine}",
        tuple(steps),
        unchanged=() if steps else (f"Nothing of {account} is on {found.machine}",),
        facts={"account": account, "left": left},
        after=lambda: _forget_account(found),
    )


# -- what all four look at ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdminAccount:
    """A machine, the account on it, and what was created for it before."""

    machine: Machine
    account: str
    key: AdminKey
    standing: AccountState
    ledger: AccountLedger
    made: AccountRecord

    @property
    def by_key(self) -> Machine:
        """The machine, logged in to as the account."""
        return with_login(self.machine, self.account, self.key.path)

    @property
    def made_by_us(self) -> bool:
        """Whether it is the same account, not only by name: someone may have created another since."""
        present, made = self.standing, self.made
        return (
            made.user
            and present.exists
            and made.uid in (None, present.uid)
            and present.comment.startswith(account_changes.COMMENT)
        )

    def step(self, summary: str, line: str, do: Callable[[], Awaitable[dict[str, Any] | None]]) -> Action:
        async def perform(_: StepContext) -> ActionResult:
            return ActionResult(await do() or {})

        return machine_action(self.machine, summary, line, perform, writes=True)


async def _find(
    homelab: Homelab, where: Machine, account: str, groups: list[str] | None, *, former: bool = False
) -> AdminAccount:
    """`former`: where the host is logged in to as the account itself, by the login that it had before."""
    require_account(account)
    ledger = AccountLedger(homelab.store, where, account)
    made = await ledger.read()
    if former and made.former is not None and where.target is not None and where.target.user == account:
        where = replace(await _as_before(homelab, where.ref, made.former), ref=where.ref)
    key = admin_key(homelab.settings, account)
    with_login(where, account, key.path)  # raises if SSH does not reach it
    wanted = USUAL_GROUPS if groups is None else require_groups(groups)
    standing = await read_account_state(where, account, key.public, wanted)
    absent = [name for name in wanted if name not in standing.groups]
    if groups and absent:
        raise NotFound(f"There is no group {', '.join(absent)} on {where}")
    return AdminAccount(where, account, key, standing, ledger, made)


def _require_ours(found: AdminAccount) -> None:
    """Never grant anything to, or remove anything from, an account that someone else created."""
    if not found.standing.exists or found.standing.key or found.made_by_us:
        return
    raise Conflict(
        f"There is an account {found.account} on {found.machine} that Quorate did not create",
        next_step=either(
            "Choose another name for the administration account", Advice("give {adopt} to use it", adopt=True)
        ),
    )


async def _as_before(homelab: Homelab, host: str, former: FormerLogin) -> Machine:
    return await resolve_host(
        homelab, msgspec.structs.replace(await homelab.hosts.get(host), **msgspec.structs.asdict(former))
    )


async def _verify_account(found: AdminAccount) -> dict[str, Any]:
    try:
        return {"verified": await try_account(found.by_key)}
    except Problem as problem:
        return {"verified": False, "why": str(problem)}


async def _forget_account(found: AdminAccount) -> dict[str, Any]:
    await found.ledger.forget()
    return {}


# -- steps -------------------------------------------------------------------------------------------------------------


def _make_user(found: AdminAccount) -> Callable[[], Awaitable[None]]:
    async def do() -> None:
        await found.ledger.note(user=True, uid=None)
        await account_changes.create_user(found.machine, found.account)
        now = await read_account_state(found.machine, found.account, None, ())
        await found.ledger.note(uid=now.uid)

    return do


def _let_key_in(found: AdminAccount) -> Callable[[], Awaitable[None]]:
    async def do() -> None:
        line = found.key.public_line()
        home = found.standing.home or (await read_account_state(found.machine, found.account, None, ())).home
        await account_changes.add_key(found.machine, found.account, home, line)

    return do


def _allow_sudo(found: AdminAccount) -> Callable[[], Awaitable[None]]:
    async def do() -> None:
        await found.ledger.note(sudo=True)
        await account_changes.add_sudo_rule(found.machine, found.account)

    return do


def _join(found: AdminAccount) -> list[Action]:
    missing = tuple(name for name in found.standing.groups if name not in found.standing.member)
    if not missing:
        return []

    async def do() -> dict[str, Any]:
        await found.ledger.note(groups=tuple(dict.fromkeys((*found.made.groups, *missing))))
        await account_changes.add_to_groups(found.machine, found.account, missing)
        return {"joined": list(missing)}

    line = f"usermod -aG {','.join(missing)} {found.account}"
    return [found.step(f"Add {found.account} to {', '.join(missing)}", line, do)]


def _register(homelab: Homelab, found: AdminAccount, kept: Host) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def do() -> dict[str, Any]:
        await try_account(found.by_key)  # a login that does not work is not kept
        await found.ledger.note(former=FormerLogin(kept.user, kept.key, kept.password, kept.sudo_password))
        own: dict[str, Any] = {
            "user": found.account,
            "key": str(found.key.path),
            "password": None,
            "sudo_password": None,
        }
        await homelab.hosts.change(kept.name, **own, verified=homelab.clock.time(), verdict="ok")
        return {"registered": f"{kept.name} logs in as {found.account}"}

    return do


def _shut_key_out(found: AdminAccount) -> Callable[[], Awaitable[None]]:
    async def do() -> None:
        assert found.key.line is not None
        await account_changes.remove_key(found.machine, found.account, found.standing.home, found.key.line)

    return do


def _forbid_sudo(found: AdminAccount) -> Callable[[], Awaitable[None]]:
    return lambda: account_changes.remove_sudo_rule(found.machine, found.account)


def _leave(found: AdminAccount, groups: tuple[str, ...]) -> Callable[[], Awaitable[None]]:
    return lambda: account_changes.remove_from_groups(found.machine, found.account, groups)


def _remove_user(found: AdminAccount) -> Callable[[], Awaitable[None]]:
    async def do() -> None:
        disconnect(found.by_key)
        await account_changes.remove_user(found.machine, found.account)

    return do


def _restore(homelab: Homelab, found: AdminAccount, kept: Host) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def do() -> dict[str, Any]:
        former = found.made.former
        assert former is not None
        await homelab.hosts.change(kept.name, **msgspec.structs.asdict(former))
        return {"registered": f"{kept.name} logs in as {former.user or 'before'}"}

    return do
