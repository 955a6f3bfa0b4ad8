"""Services from a catalogue, installed on hosts by Compose, Ansible or Terraform."""
