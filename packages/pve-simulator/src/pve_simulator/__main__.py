"""`python -m pve_simulator` is `pve-simulator`."""

import sys

from pve_simulator.command import main

sys.exit(main())
