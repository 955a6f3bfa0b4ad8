"""Terraform: services that it creates, and guests exported to it."""
