"""What the demos share: their arguments, how they end, and where pictures go."""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from echo_shm.errors import EchoShmError
from echo_shm.missing import needs


def arguments(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The arguments that all demos have.

    Args:
        name: The demo's.
        doc: Its docstring.

    """
    parser = argparse.ArgumentParser(
        prog=f"python -m echo_shm.planning.examples.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes: a second or two")
    parser.add_argument(
        "--plot", nargs="?", const=f"{name}.png", metavar="FILE", help=f"draw it into this file ({name}.png)"
    )
    return parser


def run(demo: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Runs a demo to its end.

    Returns:
        The exit status: what the demo returns; 130 after Ctrl-C; 2 if a package is missing, or something cannot be
        done that was asked for, and 1 if it failed meanwhile, which is printed.

    """
    args = parser.parse_args(argv)
    try:
        if args.plot:
            _figures()  # not after a minute of work
        return demo(args)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except EchoShmError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _figures() -> Any:
    with needs("planning.examples", "matplotlib for --plot", "matplotlib", extra="planning-examples"):
        importlib.import_module("matplotlib")
    return importlib.import_module("matplotlib.figure").Figure


@contextlib.contextmanager
def picture(path: str, title: str, panels: int = 2) -> Iterator[Any]:
    """Panels side by side, which are written to the file at the end of the block. No window is opened.

    Yields:
        Axes of matplotlib, one a panel.

    """
    figure = _figures()(figsize=(5.2 * panels, 4.2), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    yield axes
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        if one.get_legend_handles_labels()[0]:
            one.legend(frameon=False)
    figure.savefig(path, dpi=110)
    print(f"drawn: {Path(path)}")
