"""Continues durable runs: one worker per run, every step an ordinary change through the pipeline."""
