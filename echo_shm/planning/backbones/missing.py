"""What a backbone says when a package that it needs is not installed."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(what: str, extra: str, *packages: str) -> Iterator[None]:
    """The imports of a backbone: if one fails because a package is not there, the error says what to install.

    Args:
        what: What it needs, as people call it.
        extra: The extra that brings it.
        packages: The top-level packages that the extra brings.

    Raises:
        ModuleNotFoundError: One of these packages is not there. ``name`` is the package.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:  # of a broken package: as it is
            raise
        raise ModuleNotFoundError(
            f"this backbone needs {what}: {error.name!r} is not there: pip install 'echo-shm[{extra}]'", name=error.name
        ) from None
