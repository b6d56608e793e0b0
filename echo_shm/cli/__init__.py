"""The command line, ``echo-shm``."""
