"""Endpoints below /nodes/{node}/qemu/{vmid} and /nodes/{node}/lxc/{vmid}."""
