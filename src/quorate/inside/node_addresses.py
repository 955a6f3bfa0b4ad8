"""Where the nodes of a cluster answer SSH. A command for one node is never sent to another."""

from __future__ import annotations

from quorate.problems import NotConfigured, PermissionMissing
from quorate.pve.cluster import Cluster
from quorate.ssh.settings import split_port
from quorate.ssh.target import SshTarget

TOLD_SECONDS = 300.0


async def ssh_of_node(cluster: Cluster, node: str) -> SshTarget:
    """What the operator wrote down for the node, else what the cluster tells of it, else its name."""
    ssh = cluster.ssh
    if configured := ssh.configured_node(node):
        return configured
    told = await _told_addresses(cluster)
    if ssh.single_host and _is_node(ssh.single_host, node, told):
        return ssh.node_at(ssh.single_host)
    if node in told:
        ssh.require_allowed(told[node] or node)
        return ssh.node_at(told[node] or node)
    if ssh.single_host:
        raise NotConfigured(
            f"It is not known where node {node} answers SSH",
            why=f"Only {ssh.single_host} is configured, and the cluster does not tell which node that is",
            next_step=how_to_configure(cluster, node),
        )
    ssh.require_allowed(node)
    return ssh.node_at(node)


async def node_addresses(cluster: Cluster) -> frozenset[str]:
    """Every address at which a node is known to answer."""
    ssh = cluster.ssh
    written = [*ssh.settings.node_hosts.values(), *([ssh.single_host] if ssh.single_host else [])]
    return frozenset([*(await _told_addresses(cluster)).values(), *(split_port(one)[0] for one in written)])


async def addresses_of_nodes(cluster: Cluster) -> dict[str, list[str]]:
    """Where each node is known to answer, with the port where one is written down, and its name."""
    ssh, told = cluster.ssh, await _told_addresses(cluster)
    names = [row.node for row in await cluster.inventory.of_type("node")]
    found = {}
    for node in names:
        single = [ssh.single_host] if ssh.single_host and _is_node(ssh.single_host, node, told) else []
        written = [ssh.settings.node_hosts[node]] if node in ssh.settings.node_hosts else []
        found[node] = [*written, *single, *([told[node]] if told.get(node) else []), node]
    return found


def how_to_configure(cluster: Cluster, node: str) -> str:
    return (
        f'Give its address in the configuration: [clusters.{cluster.name}.ssh] nodes = {{ {node} = "ADDRESS" }}, '
        f'or [ssh] nodes = {{ {node} = "ADDRESS" }} where the cluster is described by variables'
    )


async def _told_addresses(cluster: Cluster) -> dict[str, str]:
    """Node -> address (which may be empty), as the cluster tells them; nothing where we may not ask."""
    ssh = cluster.ssh
    if cluster.clock.monotonic() - ssh.told_at > TOLD_SECONDS:
        try:
            rows = await cluster.get("/cluster/status")
        except PermissionMissing:
            rows = []
        ssh.told = {str(row["name"]): str(row.get("ip") or "") for row in rows if row.get("type") == "node"}
        ssh.told_at = cluster.clock.monotonic()
    return ssh.told


def _is_node(host: str, node: str, told: dict[str, str]) -> bool:
    """Whether the one host that is configured is this node."""
    name, _ = split_port(host)
    if list(told) == [node]:
        return True
    return name in (node, told.get(node) or node) or name.partition(".")[0] == node
