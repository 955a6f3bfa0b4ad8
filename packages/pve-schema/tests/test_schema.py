"""The API facts: routing and parameter checks."""

from __future__ import annotations

import ast
import gzip
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pve_schema.formats import perl_regex
from pve_schema.schema import Endpoint, Facts, facts

CASES = Path(__file__).parent / "data" / "validation-cases.jsonl.gz"
VERSIONS = ("9.2", "8.4")

CONFIG = "/nodes/{node}/qemu/{vmid}/config"
CLONE = "/nodes/{node}/qemu/{vmid}/clone"

UNKNOWN = "property is not defined in schema and the schema does not allow additional properties"


def all_endpoints() -> Iterator[tuple[Facts, Endpoint]]:
    for version in VERSIONS:
        table = facts(version)
        for endpoint in table.endpoints():
            yield table, endpoint


def find(method: str, path: str) -> tuple[str, dict[str, str]]:
    match = facts("9.2").find(method, path)
    assert match is not None
    return match.endpoint.template, match.values


def config_errors(**params: object) -> dict[str, str]:
    return facts("9.2").endpoint("PUT", CONFIG).check({"node": "pve1", "vmid": "100", **params})


# Versions


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("9.1.8", "9.1"),
        ("9.0.11", "9.0"),
        ("9.2", "9.2"),
        ("9", "9.0"),
        ("8.4.1", "8.4"),
        ("8.0", "8.4"),
        ("7.4-3", "8.4"),
        ("10.0", "9.2"),
        ("", "9.2"),
        ("unknown", "9.2"),
    ],
)
def test_a_version_gets_the_nearest_table(asked: str, nearest: str) -> None:
    assert facts(asked).version == nearest


def test_the_same_table_is_read_once() -> None:
    assert facts("9.1.8") is facts("9.1.1")


def test_both_tables_are_complete() -> None:
    assert [sum(1 for _ in facts(version).endpoints()) for version in VERSIONS] == [675, 605]


def test_what_came_with_9_2_is_not_in_9_1() -> None:
    token = "/access/users/{userid}/token/{tokenid}"
    for version, there in (("9.1.8", False), ("9.2.3", True)):
        table = facts(version)
        assert (table.find("GET", "/cluster/qemu/custom-cpu-models") is not None) is there
        assert ("regenerate" in table.endpoint("PUT", token).parameters) is there
        assert "comment" in table.endpoint("PUT", token).parameters


def test_what_came_with_9_1_is_not_in_9_0() -> None:
    for version, there in (("9.0.11", False), ("9.1.1", True), ("9.2.3", True)):
        table = facts(version)
        assert (table.find("GET", "/nodes/pve1/query-oci-repo-tags") is not None) is there
        for method, path in (("POST", "/nodes/{node}/lxc"), ("PUT", "/nodes/{node}/lxc/{vmid}/config")):
            assert ({"entrypoint", "env"} <= table.endpoint(method, path).parameters.keys()) is there
    assert facts("9.0.11").find("GET", "/cluster/qemu/custom-cpu-models") is None


# Paths


def test_a_guest_path_finds_its_endpoint_and_values() -> None:
    assert find("PUT", "/nodes/pve1/qemu/100/config") == (CONFIG, {"node": "pve1", "vmid": "100"})


def test_a_literal_segment_wins_over_a_placeholder() -> None:
    assert find("GET", "/nodes/pve1/qemu/100/status/current") == (
        "/nodes/{node}/qemu/{vmid}/status/current",
        {"node": "pve1", "vmid": "100"},
    )


def test_repeated_and_trailing_slashes_do_not_matter() -> None:
    assert find("GET", "//nodes//pve1/qemu/") == ("/nodes/{node}/qemu", {"node": "pve1"})


def test_a_volume_takes_the_rest_of_the_path() -> None:
    assert find("DELETE", "/nodes/pve1/storage/local/content/local:iso/debian.iso") == (
        "/nodes/{node}/storage/{storage}/content/{volume}",
        {"node": "pve1", "storage": "local", "volume": "local:iso/debian.iso"},
    )


def test_the_content_list_is_not_a_volume() -> None:
    assert find("GET", "/nodes/pve1/storage/local/content")[0] == "/nodes/{node}/storage/{storage}/content"


def test_a_network_in_an_ipset_takes_the_rest_of_the_path() -> None:
    assert find("GET", "/cluster/firewall/ipset/office/10.0.0.0/8") == (
        "/cluster/firewall/ipset/{name}/{cidr}",
        {"name": "office", "cidr": "10.0.0.0/8"},
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nope"),
        ("GET", "/nodes/pve1/nope"),
        ("GET", "/pools/a/b"),
        ("PATCH", "/version"),
        ("POST", "/version"),
    ],
)
def test_what_does_not_exist_is_not_found(method: str, path: str) -> None:
    assert facts("9.2").find(method, path) is None


def test_an_endpoint_of_9_is_unknown_to_8() -> None:
    assert facts("9.2").find("GET", "/cluster/ha/rules") is not None
    assert facts("8.4").find("GET", "/cluster/ha/rules") is None


def test_an_unknown_template_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        facts("9.2").endpoint("GET", "/nope")
    with pytest.raises(KeyError):
        facts("9.2").endpoint("POST", "/version")


def test_every_template_leads_back_to_its_own_endpoint() -> None:
    for table, endpoint in all_endpoints():
        path = re.sub(r"\{([^}]+)\}", r"value-of-\1", endpoint.template)
        match = table.find(endpoint.method, path)
        assert match is not None, endpoint
        assert match.endpoint is endpoint
        assert match.values == {name: f"value-of-{name}" for name in re.findall(r"\{([^}]+)\}", endpoint.template)}


# Endpoints


def test_an_endpoint_describes_itself() -> None:
    clone = facts("9.2").endpoint("POST", CLONE)
    assert clone.name == "clone_vm"
    assert clone.protected
    assert clone.proxyto == "node"
    assert clone.allow_token
    assert clone.worker_types == ("qmclone",)
    assert clone.parameters["newid"]["type"] == "integer"
    assert clone.returns["type"] == "string"


def test_an_endpoint_that_starts_no_task_has_no_worker_types() -> None:
    assert facts("9.2").endpoint("GET", CONFIG).worker_types == ()


def test_five_endpoints_refuse_tokens() -> None:
    refusing = [endpoint for endpoint in facts("9.2").endpoints() if not endpoint.allow_token]
    assert len(refusing) == 5


def references(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if "$" in node:
            yield node
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_no_endpoint_shows_an_unresolved_reference() -> None:
    for _, endpoint in all_endpoints():
        assert not list(references([endpoint.parameters, endpoint.permission, endpoint.returns])), endpoint


def patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for value in node.values():
            yield from patterns(value)
    elif isinstance(node, list):
        for value in node:
            yield from patterns(value)


def test_every_pattern_of_the_tables_is_understood() -> None:
    for _, endpoint in all_endpoints():
        for pattern in patterns(endpoint.parameters):
            assert perl_regex(pattern) is not None, (endpoint, pattern)


def test_no_pattern_of_the_tables_is_slow_on_hostile_text() -> None:
    every_pattern = {pattern for _, endpoint in all_endpoints() for pattern in patterns(endpoint.parameters)}
    started = time.process_time()
    for pattern in every_pattern:
        regex = perl_regex(pattern)
        assert regex is not None
        for unit in ("a", "1", "a-", "a.", "1:", "/"):
            regex.search(unit * 200 + "!\x01")
    assert time.process_time() - started < 5


# Parameters


def by_sorted_lines(errors: dict[str, str], ignored: list[str]) -> dict[str, list[str]]:
    """PVE reports the keys of one property string in random order."""
    return {name: sorted(text.split("\n")) for name, text in errors.items() if name not in ignored}


def test_all_cases_agree_with_the_real_validator() -> None:
    cases = [json.loads(line) for line in gzip.decompress(CASES.read_bytes()).splitlines()]
    disagreements = []
    for case in cases:
        endpoint = facts("9.2").endpoint(case["method"], case["path"])
        ignored = case["ignore_formats"]
        ours = by_sorted_lines(endpoint.check(case["param"]), ignored)
        if ours != by_sorted_lines(case["errors"], ignored):
            disagreements.append((case, ours))
    assert len(cases) == 2701
    assert disagreements == []


def test_a_usual_configuration_is_accepted() -> None:
    assert (
        config_errors(
            cores=4,
            memory="2048",
            cpu="host,flags=+aes",
            onboot=True,
            agent="enabled=yes,fstrim_cloned_disks=1",
            boot="order=scsi0;net0",
            scsi0="local-lvm:32,iothread=1,discard=on",
            ide2="none,media=cdrom",
            net0="virtio=BC:24:11:AA:BB:CC,bridge=vmbr0,tag=5",
            ipconfig0="ip=10.0.0.5/24,gw=10.0.0.1,ip6=auto",
            tags="web;prod",
            sshkeys="ssh-ed25519%20AAAA",
        )
        == {}
    )


def test_the_8_table_uses_the_same_validator() -> None:
    endpoint = facts("8.4").endpoint("PUT", CONFIG)
    assert endpoint.check({"node": "pve1", "vmid": "7", "cores": "x"}) == {
        "vmid": "invalid format - value does not look like a valid VM ID\n",
        "cores": "type check ('integer') failed - got 'x'",
    }


@pytest.mark.parametrize("name", ["net31", "scsi30", "ide3", "unused255"])
def test_a_numbered_option_is_known_up_to_its_last_index(name: str) -> None:
    assert config_errors(**{name: 1}).get(name, "") != UNKNOWN


@pytest.mark.parametrize("name", ["net32", "scsi31", "ide4", "net01", "net", "net[n]", "net-1", "nope0"])
def test_a_numbered_option_out_of_range_is_unknown(name: str) -> None:
    assert config_errors(**{name: "virtio"}) == {name: UNKNOWN}


def test_words_for_booleans_are_refused_as_parameters() -> None:
    assert config_errors(onboot="yes") == {"onboot": "type check ('boolean') failed - got 'yes'"}


def test_a_key_of_a_property_string_is_reported_with_its_path() -> None:
    assert config_errors(net0="virtio,bridge=vmbr0,tag=5000") == {
        "net0": "invalid format - format error\nnet0.tag: value must have a maximum value of 4094\n"
    }


@pytest.mark.parametrize(
    ("text", "rejection"),
    [
        ("virtio,virtio", "duplicate key in comma-separated list property: model"),
        ("virtio=BC:24:11:AA:BB:CC,e1000=BC:24:11:AA:BB:CD", "key alias 'model' is already defined"),
        ("virtio,=x", "missing key in comma-separated list property"),
        ("virtio,tag=1,tag=2", "duplicate key in comma-separated list property: tag"),
    ],
)
def test_an_unreadable_property_string_is_refused_as_a_whole(text: str, rejection: str) -> None:
    assert config_errors(net0=text) == {"net0": f"invalid format - {rejection}\n"}


def test_a_missing_companion_is_reported_under_its_own_name() -> None:
    assert config_errors(force=True) == {"delete": "missing property required by 'force'"}


def test_a_list_may_come_as_an_array() -> None:
    assert config_errors(delete=["net0", "net1"]) == {}


def test_a_single_value_may_stand_for_an_array() -> None:
    execute = facts("9.2").endpoint("POST", "/nodes/{node}/qemu/{vmid}/agent/exec")
    guest = {"node": "pve1", "vmid": "100"}
    assert execute.check({**guest, "command": "uptime"}) == {}
    assert execute.check({**guest, "command": ["ls", "-l"]}) == {}
    assert execute.check({**guest, "command": {}}) == {"command": "type check ('array') failed"}


def test_an_element_of_an_array_is_reported_with_its_position() -> None:
    start = facts("9.2").endpoint("POST", "/cluster/bulk-action/guest/start")
    assert start.check({"vms": [100, "x"]}) == {"vms[1]": "type check ('integer') failed - got 'x'"}


def test_a_null_counts_as_missing() -> None:
    assert facts("9.2").endpoint("POST", CLONE).check({"node": "pve1", "vmid": 100, "newid": None}) == {
        "newid": "property is missing and it is not optional"
    }


def test_a_json_value_of_the_wrong_kind_is_refused() -> None:
    assert config_errors(name=["a"], cores=True, ostype={}) == {
        "name": "type check ('string') failed - got ARRAY",
        "cores": "type check ('integer') failed - got JSON::PP::Boolean",
        "ostype": "type check ('string') failed - got HASH",
    }


def test_an_absurd_number_is_refused_like_any_other() -> None:
    assert config_errors(cores=10**5000) == {"cores": "type check ('integer') failed - got 'Inf'"}


@pytest.mark.parametrize(
    "reference",
    ["alpine:3", "docker.io/library/alpine:latest", "host:5000/a--b/c__d/e.f:v1", "a---b:x"],
)
def test_an_image_reference_is_accepted(reference: str) -> None:
    pull = facts("9.2").endpoint("POST", "/nodes/{node}/storage/{storage}/oci-registry-pull")
    assert pull.check({"node": "pve1", "storage": "local", "reference": reference}) == {}


def test_one_endpoint_takes_any_parameter() -> None:
    agent = facts("9.2").endpoint("GET", "/nodes/{node}/qemu/{vmid}/agent")
    assert agent.check({"node": "pve1", "vmid": "100", "whatever": "1"}) == {}


def test_a_privilege_must_exist_in_that_version() -> None:
    role = {"roleid": "r", "privs": "VM.Audit,VM.Monitor"}
    refused = {"privs": "invalid format - invalid privilege 'VM.Monitor'\n"}
    assert facts("9.2").endpoint("POST", "/access/roles").check(role) == refused
    assert facts("8.4").endpoint("POST", "/access/roles").check(role) == {}


@pytest.mark.parametrize("text", ["none,media=cdrom", "cdrom", "local:iso/x.iso,media=cdrom", "/dev/sdb"])
def test_a_drive_is_a_volume_a_path_or_no_medium(text: str) -> None:
    assert config_errors(ide2=text) == {}


GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([10**400, "\0", "="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
EVERY_ENDPOINT = [endpoint for _, endpoint in all_endpoints()]


@settings(deadline=None)
@given(data=st.data())
def test_no_garbage_makes_the_check_fail_itself(data: st.DataObject) -> None:
    endpoint = data.draw(st.sampled_from(EVERY_ENDPOINT))
    names = [name.replace("[n]", "0") for name in endpoint.parameters]
    params = data.draw(st.dictionaries(st.sampled_from([*names, "nope"]), GARBAGE, max_size=8))
    errors = endpoint.check(params)
    assert all(isinstance(text, str) and text for text in errors.values())


@settings(deadline=None)
@given(text=st.text(alphabet="abvirto=,01:;/. \n\0-"), name=st.sampled_from(["net0", "scsi0", "boot", "agent"]))
def test_no_property_string_makes_the_check_fail_itself(text: str, name: str) -> None:
    assert set(config_errors(**{name: text})) <= {name}


# The README


def test_the_example_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    exec(code[1], {})
    template, values, _, *errors = capsys.readouterr().out.splitlines()
    assert f"# {template}" in code[1]
    assert f"# {values}" in code[1]
    shown = re.findall(r"^# (.*)$", code[1], re.MULTILINE)
    assert ast.literal_eval("".join(errors)) == ast.literal_eval("".join(shown))
