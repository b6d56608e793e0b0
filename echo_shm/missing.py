"""What a module says when a package that it needs is not installed."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(module: str, framework: str, *packages: str, extra: str = "") -> Iterator[None]:
    """The imports of a module: if one fails because a package is not there, the error says what to install.

    What a broken package raises comes as it is.

    Args:
        module: Its name, below ``echo_shm``: ``"adapters.sb3"``.
        framework: What it needs, as people call it.
        packages: The top-level packages that the extra brings.
        extra: The extra, if its name is not the last part of the module's.

    Raises:
        ModuleNotFoundError: One of these packages is not there. ``name`` is the package.

    """
    extra = extra or module.rpartition(".")[2]
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise ModuleNotFoundError(
            f"echo_shm.{module} needs {framework}: {error.name!r} is not there: pip install 'echo-shm[{extra}]'",
            name=error.name,
        ) from None
