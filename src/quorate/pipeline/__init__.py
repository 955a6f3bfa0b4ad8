"""How every operation runs: resolve, plan, check, gate, apply, follow, record."""
