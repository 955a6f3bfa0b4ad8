"""The endpoints, in files named after their API path.

`/cluster/ha/rules` is in `cluster/ha.py`, `/nodes/{node}/apt/update` in `nodes/apt.py`. Guests (`qemu` and `lxc`) share
the folder `guest`; what exists at several levels, such as `firewall` and `tasks`, is at the top. A path without a file
of its own is in the file of its folder: `cluster/cluster.py`, `nodes/node.py`, `guest/guest.py`, `storage/storage.py`.
"""
