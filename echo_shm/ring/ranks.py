"""The ranks of a group that takes batches out of a replay: each rank's ring has one learner at a time.

Whoever has a rank holds a byte of its ring's lock file. The kernel lets go of it when that process ends.
"""

from echo_shm._core import lib
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.lockfile import CREATOR_BYTE, LockFile, holder_of

#: The byte of a rank. It is a producer's in other rings; those of batches have too few producers to use it.
_RANK_BYTE = CREATOR_BYTE - 1


def take(lockfile: LockFile) -> bool:
    """Makes this process the rank's. False: another process, or another part of this one, has it."""
    return lockfile.try_lock(_RANK_BYTE)


def leave(lockfile: LockFile) -> None:
    """Lets go of the rank."""
    lib.es_segment_locks_drop(lockfile.locks, _RANK_BYTE)


def taken_by(lockfile: LockFile) -> str:
    """Which process has the rank, in words."""
    return holder_of(lockfile, _RANK_BYTE)


def why_taken(replay: str, one: BatchRing, who: str) -> str:
    """What to tell a learner whose rank is taken."""
    return (
        f"rank {one.rank} of {one.world_size} in replay {replay!r} is taken: {who} iterates over batches of {one.n} "
        "items as that rank. Give each process of the group a rank of its own"
    )
