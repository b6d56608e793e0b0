"""``echo-shm demo``: environments in worker processes feed a learner."""
