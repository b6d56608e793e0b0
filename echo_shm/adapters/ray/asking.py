"""Questions to the small actors that know who is where: Ray starts them again if they are killed."""

import time
from typing import Any

import ray

from echo_shm.errors import ConnectionClosedError

#: How long an answer may take, how long the actor is asked again while it is away, and the time in between (seconds).
_ANSWER, _AWAY, _NAP = 10.0, 60.0, 0.2


def ask(actor: Any, method: str, *args: Any) -> Any:
    """Calls a method of an actor. If Ray is starting the actor again, that is waited for.

    The method may be called twice.

    Raises:
        ConnectionClosedError: The actor is gone for good, as its owner is; or it is away for long.
        Exception: What the method raised.

    """
    started = time.monotonic()
    while True:
        if not ray.is_initialized():  # a call would connect this process to any cluster that it finds
            raise ConnectionClosedError("Ray has ended in this process")
        try:
            return ray.get(getattr(actor, method).remote(*args), timeout=_ANSWER)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.ActorDiedError:
            raise ConnectionClosedError("its owner has closed it, or has ended") from None
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            if time.monotonic() - started > _AWAY:
                raise ConnectionClosedError(f"its actor does not answer: {error}") from None
            time.sleep(_NAP)
