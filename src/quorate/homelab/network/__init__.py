"""Network scans from this machine: which addresses answer, on which ports, with which hardware address."""
