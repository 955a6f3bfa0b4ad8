"""Care of nodes: services, updates, disks, certificates, logs, power."""
