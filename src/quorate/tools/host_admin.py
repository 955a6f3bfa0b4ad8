"""The administration account of a host: create, test, add to groups, remove."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import Advice, either, tools
from quorate.homelab.accounts import (
    COMMENT,
    USUAL_GROUPS,
    AccountLedger,
    AccountRecord,
    AccountState,
    AdminKey,
    FormerLogin,
    add_key,
    add_sudo_rule,
    add_to_groups,
    admin_key,
    create_user,
    disconnect,
    read_account_state,
    remove_from_groups,
    remove_key,
    remove_sudo_rule,
    remove_user,
    require_account,
    require_groups,
    require_programs,
    try_account,
)
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import Machine, resolve_host, with_login
from quorate.homelab.selection import select
from quorate.operations.plan import Action, ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, Table, operation
from quorate.problems import AuthenticationFailed, Conflict, NotFound, Problem
from quorate.tools.hosts import HostRefs, Key, Password, Port, User, given_login
from quorate.tools.machines import machine_action
from quorate.tools.several_hosts import describe_each, plan_each

Account = Annotated[str, Meta(description="Name of the administration account")]
Groups = Annotated[list[str], Meta(description="Instead of docker, lxd, libvirt, kvm, incus-admin, where present")]
USUAL_ACCOUNT = "quorate"


@operation(
    toolset="host_admin",
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

    async def prepare(machine: Machine) -> Plan:
        admin = await _find(homelab, machine, account, groups)
        return await _setup(homelab, admin, sudo=sudo, register=register, adopt=adopt)

    does = f"Set up the administration account {account} on"
    return await plan_each(homelab, host, does, prepare, ("verified", "registered"), login=login)


async def _setup(homelab: Homelab, admin: AdminAccount, *, sudo: bool, register: bool, adopt: bool) -> Plan:
    account, host = admin.account, admin.machine.ref
    record = await (homelab.hosts.get(host) if register else homelab.hosts.find(host))
    if not adopt:
        _require_ours(admin)
    missing_sudo = sudo and admin.state.sudo not in ("ours", "same")
    require_programs(admin.machine, admin.state, user=not admin.state.exists, sudo=missing_sudo)
    if admin.state.sudo == "other" and not admin.created.sudo:
        raise Conflict(
            f"/etc/sudoers.d/{account} on {admin.machine} is not from Quorate",
            next_step="Choose another account, or look at that file and remove it",
        )
    steps, present = [], []
    if admin.state.exists:
        present.append(f"account {account} (uid {admin.state.uid})")
    else:
        steps.append(admin.step(f"Create the account {account}", f"useradd {account}", partial(_create_user, admin)))
    if admin.state.key:
        present.append("its key in authorized_keys")
    else:
        steps.append(
            admin.step("Authorize its key", f"authorized_keys += {admin.key.path}.pub", partial(_authorize_key, admin))
        )
    if missing_sudo:
        rule = f"visudo -cf; install /etc/sudoers.d/{account}: {account} ALL=(ALL) NOPASSWD: ALL"
        steps.append(admin.step("Let it use sudo without a password", rule, partial(_grant_sudo, admin)))
    elif sudo:
        present.append("its sudo rule")
    steps += _group_steps(admin)
    present += [f"group {name}" for name in admin.state.groups if name in admin.state.member]
    other_login = record is not None and (record.user, record.key) != (account, str(admin.key.path))
    if record is not None and other_login and register:
        summary = f"Try the login as {account}, then use it for {record}"
        steps.append(
            admin.step(summary, f"registry: {record.name} user={account}", partial(_use_login, homelab, admin, record))
        )
    hint = Advice("Make it the login of the registered host", tools.host_admin_setup(register=True))
    return Plan(
        f"Set up the administration account {account} on {admin.machine}",
        tuple(steps),
        unchanged=tuple(f"{item} already exists" for item in present),
        facts={"account": account, "key": str(admin.key.path)},
        next_step=hint if other_login and not register else None,
        after=partial(_verify_account, admin),
    )


@operation(
    toolset="host_admin",
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

    async def describe(machine: Machine) -> dict[str, Any]:
        creation = tools.host_admin_setup(host=machine.name, account=account)
        registered = machine.target is not None and machine.target.user == account
        if key.line is None and not registered:
            raise NotFound(f"There is no key for an account {account} yet", next_step=Advice("Create both", creation))
        try:
            return {
                "host": str(machine),
                **await try_account(machine if registered else with_login(machine, account, key.path)),
            }
        except AuthenticationFailed as problem:
            problem.advice = Advice(
                f"If there is no account {account} on it, create it; otherwise renew its key", creation
            )
            raise

    return await describe_each(await select(homelab, host), describe)


@operation(
    toolset="host_admin",
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="add administration account to group docker lxd libvirt kvm incus usermod",
    example="host=nas groups=docker",
)
async def host_admin_groups(
    homelab: Homelab, host: HostRefs, groups: Groups | None = None, account: Account = USUAL_ACCOUNT
) -> Plan:
    """Add the administration account to the groups of installed software: docker, lxd, libvirt, kvm, incus-admin."""

    async def prepare(machine: Machine) -> Plan:
        admin = await _find(homelab, machine, account, groups)
        if not admin.state.exists:
            raise NotFound(
                f"There is no account {account} on {admin.machine}",
                next_step=Advice("Create it", tools.host_admin_setup(host=admin.machine.name, account=account)),
            )
        _require_ours(admin)
        present = [name for name in admin.state.groups if name in admin.state.member]
        return Plan(
            f"Add {account} on {admin.machine} to groups",
            tuple(_group_steps(admin)),
            unchanged=tuple(f"It is already in {name}" for name in present),
            facts={"account": account},
        )

    return await plan_each(homelab, host, f"Add {account} to groups on", prepare, ("joined",))


@operation(
    toolset="host_admin",
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

    async def prepare(machine: Machine) -> Plan:
        return await _removal(homelab, await _find(homelab, machine, account, [], former=user is None))

    does = f"Remove the administration account {account} from"
    return await plan_each(homelab, host, does, prepare, ("registered",), login=login)


async def _removal(homelab: Homelab, admin: AdminAccount) -> Plan:
    state, created, account = admin.state, admin.created, admin.account
    _require_ours(admin)
    if admin.machine.target is not None and admin.machine.target.user == account:
        raise Conflict(
            f"{account} cannot remove itself from {admin.machine}",
            next_step="Give another login: user with key or password",
        )
    removes_account = admin.is_ours
    groups = tuple(name for name in created.groups if name in state.member)
    steps = []
    if state.key:
        steps.append(
            admin.step("Remove its key", f"authorized_keys -= {admin.key.path}.pub", partial(_revoke_key, admin))
        )
    if state.sudo == "ours" or (state.sudo in ("other", "same") and created.sudo):
        steps.append(
            admin.step(
                "Remove its sudo rule",
                f"rm /etc/sudoers.d/{account}",
                partial(remove_sudo_rule, admin.machine, account),
            )
        )
    if groups and not removes_account:
        steps.append(
            admin.step(
                f"Take it out of {', '.join(groups)}",
                f"groups -= {groups}",
                partial(remove_from_groups, admin.machine, account, groups),
            )
        )
    if removes_account:
        steps.append(admin.step(f"Remove the account {account}", f"userdel {account}", partial(_remove_user, admin)))
    record = await homelab.hosts.find(admin.machine.ref)
    if record is not None and record.user == account and created.former is not None:
        steps.append(
            admin.step(
                f"Log in to {record} as before",
                f"registry: {record.name} as before",
                partial(_restore_login, homelab, admin, record),
            )
        )
    remaining = [f"the private key {admin.key.path}, which other hosts may use"] if admin.key.line else []
    if state.exists:
        remaining.append(
            f"the home directory {state.home}"
            if removes_account
            else f"the account {account}: Quorate did not create it"
        )
    if state.sudo in ("other", "same") and not created.sudo:
        remaining.append(f"/etc/sudoers.d/{account}, which is not from Quorate")
    return Plan(
        f"Remove the administration account {account} from {admin.machine}",
        tuple(steps),
        unchanged=() if steps else (f"Nothing of {account} is on {admin.machine}",),
        facts={"account": account, "left": remaining},
        after=partial(_forget_account, admin),
    )


# -- the account on a machine ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdminAccount:
    """A machine, the account on it, and what was created for it before."""

    machine: Machine
    account: str
    key: AdminKey
    state: AccountState
    ledger: AccountLedger
    created: AccountRecord

    @property
    def by_key(self) -> Machine:
        """The machine, logged in to as the account."""
        return with_login(self.machine, self.account, self.key.path)

    @property
    def is_ours(self) -> bool:
        """Quorate created this account; another one of the same name, created since, does not count."""
        state, created = self.state, self.created
        return created.user and state.exists and created.uid in (None, state.uid) and state.comment.startswith(COMMENT)

    def step(self, summary: str, line: str, work: Callable[[], Awaitable[dict[str, Any] | None]]) -> Action:
        async def perform(_: StepContext) -> ActionResult:
            return ActionResult(await work() or {})

        return machine_action(self.machine, summary, line, perform, writes=True)


async def _find(
    homelab: Homelab, machine: Machine, account: str, groups: list[str] | None, *, former: bool = False
) -> AdminAccount:
    """With `former`, use the host's earlier login if it is now logged in to as the account itself."""
    require_account(account)
    ledger = AccountLedger(homelab.store, machine, account)
    created = await ledger.read()
    if former and created.former is not None and machine.target is not None and machine.target.user == account:
        registered = await homelab.hosts.get(machine.ref)
        as_before = msgspec.structs.replace(registered, **msgspec.structs.asdict(created.former))
        machine = replace(await resolve_host(homelab, as_before), ref=machine.ref)
    key = admin_key(homelab.settings, account)
    with_login(machine, account, key.path)  # raises if SSH does not reach it
    requested = USUAL_GROUPS if groups is None else require_groups(groups)
    state = await read_account_state(machine, account, key.public, requested)
    absent = [name for name in requested if name not in state.groups]
    if groups and absent:
        raise NotFound(f"There is no group {', '.join(absent)} on {machine}")
    return AdminAccount(machine, account, key, state, ledger, created)


def _require_ours(admin: AdminAccount) -> None:
    """Never grant anything to, or remove anything from, an account that someone else created."""
    if not admin.state.exists or admin.state.key or admin.is_ours:
        return
    raise Conflict(
        f"There is an account {admin.account} on {admin.machine} that Quorate did not create",
        next_step=either(
            "Choose another name for the administration account", Advice("give {adopt} to use it", adopt=True)
        ),
    )


async def _verify_account(admin: AdminAccount) -> dict[str, Any]:
    try:
        return {"verified": await try_account(admin.by_key)}
    except Problem as problem:
        return {"verified": False, "why": str(problem)}


async def _forget_account(admin: AdminAccount) -> dict[str, Any]:
    await admin.ledger.forget()
    return {}


# -- steps -------------------------------------------------------------------------------------------------------------


async def _create_user(admin: AdminAccount) -> None:
    await admin.ledger.note(user=True, uid=None)
    await create_user(admin.machine, admin.account)
    state = await read_account_state(admin.machine, admin.account, None, ())
    await admin.ledger.note(uid=state.uid)


async def _authorize_key(admin: AdminAccount) -> None:
    line = admin.key.public_line()
    home = admin.state.home or (await read_account_state(admin.machine, admin.account, None, ())).home
    await add_key(admin.machine, admin.account, home, line)


async def _grant_sudo(admin: AdminAccount) -> None:
    await admin.ledger.note(sudo=True)
    await add_sudo_rule(admin.machine, admin.account)


def _group_steps(admin: AdminAccount) -> list[Action]:
    missing = tuple(name for name in admin.state.groups if name not in admin.state.member)
    if not missing:
        return []
    line = f"usermod -aG {','.join(missing)} {admin.account}"
    return [admin.step(f"Add {admin.account} to {', '.join(missing)}", line, partial(_add_to_groups, admin, missing))]


async def _add_to_groups(admin: AdminAccount, missing: tuple[str, ...]) -> dict[str, Any]:
    await admin.ledger.note(groups=tuple(dict.fromkeys((*admin.created.groups, *missing))))
    await add_to_groups(admin.machine, admin.account, missing)
    return {"joined": list(missing)}


async def _use_login(homelab: Homelab, admin: AdminAccount, record: Host) -> dict[str, Any]:
    await try_account(admin.by_key)  # a login that does not work is not kept
    await admin.ledger.note(former=FormerLogin(record.user, record.key, record.password, record.sudo_password))
    login: dict[str, Any] = {
        "user": admin.account,
        "key": str(admin.key.path),
        "password": None,
        "sudo_password": None,
    }
    await homelab.hosts.change(record.name, **login, verified=homelab.clock.time(), verdict="ok")
    return {"registered": f"{record.name} logs in as {admin.account}"}


async def _revoke_key(admin: AdminAccount) -> None:
    assert admin.key.line is not None
    await remove_key(admin.machine, admin.account, admin.state.home, admin.key.line)


async def _remove_user(admin: AdminAccount) -> None:
    disconnect(admin.by_key)
    await remove_user(admin.machine, admin.account)


async def _restore_login(homelab: Homelab, admin: AdminAccount, record: Host) -> dict[str, Any]:
    former = admin.created.former
    assert former is not None
    await homelab.hosts.change(record.name, **msgspec.structs.asdict(former))
    return {"registered": f"{record.name} logs in as {former.user or 'before'}"}
