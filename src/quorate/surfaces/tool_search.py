"""General vocabulary of the tool search. What people call a single tool is declared with it (`search_words`)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from quorate.operations.registry import Operation, Risk
from quorate.suggestions import MAX_TOOLS, similar_tools, suggest_tool

EMPTY = (
    "a about actually again all also always am an and any are arent around as at be been being belongs between "
    "both but by called can cant could currently d did didnt do does doesnt doing dont during each every five for "
    "four from get gets getting give gives go going got had has have havent hello hey hi how i id if ill im in "
    "into is isnt it its itself ive just kind kindly let lets like ll many maybe me might mine much must my "
    "myself named need needs never of off oh ok old older on one onto or our out please put quick quickly re "
    "really s shall should simply six so some somehow sort still sure t take takes taking than thanks that thats "
    "the their them then there these they thing things this those three to today too try trying two us using ve "
    "very via want wants was wasnt we were what whats when where which while who whom whose why will with wont "
    "would you your"
)
"""Words that say nothing about what is requested."""

ASKING = (
    "any anything are can check compare count did display do does explain find has have how is look list print read "
    "see show tell view was what whats when where which who whos whose why"
)
"""First words of requests that want to know, not to change."""

PHRASES = {
    r"how many": "count",
    r"make sure|ensure|make certain": "",
    r"where(?:s| is| are| does| do)|(?:on )?which (?:node|host)(?= (?:is|has|runs|does|do|are))": "location",
    r"every (?:\d+ )?(?=night|day|week|hour|minute|month|morning|evening|sunday|monday|friday|saturday)": "schedule ",
    r"(?:web|admin|management) ?(?:ui|gui|interface|page)|gui": "webgui",
    r"vmbr\d+": "bridge",
    r"(?:once|twice|(?:\d+|three|four) times) (?:a|per|an|every) (?:day|week|hour|month)": "schedule",
    r"(?:one|a single) (?:node|host)": "together",
    r"fill(?:s|ed|ing)? up|filled": "full",
    r"no longer|not any ?more|any ?more": "gone",
    r"(?:days?|weeks?|months?|hours?) ago|yesterdays?|last (?:night|week|month|monday|sunday)s?": "yesterday",
    r"over ?night": "night",
    r"what ?s up|whats wrong": "wrong",
    r"back(?:ed|ing|s)?[ -]?ups?": "backup",
    r"shut(?:s|ting)? (?:(?:it|them|everything|all) )?(?:down|off)": "shutdown",
    r"log(?:ged|ging|s)?[ -](?:in|on)(?:to)?": "login",
    r"sign(?:ed|s)? in": "login",
    r"(?:turn|switch|power)(?:ed|s|ing)? (?:it )?on(?! (?:that|the|my|this))": "switch enable",
    r"(?:turn|switch|power)(?:ed|s|ing)? (?:it )?(?:off|down)": "shutdown disable",
    r"(?:fire|start|boot)(?:d|ed|s|ing)? up": "start",
    r"(?:spin|stand|set)(?:s|ting|ning)? up": "create",
    r"bring(?:s|ing)? (?:it )?back|get (?:it )?back": "restore",
    r"(?:go|roll|set|step)(?:es|s|ed|ting|ing)? (?:it )?back": "rollback",
    r"g[eo]t(?:s|ting)? rid of|throw(?:s|ing)? (?:it )?(?:away|out)": "delete",
    r"get (?:it )?going|get (?:it )?(?:running|up)": "start",
    r"(?:clean|tid(?:y|ie))(?:s|ed|ing)? up|free(?:s|ing)? up": "cleanup",
    r"(?:empty|clear|drain)(?:s|ed|ing)?(?: out)?(?= (?:the )?(?:node|host|pve))": "evacuate",
    r"high(?:ly)?[ -]availab(?:le|ility)": "ha",
    r"cloud[ -]init": "cloudinit",
    r"hard (?:disk|drive)s?": "disk",
    r"network (?:card|adapter)s?": "nic",
    r"ip sets?": "ipset",
    r"ip address(?:es)?|ips": "ip",
    r"api keys?": "token",
    r"(?:allowed|able|permitted) to": "permission",
    r"free space|space (?:is )?left|disk space": "space",
    r"operating system": "os",
    r"file ?systems?": "filesystem",
    r"same (?:node|host|machine)s?": "together",
    r"(?:different|separate) (?:node|host|machine)s?": "apart",
    r"pve\d+|node\d+": "node",
    r"(?:not|stopped|wont|doesnt) (?:respond|answer|react)(?:ing)?|unresponsive": "hang",
    r"going on|happening": "happening",
    r"how long(?=.*\b(?:up|running|on)\b)": "uptime",
    r"(?:run(?:ning|s)?|ran) out of": "more",
    r"ran": "run",
    r"https?://\S+": "url",
    r"\d+(?:\.\d+){3}(?:/\d+)?": "address",
    r"\d+(?:[.,]\d+)? ?(?:[kmgt]i?b?|gigs?|gigabytes?|terabytes?)": "size",
    r"(?<![\w.])/[\w.-]+(?:/[\w.-]*)*": "path",
    r"[\w-]+\.(?:cfg|conf|config|env|ini|json|log|service|sh|toml|txt|xml|ya?ml)": "file",
}
"""Several words that mean one thing, as patterns."""

SAME = (
    "add attach plug hotplug hot",
    "address ip",
    "allow accept permit open",
    "another extra additional second more spare",
    "apart separate different spread split",
    "availability ha failover",
    "backup archive copies dump vzdump",
    "big bigger grow enlarge extend expand resize increase larger",
    "block deny drop reject close isolate forbid lock",
    "boot start power wake launch switch",
    "change edit modify adjust set tweak alter",
    "chart graph plot draw picture",
    "check verify confirm validate test audit inspect",
    "cleanup delete remove drop erase purge wipe destroy trash discard nuke scrap",
    "clone copy duplicate",
    "cluster datacenter",
    "command exec execute run script shell ssh",
    "config configuration settings options setup",
    "container ct lxc",
    "cpu core vcpu processor",
    "create make new build deploy provision add",
    "detach unplug disconnect eject",
    "disable deactivate off",
    "disk drive volume ssd hdd nvme",
    "download fetch grab pull",
    "enable activate on",
    "evacuate migrate move relocate transfer shift swap",
    "exists list show view display see which have",
    "fail failure error wrong broken broke break crash die dead complain problem trouble issue bad dying",
    "file path document",
    "finished done complete over ready yet",
    "firewall port traffic",
    "fit room capacity headroom space",
    "folder dir directory",
    "full space free used storage",
    "group team",
    "guest vm machine box server instance container ct",
    "hang frozen freeze stuck hung crash",
    "happening doing activity",
    "health healthy fine well alive working",
    "history past trend yesterday ago week month night last recent latest newest",
    "host node hypervisor pve proxmox",
    "image iso",
    "interface nic card network",
    "interrupt cancel abort stop kill terminate",
    "job task",
    "keep retention",
    "key ssh",
    "log journal syslog message",
    "login password passwd",
    "memory ram",
    "most top heaviest busiest largest eating hogging greedy",
    "name rename hostname",
    "network lan",
    "note comment description describe annotate",
    "offload overloaded balance",
    "os system distribution distro",
    "overview summary glance dashboard report status",
    "pause suspend hibernate freeze sleep",
    "permission right privilege role acl admin access may",
    "picture screen screenshot console display monitor",
    "protect safe keep mark",
    "reboot restart bounce cycle reset",
    "reduce less shrink smaller lower",
    "replica replication replicate sync mirror",
    "restore recover rescue undelete",
    "rollback revert undo restore",
    "schedule nightly daily weekly hourly regularly automatic every plan",
    "service daemon unit systemd nginx apache docker postgres mysql mariadb redis sshd samba",
    "shutdown stop halt poweroff",
    "size big large",
    "snapshot checkpoint",
    "ssl tls certificate cert https",
    "storage datastore nas share nvme ssd",
    "token secret credential",
    "update upgrade patch package apt",
    "uptime long since",
    "url link internet website online web",
    "usage load used busy utilisation utilization bandwidth traffic throughput",
    "user account person people guy colleague friend brother somebody someone login intern family wife",
    "vlan tag",
)
"""Words that may stand for each other: a hit by such a word counts less than one by the word itself."""


NAME, SEARCH_WORDS, SUMMARY, PARAMETER, ABOUT_PARAMETER = 1.0, 1.0, 0.4, 0.5, 0.15
"""The weight of a word by its place."""
ELSEWHERE = 0.5
"""The additional weight if it occurs in other places as well."""
LIKE = 0.8
"""The weight of a synonym."""
READING = 1.5
"""How much more likely a question means an operation that reads."""
_UNHELPFUL = frozenset({"cluster", "dry_run", "limit", "offset", "safely", "wait", "way"})
"""Parameters that many operations have."""

_ASKING, _EMPTY = frozenset(ASKING.split()), frozenset(EMPTY.split())
_NAME = re.compile(r"[a-z]+(?:_[a-z]+)+")
_WORD = re.compile(r"[a-z][a-z0-9]*|[0-9]+[a-z][a-z0-9]*|403")


class Finder:
    """A ranked index of what operations say about themselves and what people call them, built once."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = list(operations)
        self._terms = [_terms(operation) for operation in self._operations]
        having = Counter(term for terms in self._terms for term in terms)
        self._rarity = {term: _rarity(count, len(self._terms)) for term, count in having.items()}

    def find(self, words: str) -> list[Operation]:
        """All that fit, best first; before them those that are called by their names."""
        searched = list(dict.fromkeys(words_of(words)))
        called = frozenset(_NAME.findall(words.lower()))
        asking = is_question(words)
        scored = []
        for operation, terms in zip(self._operations, self._terms, strict=True):
            score = sum(self._hit(terms, word) for word in searched)
            likely = READING if asking and reads(operation) else 1.0
            scored.append((math.inf if operation.name in called else score * likely, operation))
        scored.sort(key=lambda pair: (-pair[0], pair[1].name))
        return [operation for score, operation in scored if score > 0]

    def _hit(self, terms: dict[str, float], word: str) -> float:
        """The score of a word: the weight of the word itself, or of a synonym."""
        others = [LIKE * self._weight(terms, group) for group in _GROUPS.get(word, ())]
        return max(self._weight(terms, word), *others, 0.0)

    def _weight(self, terms: dict[str, float], term: str) -> float:
        return terms[term] * self._rarity[term] if term in terms else 0.0


def reads(operation: Operation) -> bool:
    return operation.least_risk in (Risk.READ, Risk.LOOK_INSIDE)


def is_question(words: str) -> bool:
    first = _WORD.search(words.lower())
    return words.rstrip().endswith("?") or (first is not None and first[0] in _ASKING)


def words_of(text: str) -> Iterator[str]:
    """The significant words of a text, each in its shortest form."""
    text = text.lower().replace("'", "").replace("\N{RIGHT SINGLE QUOTATION MARK}", "")
    text = _PHRASE.sub(lambda match: _MEANT[match.lastindex or 0], text)
    return (stem(word) for word in _WORD.findall(text) if word not in _EMPTY)


def stem(word: str) -> str:
    """`cloning`, `cloned`, `clones` and `clone` as one."""
    if len(word) < 4:
        return word
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        stump = word.removesuffix(ending)
        if stump != word and len(stump) > 2 and re.search("[aeiouy]", stump):
            word = stump[:-1] if stump[-1] == stump[-2] and stump[-1] not in "lsz" else stump
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _rarity(count: int, whole: int) -> float:
    """A word that few operations have says more."""
    return math.log(1 + (whole - count + 0.5) / (count + 0.5))


# One pattern with a group for each phrase: a text is gone through once.
_PHRASE = re.compile(rf"(?:\b|(?=/))(?:{'|'.join(f'({phrase})' for phrase in PHRASES)})(?!\w)")
_MEANT = ("", *PHRASES.values())


def _groups() -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for group in SAME:
        for word in words_of(group):
            groups[word] = (*groups.get(word, ()), f"={group}")
    return groups


_GROUPS = _groups()


def _terms(operation: Operation) -> dict[str, float]:
    """The words of an operation and the groups they belong to, each with its weight."""
    properties = {name: part for name, part in operation.schema()["properties"].items() if name not in _UNHELPFUL}
    values = (" ".join([name, *map(str, part.get("enum", ()))]) for name, part in properties.items())
    places = (
        (NAME, operation.name),
        (SEARCH_WORDS, operation.search_words),
        (PARAMETER, " ".join(values)),
        (SUMMARY, operation.summary),
        (ABOUT_PARAMETER, " ".join(part.get("description", "") for part in properties.values())),
    )  # the heaviest first
    weights: dict[str, float] = {}
    for weight, text in places:
        words = set(words_of(text.replace("_", " ")))
        for term in words.union(*(_GROUPS.get(word, ()) for word in words)):
            weights[term] = weights[term] + ELSEWHERE * weight if term in weights else weight
    return weights


def suggest_instead(name: str, among: Iterable[Operation]) -> str:
    """Suggest the tools that the name may mean; empty if none is close."""
    tools = {operation.name: operation for operation in among}
    return suggest_tool(name, tools, "") or _related_tools(name, tools.values())


def find_by_name(name: str, among: Iterable[Operation]) -> list[Operation]:
    """The tools with such a name, or with all of its words in theirs; the shortest names first."""
    tools = {operation.name: operation for operation in among}
    words = set(words_of(" ".join(re.split(r"[^A-Za-z0-9]+", name))))
    near = [
        operation
        for operation in sorted(tools.values(), key=lambda operation: (len(operation.name), operation.name))
        if words and words <= set(_name_words(operation)) and _may_be_guessed(operation, words)
    ]
    return near or [tools[similar] for similar in similar_tools(name, tools)]


def _related_tools(name: str, among: Iterable[Operation]) -> str:
    """Tools that match every word of the name, first those that have them all in their own names.

    None that destroys unless its verb is among the words: a guess is taken as advice.
    """
    text = " ".join(re.split(r"[^A-Za-z0-9]+", name))
    words = set(words_of(text))
    near = [
        operation
        for operation in Finder(among).find(text)
        if _matches(operation, words) and _may_be_guessed(operation, words)
    ]
    near.sort(key=lambda operation: not words <= set(_name_words(operation)))
    return f"Related tools: {', '.join(operation.name for operation in near[:MAX_TOOLS])}." if near else ""


def _matches(operation: Operation, terms: Iterable[str]) -> bool:
    """Whether each word, or a synonym, is in the name or among the search words."""
    words = {*_name_words(operation), *words_of(operation.search_words)}
    groups = {group for word in words for group in _GROUPS.get(word, ())}
    return all(word in words or not groups.isdisjoint(_GROUPS.get(word, ())) for word in terms)


def _may_be_guessed(operation: Operation, terms: Iterable[str]) -> bool:
    return operation.least_risk is not Risk.DESTROY or _name_words(operation)[-1] in terms


def _name_words(operation: Operation) -> list[str]:
    return [stem(word) for word in operation.name.split("_")]


def find_in_other_servers(name: str) -> tuple[list[str], str]:
    """The surfaces that have a tool of this name, and what replaces it in the native one."""
    from quorate.surfaces.compat import SYSTEMS, system

    tools = {server: tool for server in SYSTEMS if (tool := system(server).tools.get(name))}
    return list(tools), " or ".join(dict.fromkeys(tool.native for tool in tools.values()))
