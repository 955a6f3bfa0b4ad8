"""Networks of nodes, and SDN."""
