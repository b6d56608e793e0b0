"""Producers: they attach to a segment, and write samples into its ring."""

import functools
from typing import NoReturn

from echo_shm._core import lib
from echo_shm.errors import ConnectionClosedError
from echo_shm.ring import producers
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.handle import Handle, attach_segment
from echo_shm.sending import SampleWriter
from echo_shm.spec import Tree
from echo_shm.timeouts import check_timeout
from echo_shm.weights import Subscriber
from echo_shm.weights.subscription import await_publisher


class ShmClient(SampleWriter):
    """A producer. It attaches to a segment on this machine and writes samples into its ring.

    Threads may share a client. A forked child must not use its parent's client: it attaches again.

    Args:
        handle_or_name: ``server.handle``, or the segment's name.
        example: Example pytree. It must have the segment's structure, dtypes and shapes. It is only needed to attach
            by name to a segment whose trees have node types beyond dict, OrderedDict, list, tuple and None.
        learner_grace: How many seconds to wait for a new learner if the ring is full and no learner is alive. After
            that, ConnectionClosedError is raised. None: no limit.
        prefault: As for :class:`Server`.

    Raises:
        SegmentError: There is no such segment, or it cannot be trusted or joined.
        SpecMismatchError: The example does not fit the segment. The message names the first leaf that differs.
        ConnectionClosedError: The ring is closed already, or this worker was stopped.

    """

    def __init__(
        self,
        handle_or_name: Handle | str,
        example: Tree = None,
        *,
        learner_grace: float | None = 30.0,
        prefault: bool = True,
    ) -> None:
        check_timeout(learner_grace, label="learner_grace")
        producers.refuse_if_stopped(f"ring {getattr(handle_or_name, 'name', handle_or_name)!r}")
        segment = attach_segment(handle_or_name, example, caller="ShmClient")
        super().__init__(Attachment(segment, lib.ES_ROLE_PRODUCER, prefault=prefault), learner_grace)
        producers.add(self._attachment)
        if self.ring_closed:
            self._attachment.detach()
            raise ConnectionClosedError(f"{self._attachment.what} was closed by the learner that created it")

    @property
    def name(self) -> str:
        """The segment's name."""
        return self._attachment.segment.name

    @property
    def ring_closed(self) -> bool:
        """Whether the segment's creator has closed the ring. After that, no sample can be sent."""
        return self._attachment.ring_closed()

    def subscriber(self, example: Tree = None, timeout: float | None = 0.0) -> Subscriber:
        """Subscribes to the weights that the learner publishes: see :meth:`Server.publisher`.

        Args:
            example: As for :class:`Subscriber`.
            timeout: How many seconds to wait for a learner that has no publisher yet. None: no limit.

        Raises:
            SegmentError, SpecMismatchError: As for :class:`Subscriber`. The learner has no publisher.
            ValueError: ``timeout`` is not a number of seconds.

        """
        subscribe = functools.partial(Subscriber._beside, self.name, self._attachment.segment.uuid, example)
        return await_publisher(subscribe, timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once: a sample is committed when :meth:`send` returns. For code that has either client."""

    def close(self) -> None:
        """Leaves the ring. Idempotent. Samples that were sent stay in the ring.

        Open reservations are aborted, those of other threads too. Other producers may get their slots at once, so
        no thread may still write to one.
        """
        self._attachment.detach()

    def __repr__(self) -> str:
        state = "open" if self._attachment.attached and not self.ring_closed else "closed"
        return f"<ShmClient of {self.name!r}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ShmClient belongs to its process: pickle server.handle, and attach there: ShmClient(handle)")

    def __enter__(self) -> "ShmClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
