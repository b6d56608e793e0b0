"""What an adapter says when its framework is not installed."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(adapter: str, framework: str, *packages: str, extra: str = "") -> Iterator[None]:
    """The imports of an adapter: if one fails because a package is not there, the error says what to install.

    What a broken package raises comes as it is.

    Args:
        adapter: The module's name, below ``echo_shm.adapters``.
        framework: Its framework, as people call it.
        packages: The top-level packages that the extra brings.
        extra: The extra, if its name is not the adapter's.

    Raises:
        ModuleNotFoundError: One of these packages is not there. ``name`` is the package.

    """
    extra = extra or adapter
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise ModuleNotFoundError(
            f"echo_shm.adapters.{adapter} needs {framework}: {error.name!r} is not there: "
            f"pip install 'echo-shm[{extra}]'",
            name=error.name,
        ) from None
