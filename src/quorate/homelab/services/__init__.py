"""Services from a catalog, installed on hosts by Compose, Ansible or Terraform."""
