"""What a forkserver imports once, so that each worker forked from it need not. Nothing else imports this module.

It leaves out the main module. A random generator that the main module makes when it is imported would be the same in
every worker.
"""

import os

import numpy.random  # numpy imports it when it is first used

import echo_shm.workers.entry  # noqa: F401  # so that it is in sys.modules

_forkserver = os.getpid()


def _begin_worker() -> None:
    """Gives a process that the forkserver has forked random numbers of its own. Python does that for ``random``."""
    if os.getppid() == _forkserver:
        numpy.random.seed()


os.register_at_fork(after_in_child=_begin_worker)
