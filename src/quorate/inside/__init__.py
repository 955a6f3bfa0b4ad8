"""Reaching into a guest: by the QEMU agent, by pct on its node over SSH, or by SSH to the guest itself."""
