"""An oracle: random calls at a real pipeline, and what happened to the simulated world."""
