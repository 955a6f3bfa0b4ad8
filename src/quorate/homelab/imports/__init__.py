"""Hosts that are written down elsewhere: in an SSH configuration, in an Ansible inventory."""
