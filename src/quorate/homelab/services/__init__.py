"""Services from a catalogue, put on hosts by Compose, Ansible or Terraform."""
