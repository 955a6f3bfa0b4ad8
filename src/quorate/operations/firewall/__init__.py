"""The firewall of cluster, nodes and guests."""
