"""Samples that are whole trajectories."""
