"""Evaluation: agents on tasks, with several seeds, and what can be said of their differences."""
