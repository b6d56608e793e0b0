"""``echo-shm demo``."""
