"""The laboratory's wires: a network namespace for every node, one cable from the tests to each."""

from __future__ import annotations

import json
import subprocess


def run(*command: object) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr or done.stdout}"
    return done.stdout


class Cable:
    """A node's namespace `name`, reached from the tests at 10.77.<number>.2.

    In the node there are two bridges for guests: vmbr0 (10.77.1<number>.0/24), to which the tests have a route, and
    vmbr1 (10.77.2<number>.0/24), which only the node itself can reach.
    """

    def __init__(self, name: str, number: int) -> None:
        self.namespace = name
        self._ours = f"to-{name}"
        self._near, self.far = f"10.77.{number}.1", f"10.77.{number}.2"
        self._number = number

    def lay(self) -> None:
        name, ours = self.namespace, self._ours
        run("ip", "netns", "add", name)
        run("ip", "link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "address", "add", f"{self._near}/24", "dev", ours)
        run("ip", "link", "set", ours, "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "address", "add", f"{self.far}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        for bridge in (0, 1):
            run("ip", "-n", name, "link", "add", f"vmbr{bridge}", "type", "bridge")
            run("ip", "-n", name, "address", "add", f"{self.gateway(bridge)}/24", "dev", f"vmbr{bridge}")
            run("ip", "-n", name, "link", "set", f"vmbr{bridge}", "up")
        run(*self.inside(), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        run("ip", "route", "add", f"{self.gateway(0)[:-1]}0/24", "via", self.far)
        # Known for good: nobody asks for it, so that nobody notices by it that the cable is out.
        [card] = json.loads(run("ip", "-n", name, "-j", "link", "show", "eth0"))
        run("ip", "neighbour", "replace", self.far, "lladdr", card["address"], "dev", ours, "nud", "permanent")

    def take_up(self) -> None:
        """Its namespace and addresses are free for another node."""
        run("ip", "link", "delete", self._ours)
        run("ip", "netns", "delete", self.namespace)

    def inside(self) -> list[str]:
        """What to put before a command to run it at the far end."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--"]

    def gateway(self, bridge: int) -> str:
        return f"10.77.{bridge + 1}{self._number}.1"

    def address(self, bridge: int, vmid: int) -> str:
        """A guest's address on one of the bridges."""
        return f"10.77.{bridge + 1}{self._number}.{vmid % 256}"

    def unplug(self) -> None:
        """From now on packets get lost without a word."""
        run("ip", "-n", self.namespace, "link", "set", "eth0", "down")

    def plug(self) -> None:
        run("ip", "-n", self.namespace, "link", "set", "eth0", "up")
