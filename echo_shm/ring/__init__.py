"""The ring: its segment, who is attached to it, and what a learner takes from it."""
