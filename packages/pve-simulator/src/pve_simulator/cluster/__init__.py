"""What belongs to the cluster as a whole: resources, HA, firewall, SDN, replication, jobs."""
