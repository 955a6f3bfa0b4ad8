"""Plain hosts: who they are, commands on them, what they are made of, their administration account."""
