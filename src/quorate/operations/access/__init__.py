"""Users, groups, roles, tokens, permissions, pools."""
