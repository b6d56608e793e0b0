"""Training: actors in processes of their own, a learner, evaluation and checkpoints."""
