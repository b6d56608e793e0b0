"""The ring: its segment, the owners attached to it, and the batches that a learner takes from it."""
