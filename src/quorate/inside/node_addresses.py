"""The SSH addresses of a cluster's nodes. A command for one node is never sent to another."""

from __future__ import annotations

from functools import partial

from quorate.problems import NotConfigured, PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import gather_bounded
from quorate.ssh.target import SshTarget, split_port

REPORTED_SECONDS = 300.0
AT_ONCE = 8


async def ssh_of_node(cluster: Cluster, node: str) -> SshTarget:
    """The configured address, else the one that the cluster reports, else the node's name."""
    ssh = cluster.ssh
    if configured := ssh.configured_node(node):
        return configured
    reported = await _reported_addresses(cluster)
    if ssh.single_host and _is_node(ssh.single_host, node, reported):
        return ssh.node_at(ssh.single_host)
    if node in reported:
        ssh.require_allowed(reported[node] or node)
        return ssh.node_at(reported[node] or node)
    if ssh.single_host:
        raise NotConfigured(
            f"The SSH address of node {node} is unknown",
            why=f"Only {ssh.single_host} is configured, and the cluster does not say which node that is",
            next_step=how_to_configure(cluster, node),
        )
    ssh.require_allowed(node)
    return ssh.node_at(node)


async def reported_address(cluster: Cluster, node: str) -> str:
    """The address that the cluster itself uses for the node; empty if it reports none."""
    return (await _reported_addresses(cluster)).get(node, "")


async def node_addresses(cluster: Cluster) -> frozenset[str]:
    """Every known address of a node."""
    ssh = cluster.ssh
    written = [*ssh.settings.node_hosts.values(), *([ssh.single_host] if ssh.single_host else [])]
    return frozenset([*(await _reported_addresses(cluster)).values(), *(split_port(one)[0] for one in written)])


async def addresses_of_nodes(cluster: Cluster) -> dict[str, list[str]]:
    """All known addresses of each node: configured ones with their port, its own ones, and its name."""
    ssh, reported = cluster.ssh, await _reported_addresses(cluster)
    names = [row.node for row in await cluster.inventory.of_type("node")]
    own = await gather_bounded(AT_ONCE, [partial(_own_addresses, cluster, node) for node in names])
    found = {}
    for node, addresses in zip(names, own, strict=True):
        single = [ssh.single_host] if ssh.single_host and _is_node(ssh.single_host, node, reported) else []
        written = [ssh.settings.node_hosts[node]] if node in ssh.settings.node_hosts else []
        found[node] = [*written, *single, *([reported[node]] if reported.get(node) else []), *addresses, node]
    return found


async def _own_addresses(cluster: Cluster, node: str) -> list[str]:
    """Those of all its network cards; none if the node is offline or the privilege is missing."""
    try:
        cards = await cluster.get(f"/nodes/{node}/network")
    except Problem:
        return []
    return [str(card[key]) for card in cards for key in ("address", "address6") if card.get(key)]


def how_to_configure(cluster: Cluster, node: str) -> str:
    return (
        f'Set its address in the configuration: [clusters.{cluster.name}.ssh] nodes = {{ {node} = "ADDRESS" }}, '
        f'or [ssh] nodes = {{ {node} = "ADDRESS" }} if environment variables describe the cluster'
    )


async def _reported_addresses(cluster: Cluster) -> dict[str, str]:
    """Node -> address (which may be empty), as the cluster reports them; empty if the privilege is missing."""
    ssh = cluster.ssh
    if cluster.clock.monotonic() - ssh.reported_at > REPORTED_SECONDS:
        try:
            rows = await cluster.get("/cluster/status")
        except PermissionMissing:
            rows = []
        ssh.reported = {str(row["name"]): str(row.get("ip") or "") for row in rows if row.get("type") == "node"}
        ssh.reported_at = cluster.clock.monotonic()
    return ssh.reported


def _is_node(host: str, node: str, reported: dict[str, str]) -> bool:
    """Whether the single configured host is this node."""
    name, _ = split_port(host)
    if list(reported) == [node]:
        return True
    return name in (node, reported.get(node) or node) or name.partition(".")[0] == node
