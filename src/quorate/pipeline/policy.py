"""The operator's rules, applied to tools, to what a call reaches and to what a caller may see; and their limits."""

from __future__ import annotations

import fnmatch
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from quorate.config.policy import LEVELS, Limits, Rule
from quorate.hints import CalledTool, Sentence
from quorate.operations.registry import Operation, Risk
from quorate.problems import Refused
from quorate.pve.targets import DATASTORE, GUEST, HOST, NODE, POOL, STORAGE, Hides, Subject
from quorate.state.limits import Reservation, Usage

_CONDITIONS = {
    GUEST: frozenset({"vmids", "names", "tags", "pools", "nodes"}),
    NODE: frozenset({"nodes"}),
    STORAGE: frozenset({"storages", "nodes"}),
    POOL: frozenset({"pools"}),
    HOST: frozenset({"hosts"}),
    DATASTORE: frozenset({"datastores"}),
}
"""Which conditions of a rule apply to each kind of target."""
_TARGETS = tuple(dict.fromkeys(name for names in _CONDITIONS.values() for name in sorted(names)))


@dataclass(frozen=True)
class Rulebook:
    """The rules of one cluster. What no rule mentions is up to the access level.

    Denials always win. As soon as a rule allows something, nothing else may be changed or looked into; reads stay
    allowed unless a rule says `allow = "read"`.
    """

    rules: tuple[Rule, ...] = ()

    @property
    def about_targets(self) -> bool:
        return any(rule.about_targets for rule in self.rules) or bool(self._allowing)

    @property
    def denies_something(self) -> bool:
        return bool(self._denying)

    @property
    def rests_on_facts(self) -> bool:
        """Whether a guest's name, tags or pool matter, which can change at any moment."""
        return any(rule.names or rule.tags or rule.pools for rule in self.rules)

    @property
    def rests_on_nodes(self) -> bool:
        """Some rule depends on the nodes where a guest may run."""
        return any(rule.nodes for rule in self.rules)

    @property
    def rests_on_names(self) -> bool:
        return any(rule.names for rule in self.rules)

    @cached_property
    def _allowing(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.allows)

    @cached_property
    def _denying(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if not rule.allows)

    # -- tools -----------------------------------------------------------------------------------------------------

    def tool_objection(self, operation: Operation, risk: Risk, now: float | None = None) -> Refused | None:
        """Why it is refused whatever it acts on. Without a time, as for the list of tools, hours are ignored."""
        if not self.rules:
            return None
        for rule in self._denying:
            if not rule.about_targets and _denies(rule, operation, risk.value, now):
                return _rule_refusal(operation, rule)
        allowing = self._allowing_at(risk.value)
        if allowing is not None and not any(_allows(rule, operation, risk.value, now) for rule in allowing):
            return _allow_list_refusal(operation, risk.value, allowing)
        return None

    # -- what a call reaches ---------------------------------------------------------------------------------------

    def call_objection(
        self, operation: Operation, risk: Risk, subjects: Sequence[Subject], now: float | None
    ) -> Refused | None:
        """Why a call may not act on these. Without a time, rules with hours never deny and always allow."""
        return (
            self._denied_call(operation, risk, subjects, now)
            or self._unallowed_call(operation, risk, subjects, now)
            or self._escape(operation, subjects)
        )

    def denial(
        self, operation: Operation, risk: Risk, subjects: Sequence[Subject], now: float | None, *, general: bool = True
    ) -> Refused | None:
        """Why something of that risk is denied there, by a general rule or by one about these targets."""
        for rule in self._denying if general else ():
            if not rule.about_targets and _denies(rule, operation, risk.value, now):
                return _rule_refusal(operation, rule)
        return self._denied_call(operation, risk, subjects, now)

    def _denied_call(
        self, operation: Operation, risk: Risk, subjects: Sequence[Subject], now: float | None
    ) -> Refused | None:
        for rule in self._denying:
            if rule.about_targets:
                met = [subject for subject in subjects if _denies(rule, operation, subject.level or risk.value, now)]
                if touched := _held_by(rule, met):
                    return self._hidden_refusal(operation, touched[0], now) or _rule_refusal(
                        operation, rule, touched[0]
                    )
        return None

    def _unallowed_call(
        self, operation: Operation, risk: Risk, subjects: Sequence[Subject], now: float | None
    ) -> Refused | None:
        allowing = self._allowing_at(risk.value)
        if allowing is None:
            return None
        names_guests = any(subject.kind == GUEST and subject.level is None for subject in subjects)
        holding = [rule for rule in allowing if not rule.about_targets or _held_by(rule, subjects)]
        for subject in subjects or (None,):
            level = risk.value if subject is None else subject.level or risk.value
            fitting = [rule for rule in holding if _allows(rule, operation, level, now)]
            moved = [after for after in subject.after if after.node != subject.node] if subject is not None else []
            if not all(
                any(_covers(rule, state, with_guests=names_guests) for rule in fitting) for state in (subject, *moved)
            ):
                return self._hidden_refusal(operation, subject, now) or _allow_list_refusal(
                    operation, level, allowing, subject
                )
        return None

    def _hidden_refusal(self, operation: Operation, subject: Subject | None, now: float | None) -> Refused | None:
        """The refusal for a target that the caller must not see: it reveals nothing the caller did not say."""
        hides = self.visibility_filter(operation, Risk.READ, now) if subject is not None else None
        return hides(subject) if hides is not None and subject is not None else None

    def _escape(self, operation: Operation, subjects: Sequence[Subject]) -> Refused | None:
        """A new name, tag, pool or node must not move a guest out of a denial or into a permission."""
        for subject in subjects:
            for rule in self.rules if subject.after else ():
                before, after = verdict(rule, subject), [verdict(rule, state) for state in subject.after]
                escapes = before is False and True in after if rule.allows else before is True and False in after
                becomes = "allow changes to" if rule.allows else "no longer protect"
                if rule.about_targets and escapes:
                    return self._hidden_refusal(operation, subject, None) or Refused(
                        Sentence(f"{{tool}} is refused by the rule {rule.name!r}", tool=CalledTool(operation.name)),
                        why=f"The rule would then {becomes} {subject}",
                        next_step=_where(rule),
                        facts={"rule": rule.name},
                    )
        return None

    # -- what is seen ----------------------------------------------------------------------------------------------

    def visibility_filter(self, operation: Operation, risk: Risk, now: float | None) -> Hides | None:
        """Says why this call must not see something; None if it may see everything."""
        level = risk.value if risk in (Risk.READ, Risk.LOOK_INSIDE) else Risk.READ.value
        denying = [rule for rule in self._denying if rule.about_targets and _denies(rule, operation, level, now)]
        allowing = self._allowing_at(level)
        narrow = allowing is not None and not any(
            not rule.about_targets and _allows(rule, operation, level, now) for rule in allowing
        )
        if not denying and not narrow:
            return None
        usable = [rule for rule in allowing or () if _allows(rule, operation, level, now)] if narrow else None
        return partial(_visibility_objection, operation, denying, usable)

    def _allowing_at(self, level: str) -> tuple[Rule, ...] | None:
        """The allowing rules, if this level needs one of them."""
        if level == Risk.READ.value and not any(rule.level == level for rule in self._allowing):
            return None
        return self._allowing or None


NO_RULES = Rulebook()


def _visibility_objection(
    operation: Operation, denying: Sequence[Rule], allowing: Sequence[Rule] | None, subject: Subject
) -> Refused | None:
    for rule in denying:
        if verdict(rule, subject):
            return _unseen(operation, rule, subject)
    if allowing is None:
        return None
    verdicts = [verdict(rule, subject) for rule in allowing]
    if any(verdicts) or (subject.kind != HOST and not any(held is False for held in verdicts)):
        return None
    return _unseen(operation, None, subject)


# -- single rules ------------------------------------------------------------------------------------------------------


def verdict(rule: Rule, subject: Subject) -> bool | None:
    """Whether the rule's conditions hold for it; None if none fails but some do not apply to it."""
    conditions = _conditions(rule)
    applicable = _CONDITIONS.get(subject.kind, frozenset()) - ({"nodes"} if not subject.node else set())
    if any(not _meets(rule, name, subject) for name in conditions & applicable):
        return False
    return True if conditions <= applicable else None


def _held_by(rule: Rule, subjects: Iterable[Subject]) -> list[Subject]:
    """The subjects that meet the rule's conditions, alone or together; empty if none do."""
    agreeing = [subject for subject in subjects if verdict(rule, subject) is not False]
    if whole := [subject for subject in agreeing if verdict(rule, subject)]:
        return whole
    met = {name for subject in agreeing for name in _conditions(rule) & _CONDITIONS.get(subject.kind, frozenset())}
    return agreeing if met >= _conditions(rule) else []


def _covers(rule: Rule, subject: Subject | None, *, with_guests: bool) -> bool:
    """Whether the rule lets a call act on this; `with_guests`: if guests are covered, other targets need no rule."""
    if subject is None:
        return not rule.about_targets
    holds = verdict(rule, subject)
    return bool(holds) or (holds is None and with_guests and subject.kind not in (GUEST, HOST))


def _conditions(rule: Rule) -> frozenset[str]:
    return frozenset(name for name in _TARGETS if getattr(rule, name))


def _meets(rule: Rule, condition: str, subject: Subject) -> bool:
    match condition:
        case "vmids":
            return subject.id.isdecimal() and any(int(subject.id) in span for span in rule.vmids)
        case "names":
            # An unknown name may be any name: denials apply, permissions do not.
            return not rule.allows if subject.name is None else _is_among(subject.name, rule.names)
        case "tags":
            return any(_is_among(tag, rule.tags) for tag in subject.tags)
        case "pools":
            return any(_is_among(pool, rule.pools) for pool in _with_parents(subject.pool))
        case "nodes":
            return _is_among(subject.node, rule.nodes)
        case "datastores":  # SERVER/STORE/NAMESPACE, which a pattern may shorten at both ends
            _, _, within = subject.id.partition("/")
            store = within.partition("/")[0]
            server = subject.id.partition("/")[0]
            return any(_is_among(name, rule.datastores) for name in (subject.id, within, store, f"{server}/{store}"))
        case "hosts":
            known_by = (subject.id, subject.name or "", *(f"label:{label}" for label in subject.tags))
            return any(_is_among(name, rule.hosts) for name in known_by)
        case _:
            return _is_among(subject.id, rule.storages)


def _denies(rule: Rule, operation: Operation, level: str, now: float | None) -> bool:
    in_time = not rule.hours or (now is not None and any(hours.cover(now) for hours in rule.hours))
    return in_time and _reaches(rule.level, level) and _is_for_tool(rule, operation)


def _allows(rule: Rule, operation: Operation, level: str, now: float | None) -> bool:
    in_time = not rule.hours or now is None or any(hours.cover(now) for hours in rule.hours)
    return in_time and _reaches(level, rule.level) and _is_for_tool(rule, operation)


def _reaches(low: str, high: str) -> bool:
    return LEVELS.index(low) <= LEVELS.index(high)


def _is_for_tool(rule: Rule, operation: Operation) -> bool:
    return (not rule.tools or _is_among(operation.name, rule.tools)) and (
        not rule.toolsets or _is_among(operation.toolset, rule.toolsets)
    )


def _is_among(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(plain(text), plain(pattern)) for pattern in patterns)


def matches(texts: Iterable[str], pattern: str) -> bool:
    return any(_is_among(text, (pattern,)) for text in texts)


def plain(text: str) -> str:
    """One spelling for names that differ only in case, width or surrounding blanks."""
    return text.strip().lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold().strip()


def _with_parents(pool: str) -> list[str]:
    """A nested pool also belongs to its parents."""
    parts = pool.split("/") if pool else []
    return ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]


# -- refusals ----------------------------------------------------------------------------------------------------------


def _rule_refusal(operation: Operation, rule: Rule, subject: Subject | None = None) -> Refused:
    about = "" if subject is None else "something in this cluster: " if subject.secret else f"{subject}: "
    says = f"it says {rule}" if not rule.because else f"{rule.because} ({rule})"
    return Refused(
        Sentence(f"{{tool}} is refused by the rule {rule.name!r}", tool=CalledTool(operation.name)),
        why=about + says,
        next_step=_where(rule),
        facts={"rule": rule.name},
    )


def _unseen(operation: Operation, rule: Rule | None, subject: Subject) -> Refused:
    """A refusal without the name, the id or the rule's conditions, which may name what the rule hides."""
    by = f"by the rule {rule.name!r}" if rule else "because no rule allows reading it"
    because = f": {rule.because}" if rule and rule.because else ""
    return Refused(
        Sentence(f"{{tool}} is refused {by}", tool=CalledTool(operation.name)),
        why=f"It concerns a {subject.kind} that is hidden from you{because}",
        next_step="Only the operator can change that; `quorate policy` shows the rules in effect",
        facts={"rule": rule.name if rule else "nothing else is allowed"},
    )


def _where(rule: Rule) -> str:
    return (
        f"Only the operator can change that: the entry {rule.name!r} of [[rules]] in the configuration; "
        "`quorate policy` shows the rules in effect"
    )


def _allow_list_refusal(
    operation: Operation, level: str, rules: Sequence[Rule], subject: Subject | None = None
) -> Refused:
    what = f"{level.replace('_', ' ')}" + ("" if subject is None else f" {subject}")
    listed = "; ".join(f"{rule.name!r} ({rule})" for rule in rules[:3])
    return Refused(
        Sentence(f"{{tool}} is refused: no rule allows it to {what}", tool=CalledTool(operation.name)),
        why=f"Rules list everything that is allowed: {listed}",
        next_step="Only the operator can change that, by a [[rules]] entry with allow in the configuration; "
        "`quorate policy` shows the rules in effect",
        facts={"rule": "nothing else is allowed"},
    )


# -- limits ------------------------------------------------------------------------------------------------------------


class LimitReached(Refused):
    """Too much right now; the same call may pass later, when changes have ended or an hour is over."""


@dataclass(slots=True)
class Meter:
    """One set of limits. `where` is the cluster it is for, empty for all of them. The journal counts."""

    limits: Limits
    where: str = ""

    def counts(self, risk: Risk) -> bool:
        """Whether a change of this risk depends on what was done before it."""
        destroys = risk is Risk.DESTROY and self.limits.destroys_per_hour is not None
        return destroys or self.limits.concurrent_changes is not None

    def guests_objection(self, operation: Operation, guests: int) -> Refused | None:
        """Why a plan for this number of guests exceeds a limit."""
        most = self.limits.guests_per_call
        if most is None or guests <= most:
            return None
        return self._refusal(
            operation,
            "guests_per_call",
            f"It would act on {guests} guests; at most {most} are allowed in one call",
            "Choose fewer guests",
        )

    def objection(self, operation: Operation, risk: Risk, steps: int, usage: Usage) -> Refused | None:
        """Why a plan with this number of steps exceeds a limit right now."""
        most = self.limits.destroys_per_hour
        if most is not None and risk is Risk.DESTROY and usage.destroyed + steps > most:
            return self._refusal(
                operation,
                "destroys_per_hour",
                f"At most {most} destructive steps are allowed per hour; {usage.destroyed} ran, this adds {steps}",
                "Wait, or ask the operator",
                passes=steps <= most,
            )
        most = self.limits.concurrent_changes
        if most is not None and usage.running >= most:
            return self._refusal(
                operation,
                "concurrent_changes",
                f"At most {most} changes are allowed at the same time, and {usage.running} are running",
                "Try again when they are done",
                passes=most > 0,
            )
        return None

    def reservation(self, operation: Operation, risk: Risk, steps: int) -> Reservation:
        """What a plan adds when it begins. Limits are checked again then: others may have started since."""
        destroys = steps if risk is Risk.DESTROY else 0
        return Reservation(self.where, destroys, lambda usage: self.objection(operation, risk, steps, usage))

    def _refusal(self, operation: Operation, limit: str, why: str, next_step: str, *, passes: bool = False) -> Refused:
        place = f" of {self.where}" if self.where else ""
        kind = LimitReached if passes else Refused
        return kind(
            Sentence(f"{{tool}} is refused by the limit {limit}{place}", tool=CalledTool(operation.name)),
            why=why,
            next_step=next_step,
            facts={"rule": f"limit {limit}{place}"},
        )
