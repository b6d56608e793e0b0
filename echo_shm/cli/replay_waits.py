"""Who waits in a replay, for what. Writers are named by their processes."""

from collections.abc import Iterator

from echo_shm.cli import replay_figures
from echo_shm.cli.ring_waits import RingWait, RingWaits
from echo_shm.ring.lockfile import INBOX
from echo_shm.ring.metrics import Owner


def kind(owner: Owner) -> str:
    """What is attached to an inbox, in one word."""
    return "bridge" if owner.is_bridge else "writer" if owner.role == "producer" else "replay"


class ReplayWaits:
    """Remembers since when writers wait, from one reading to the next.

    Args:
        least: Waits of writers that are shorter are left out (seconds).

    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._inbox: RingWaits | None = None
        self._uuid = b""
        #: The latest wait of writers for room in the inbox, or None.
        self.writers: RingWait | None = None

    def look(self, reading: replay_figures.Reading) -> None:
        """Finds which writers wait for room in the inbox, and since when."""
        seen = reading.seen
        inbox = next((ring.segment for ring in seen.rings if ring.name == seen.name + INBOX), None)
        if inbox is None:
            self._inbox, self.writers = None, None
            return
        if self._inbox is None or inbox.uuid != self._uuid:
            self._inbox, self._uuid = RingWaits(inbox, kind), inbox.uuid
        # Only writers: the replay itself sleeps in a way of its own.
        found = self._inbox.look(reading.rings[INBOX].owners, 0, closed=False, least=self._least)
        wait = next((one for one in found if one.of_producers), None)
        said = next((one.what for one in seen.waiting if one.who == replay_figures.WRITERS), None)
        what = said or seen.waits or f"process {seen.pid} takes no steps out of their ring"
        self.writers = None if wait is None else wait._replace(what=what)

    def lines(self, reading: replay_figures.Reading) -> Iterator[str]:
        """Who waits for what, in words."""
        if self.writers is not None:
            yield str(self.writers)
        for wait in replay_figures.waits(reading):
            if self.writers is None or not wait.startswith(f"{replay_figures.WRITERS} "):
                yield wait
