"""A package whose modules are loaded when one of their names is used."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names(package: str, modules: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__`` (PEP 562).

    What a module defines says afterwards that it is the package's: no message or pickle names a file that may move.

    Args:
        package: Its ``__name__``. It has an ``__all__`` when the first name is asked for.
        modules: For each module below it, its public names.

    """
    homes = {name: module for module, its_names in modules.items() for name in its_names}

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = f"{package}.{homes[name]}"
        value = getattr(importlib.import_module(home), name)
        if value.__module__ == home:
            value.__module__ = package
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        there = vars(sys.modules[package])
        return sorted({*there, *there["__all__"]})

    return __getattr__, __dir__
