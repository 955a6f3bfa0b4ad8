"""Users, tokens, roles, ACLs and pools."""
