"""What engines and callers write, read right however it comes: HTTP answers in pieces, ports, volumes, progress."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.homelab.workloads.docker import Pulling, log_text, parse_container
from quorate.homelab.workloads.lxd import create_request, parse_instance, source
from quorate.homelab.workloads.unix_http import Exchange
from quorate.homelab.workloads.workload import Mount, Port, Spec, parse_mounts, parse_ports, warnings
from quorate.problems import BadArgument, Problem, ServerFailed

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(offset % (len(data) + 1) for offset in at)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


@given(st.lists(st.binary(min_size=1, max_size=40)), st.lists(st.integers(min_value=0)))
def test_a_chunked_body_is_the_same_however_it_is_cut(parts, at):
    data = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    response = Exchange("GET", "/", max_body=10_000)
    came = b"".join(response.feed(piece) for piece in cut(data, at))
    assert (response.status, response.done, bytes(response.body)) == (200, True, b"".join(parts))
    assert came == b"".join(parts)


@given(st.binary(max_size=100), st.lists(st.integers(min_value=0)))
def test_a_body_of_known_length_ends_there(body, at):
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    response = Exchange("GET", "/", max_body=10_000)
    for piece in cut(data, at):
        response.feed(piece)
    assert (response.status, response.done, bytes(response.body)) == (404, True, body)


def test_a_body_without_length_ends_when_the_other_side_hangs_up():
    response = Exchange("GET", "/", max_body=10_000)
    response.feed(b"HTTP/1.0 200 OK\r\n\r\nall of it")
    assert not response.done
    response.close()
    assert (response.done, bytes(response.body)) == (True, b"all of it")


@pytest.mark.parametrize(
    "data", [b"", CHUNKED, CHUNKED + b"5\r\nab", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"]
)
def test_an_answer_that_breaks_off_is_no_answer(data):
    response = Exchange("GET", "/", max_body=10_000)
    response.feed(data)
    with pytest.raises(ServerFailed):
        response.close()


@given(st.binary(max_size=400), st.lists(st.integers(min_value=0)))
def test_nonsense_is_refused_or_waited_for_but_never_breaks(data, at):
    response = Exchange("GET", "/", max_body=100)
    try:
        for piece in cut(data, at):
            response.feed(piece)
        response.close()
    except Problem:
        return
    assert response.done


@pytest.mark.parametrize("length", [b"-5", b"0x5", b"1_0", b"", b"z"])
def test_a_chunk_says_its_length_in_plain_digits(length):
    with pytest.raises(ServerFailed):
        Exchange("GET", "/", max_body=100).feed(CHUNKED + length + b";\r\nabcdefghijklmnopqrstuvwxyz\r\n")


def test_of_a_long_body_the_first_bytes_are_kept():
    response = Exchange("GET", "/", max_body=5)
    response.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789")
    assert (bytes(response.body), response.cut, response.done) == (b"01234", True, True)


@given(
    st.integers(1, 65535),
    st.none() | st.integers(1, 65535),
    st.sampled_from(["tcp", "udp"]),
    st.sampled_from(["", "127.0.0.1", "fe80::1"]),
)
def test_a_port_is_read_as_it_is_written(inside, outside, protocol, address):
    port = Port(inside, outside, protocol, address)
    assert parse_ports([str(port)]) == (port,)


def test_volumes_are_paths_or_names():
    assert parse_mounts(["data:/data", "/srv//media/:/media/:ro"]) == (
        Mount("data", "/data"),
        Mount("/srv/media", "/media", read_only=True),
    )


def test_volumes_that_hand_the_host_over_are_warned_of():
    def warned(*volumes):
        return warnings(parse_mounts(volumes))

    hold = "gives the container control of the host"
    assert warned("data:/a", "/srv:/b", "/etc/localtime:/c:ro", "/var/lib/plex:/d") == ()
    for path in ("/", "//", "/etc/cron.d", "//root/.ssh/", "/usr/../etc", "/home", "/var/lib", "/proc/sys/kernel"):
        assert warned(f"{path}:/x") == (f"{parse_mounts([f'{path}:/x'])[0].source} {hold}",)
    for path in ("/", "/run", "/x/docker.sock"):  # read-only or not: what listens there listens
        assert warned(f"{path}:/x:ro") == (f"{path} {hold}",)
    assert warned("/etc:/x:ro") == ("/etc shows the container secrets of the host, such as its keys",)


@given(st.text(max_size=40))
def test_any_text_is_a_port_and_a_volume_or_is_refused(text):
    for read in (parse_ports, parse_mounts):
        try:
            assert len(read([text])) == 1
        except BadArgument:
            continue


def test_the_log_of_a_container_without_terminal_loses_its_heads():
    framed = b"".join(
        bytes([stream, 0, 0, 0, 0, 0, 0, len(text)]) + text for stream, text in ((1, b"out\n"), (2, b"err\n"))
    )
    assert log_text(framed, tty=False) == "out\nerr\n"
    assert log_text(framed[:10], tty=False) == "ou"
    assert log_text(b"as it is\n", tty=True) == "as it is\n"


@pytest.mark.anyio
async def test_the_progress_of_a_pull_is_that_of_all_its_layers():
    shown = []

    async def report(done: float, whole: float | None, line: str) -> None:
        shown.append((round(done), whole, line))

    pulling = Pulling("nginx", report)
    events = [
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 50, "total": 100}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 0, "total": 100}},
        {"status": "Pull complete", "id": "a"},
        {"error": "no space left"},
    ]
    text = "".join(json.dumps(event) + "\r\n" for event in events).encode()
    await pulling.take(text[:30])
    await pulling.take(text[30:])
    assert [done for done, *_ in shown] == [50, 25, 50, 50]
    assert pulling.error == "no space left"


def test_podman_tells_health_and_image_in_its_own_words():
    shown = parse_container(
        "podman",
        {"Id": "1", "Name": "web", "ImageName": "docker.io/library/nginx:1", "Image": "abc", "Mounts": [],
         "State": {"Status": "running", "Healthcheck": {"Status": "healthy"}}, "Config": {"Env": ["A=b=c"]},
         "HostConfig": {"CpuQuota": 150000, "CpuPeriod": 100000}, "NetworkSettings": {}},
    )  # fmt: skip
    assert (shown.health, shown.image, shown.cpus, shown.env) == ("healthy", "docker.io/library/nginx:1", 1.5, ("A",))


def test_an_instance_reads_as_it_was_requested():
    spec = Spec(
        "web", "images:debian/12", (Port(80, 8080), Port(53, 53, "udp", "127.0.0.1")),
        (Mount("data", "/data"), Mount("/srv", "/srv", read_only=True)), {"A": "b"}, memory=512 * 1024**2, cpus=1.5,
        restart="always", labels={"role": "web"},
    )  # fmt: skip
    body = create_request(spec, "incus", "default")
    assert body["source"]["server"] == "https://images.linuxcontainers.org"
    assert body["devices"]["volume0"]["pool"] == "default"
    back = parse_instance(
        "incus", {"name": "web", "status": "Running", "config": body["config"], "devices": body["devices"]}
    )
    assert (back.ports, back.mounts) == (spec.ports, spec.mounts)
    assert (back.memory, back.cpus, back.restart) == (512 * 1024**2, 1.5, "always")
    assert (back.env, back.labels, back.running) == (("A",), {"role": "web"}, True)


def test_images_of_instances_are_local_unless_a_server_is_named():
    assert source("tiny", "lxd") == {"type": "image", "alias": "tiny"}
    assert source("local:tiny", "lxd") == {"type": "image", "alias": "tiny"}
    with pytest.raises(BadArgument):
        source("evil.example:tiny", "lxd")
