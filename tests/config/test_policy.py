"""Rules and limits in the config file: read strictly, shown, explained, and reloaded while the server runs."""

import json
import os
import re
import signal
import sys
from dataclasses import replace
from functools import partial

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from quorate.cli.reload import FileChanges, Reloader
from quorate.config import Access, ConfigError, load
from quorate.config.policy import POLICY, RULE
from quorate.pipeline.caller import Caller
from quorate.pipeline.explanation import explain
from tests.config.test_settings import DOCUMENT, documented_toml
from tests.pipeline.test_policy import HIDDEN, PROTECTED, policy, ruled
from tests.rigs.cli import quorate
from tests.rigs.mcp_session import rig, text_of
from tests.rigs.several_clusters import several_clusters

pytestmark = pytest.mark.anyio

CLUSTER = """
[clusters.home]
url = "https://pve1.example.com"
token_id = "quorate@pve!assistant"
token_secret = "the-secret-shown-once"
"""


def settings(tmp_path, text, **more):
    file = tmp_path / "config.toml"
    file.write_text(text)
    file.chmod(0o600)
    return load(file=file, environ={}, **more)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_rules_of_all_and_of_one_cluster_are_read(tmp_path):
    text = PROTECTED + "[policy]\nguests_per_call = 5\n" + CLUSTER
    text += (
        'access = "admin"\n[clusters.home.policy]\ndestroys_per_hour = 1\n[[clusters.home.rules]]\ndeny = "change"\n'
    )
    loaded = settings(tmp_path, text)
    assert [str(rule) for rule in loaded.policy.rules] == ["deny destroy: tags prod"]
    assert loaded.policy.limits.guests_per_call == 5
    (home,) = loaded.clusters
    assert home.access is Access.ADMIN
    assert home.policy.limits.destroys_per_hour == 1
    assert [(rule.name, str(rule)) for rule in home.policy.rules] == [("rule 1 of home", "deny change: clusters home")]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[[rules]]\nname = "x"\n', "needs either allow or deny"),
        ('[[rules]]\nallow = "read"\ndeny = "read"\n', "needs either allow or deny"),
        ('[[rules]]\ndeny = "destory"\n', "Did you mean 'destroy'?"),
        ('[[rules]]\ndeny = "destroy"\ntag = "prod"\n', "Did you mean 'tags'?"),
        ('[[rules]]\ndeny = "destroy"\nvmids = "1oo"\n', "must be vmids or spans"),
        ('[[rules]]\ndeny = "destroy"\nvmids = "200-100"\n', "must be vmids or spans"),
        ('[[rules]]\ndeny = "destroy"\nvmids = "\uff11\uff10\uff10"\n', "must be vmids or spans"),
        ('[[rules]]\ndeny = "destroy"\nhours = "22-6"\n', "must be hours"),
        ('[[rules]]\ndeny = "destroy"\nhours = "25:00-06:00"\n', "must be hours"),
        ('[[rules]]\ndeny = "destroy"\nhours = "Foo 22:00-06:00"\n', "must be hours"),
        ('[[rules]]\ndeny = "destroy"\nhours = "06:00-06:00"\n', "must be hours"),
        ('[[rules]]\ndeny = "destroy"\ntags = []\n', "must not be empty"),
        ('[[rules]]\nname = "a"\ndeny = "read"\n[[rules]]\nname = "a"\ndeny = "read"\n', "Two rules are called"),
        ('[[rules]]\ndeny = "read"\nclusters = "hom"\n', "Did you mean 'home'?"),
        ('[rules]\ndeny = "read"\n', "write [[rules]]"),
        ('[policy]\ntimezone = "Europe/Nowhere"\n', "must be a time zone"),
        ("[policy]\ndestroys_per_hour = -1\n", "must be a number from 0"),
        ("[policy]\ndestroys = 1\n", "Did you mean 'destroys_per_hour'?"),
        ('[[clusters.home.rules]]\ndeny = "read"\nclusters = "home"\n', "remove clusters"),
    ],
)
def test_a_mistake_in_a_rule_is_one_sentence_and_never_a_rule_that_does_nothing(tmp_path, text, hint):
    with pytest.raises(ConfigError, match=re.escape(hint)):
        settings(tmp_path, CLUSTER + text)


@pytest.mark.parametrize(("key", "value"), [("tools", "guest_delte"), ("toolsets", "acces")])
async def test_a_rule_about_a_tool_that_does_not_exist_is_refused_at_the_start(tmp_path, key, value):
    text = f'[[rules]]\nname = "typo"\ndeny = "read"\n{key} = "{value}"\n'
    with pytest.raises(ConfigError, match='The rule "typo" is about the tool'):
        async with ruled(tmp_path, text):
            pass


@pytest.mark.parametrize(
    ("flags", "level"), [({}, "admin"), ({"access": "read"}, "read"), ({"access": "admin"}, "admin")]
)
def test_a_level_given_at_the_start_is_the_most_that_any_cluster_allows(tmp_path, flags, level):
    loaded = settings(tmp_path, 'access = "operate"\n' + CLUSTER + 'access = "admin"\n', **flags)
    assert loaded.clusters[0].access == level


def test_the_documented_rules_load(tmp_path):
    loaded = settings(tmp_path, documented_toml("[[rules]]") + CLUSTER.replace("home", "lab"))
    assert [rule.name for rule in loaded.policy.rules] == ["production stays", "nights and weekends are quiet"]
    assert [rule.name for rule in loaded.clusters[0].policy.rules] == ["scratch guests only"]
    assert str(loaded.policy.rules[1].hours[0]) == "22:00-06:00 Europe/Vienna"


def test_every_key_of_rules_and_limits_is_documented():
    text = DOCUMENT.read_text()
    for key in (*POLICY, *RULE):
        assert f"`{key}`" in text


# -- show and explain --------------------------------------------------------------------------------------------------


async def test_explain_says_what_a_call_would_meet_and_does_nothing(tmp_path):
    async with ruled(tmp_path, PROTECTED + HIDDEN + "[policy]\ndestroys_per_hour = 0\n") as quorate:

        async def about(tool, **arguments):
            return await explain(quorate.app.pipeline, tool, arguments, Caller())

        told = await about("guest_stop", guest="docker01")
        assert (told["verdict"], told["rule"]) == ("refused", "production stays")
        assert told["reaches"] == ["guest 102 docker01 (node pve1; pool production; tags docker, prod)"]
        assert told["calls"] == ["POST /nodes/pve1/qemu/102/status/stop"]
        told = await about("guest_stop", guest="k3s-server")
        assert (told["verdict"], told["rule"]) == ("refused at this moment", "limit destroys_per_hour")
        assert (await about("guest_power", guest=108, action="start"))["verdict"] == "allowed"
        assert (await about("guest_get", guest="postgres"))["rule"] == "not for you"
        assert (await about("guest_list"))["sees"] == "all but 2 guests that the rules hide from it"
        assert "There is no guest" in (await about("guest_stop", guest=555))["why"]
        assert not [method for method, _ in quorate.sim.requests if method != "GET"]
        assert quorate.audit() == []


async def test_explain_names_the_cluster_or_asks_for_it(tmp_path):
    async with several_clusters(tmp_path, access=Access.READ, own={"lab": {"access": Access.ADMIN}}) as quorate:
        pipeline = quorate.app.pipeline
        assert (await explain(pipeline, "guest_stop", {"guest": "lab/100"}, Caller()))["verdict"] == "allowed"
        assert (await explain(pipeline, "guest_stop", {"guest": "prod/100"}, Caller()))["verdict"] == "refused"
        assert "Several clusters" in (await explain(pipeline, "guest_stop", {"guest": 100}, Caller()))["why"]
        assert set(await explain(pipeline, "guest_list", {}, Caller())) == {"tool", "risk", "prod", "lab"}


async def test_a_call_that_would_fail_is_judged_by_the_guests_that_it_names(tmp_path):
    async with ruled(tmp_path, PROTECTED) as quorate:
        pipeline = quorate.app.pipeline
        running = await explain(pipeline, "guest_delete", {"guest": "docker01"}, Caller())  # no plan: it runs
        assert (running["verdict"], running["rule"]) == ("refused", "production stays")
        free = await explain(pipeline, "guest_delete", {"guest": "k3s-server"}, Caller())
        assert free["verdict"] == "allowed, but it would fail"
        assert "is running" in free["why"]
        lacking = await explain(pipeline, "guest_migrate", {"guest": "k3s-server"}, Caller())
        assert (lacking["verdict"], "'node'" in lacking["why"]) == ("allowed, but it would fail", True)


async def test_a_refusal_names_the_rule_what_it_says_and_where_it_is_changed(tmp_path):
    async with ruled(tmp_path, PROTECTED) as quorate:
        refusal = await quorate.refusal("guest_stop", guest="docker01")
        for words in ("'production stays'", "deny destroy: tags prod", "[[rules]]", "`quorate policy`"):
            assert words in refusal


def test_the_help_of_the_command_names_what_explaining_takes():
    told = quorate("policy", "--help").stdout
    for option in ("--access", "--cluster", "--demo", "--json"):
        assert option in told


async def test_without_an_answer_of_the_cluster_only_the_tool_is_judged(tmp_path):
    async with ruled(tmp_path, PROTECTED) as quorate:
        await quorate.sim.__aexit__(None, None, None)
        told = await explain(quorate.app.pipeline, "guest_stop", {"guest": 102}, Caller())
        assert told["verdict"] == "not known"
        assert "what it would act on is not known" in told["why"]


def test_the_command_shows_the_rules_and_explains_a_call(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(PROTECTED)
    shown = quorate("policy", "show", "--config", str(file))
    assert "production stays: deny destroy: tags prod" in shown.stdout
    told = quorate("policy", "explain", "guest_stop", "guest=102", "--json", "--demo", "--access", "admin",
                   "--config", str(file))  # fmt: skip
    assert json.loads(told.stdout)["rule"] == "production stays", told.stderr
    file.write_text(PROTECTED + 'tools = "guest_stpo"\n')
    assert quorate("policy", "show", "--config", str(file)).returncode == 2


# -- reload ------------------------------------------------------------------------------------------------------------


async def test_rules_are_read_anew_when_the_file_has_changed(tmp_path, caplog):
    file = tmp_path / "config.toml"
    file.write_text("")
    async with rig(tmp_path) as quorate:
        read = partial(load, file=file, environ={}, access="admin", tolerate=True)
        async with Reloader(quorate.app, read(), FileChanges(file), read).watch():
            await quorate.facts("guest_stop", guest=104)
            file.write_text(PROTECTED)
            assert "'production stays'" in await quorate.refusal("guest_stop", guest=102)
            file.write_text(PROTECTED + "[[rules]]\n")  # half written
            assert "'production stays'" in await quorate.refusal("guest_stop", guest=102)
            assert "the old ones remain in effect" in caplog.text
            file.write_text('[[rules]]\nname = "none"\ndeny = "destroy"\n')
            assert "guest_stop" not in {tool.name for tool in (await quorate.client.list_tools()).tools}
            assert "'none'" in await quorate.refusal("guest_stop", guest=105)


async def test_what_was_counted_stays_counted(tmp_path):
    async with ruled(tmp_path, "[policy]\ndestroys_per_hour = 1\n") as quorate:
        await quorate.facts("guest_stop", guest=102)
        again = policy("[policy]\ndestroys_per_hour = 1\n" + HIDDEN)
        quorate.app.adopt(replace(quorate.app.settings, policy=again))
        assert "limit destroys_per_hour" in await quorate.refusal("guest_stop", guest=103)


@pytest.mark.thorough
async def test_a_server_reloads_its_settings_on_request(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("")
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-c", STARTER, "serve", "--demo", "--access", "admin", "--config", str(file)],
        env={**os.environ, "QUORATE_STATE": str(tmp_path / "state.sqlite"), "PID_FILE": str(tmp_path / "pid")},
        cwd=str(tmp_path),
    )
    async with Client(stdio_client(parameters)) as client:
        assert "guest_stop" in {tool.name for tool in (await client.list_tools()).tools}
        file.write_text('[[rules]]\nname = "none"\ndeny = "destroy"\n')
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGHUP)
        assert "guest_stop" not in {tool.name for tool in (await client.list_tools()).tools}
        assert "'none'" in text_of(await client.call_tool("guest_stop", {"guest": "test-vm"}))


STARTER = """
import os, sys
open(os.environ["PID_FILE"], "w").write(str(os.getpid()))
from quorate.cli import main
main(sys.argv[1:])
"""
