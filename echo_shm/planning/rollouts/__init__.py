"""Rollouts of language policies: KV caches in blocks, a scheduler, an engine, worker processes with environments."""
