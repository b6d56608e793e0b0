"""Agents that plan: an encoder of trajectories, policies that follow a plan, and how they learn."""
