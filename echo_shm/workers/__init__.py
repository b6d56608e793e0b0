"""Worker processes that a learner starts."""
