"""What a module of agents or of training says when a package that it needs is not installed."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(what: str, package: str) -> Iterator[None]:
    """An import: if it fails because the package is not there, the error says what to install.

    Raises:
        ModuleNotFoundError: The package is not there. ``name`` is the package. What a broken package raises comes as
            it is.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"agents that plan need {what}: pip install 'echo-shm[planning-agents]'", name=package
        ) from None
