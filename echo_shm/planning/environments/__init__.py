"""Environments in which agents plan, for Gymnasium.

Text worlds, ALFWorld, a web shop, questions about code, ARC and MiniGrid. A module, and the package that it needs, is
imported when one of its names is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echo_shm.planning.environments.alfworld import Alfworld
    from echo_shm.planning.environments.arc import Arc
    from echo_shm.planning.environments.code import CodeReasoning
    from echo_shm.planning.environments.configs import (
        AlfworldConfig,
        ArcConfig,
        CodeConfig,
        EnvironmentConfig,
        MiniGridConfig,
        ShopConfig,
        TextWorldConfig,
        TextWorldGamesConfig,
    )
    from echo_shm.planning.environments.minigrid import MiniGrid
    from echo_shm.planning.environments.shop import Shop
    from echo_shm.planning.environments.shop_server import ShopServer
    from echo_shm.planning.environments.text_world import TextWorld
    from echo_shm.planning.environments.textworld_games import TextWorldGames
    from echo_shm.planning.environments.vocabulary import Vocabulary

#: For each module, its public names.
_NAMES = {
    "alfworld": ("Alfworld",),
    "arc": ("Arc",),
    "code": ("CodeReasoning",),
    "configs": (
        "AlfworldConfig",
        "ArcConfig",
        "CodeConfig",
        "EnvironmentConfig",
        "MiniGridConfig",
        "ShopConfig",
        "TextWorldConfig",
        "TextWorldGamesConfig",
    ),
    "minigrid": ("MiniGrid",),
    "shop": ("Shop",),
    "shop_server": ("ShopServer",),
    "text_world": ("TextWorld",),
    "textworld_games": ("TextWorldGames",),
    "vocabulary": ("Vocabulary",),
}

__all__ = [
    "Alfworld",
    "AlfworldConfig",
    "Arc",
    "ArcConfig",
    "CodeConfig",
    "CodeReasoning",
    "EnvironmentConfig",
    "MiniGrid",
    "MiniGridConfig",
    "Shop",
    "ShopConfig",
    "ShopServer",
    "TextWorld",
    "TextWorldConfig",
    "TextWorldGames",
    "TextWorldGamesConfig",
    "Vocabulary",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            value.__module__ = __name__  # no message or pickle names a file that may move
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
