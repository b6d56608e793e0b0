"""Environments in which agents plan, for Gymnasium.

Text worlds, ALFWorld, a web shop, questions about code, ARC and MiniGrid. ``ALFWorldEnvironment`` and the like are
EchoRL's names. A module, and the package that it needs, is imported when one of its names is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echo_shm.planning.environments.alfworld import Alfworld, ALFWorldEnvironment
    from echo_shm.planning.environments.arc import Arc, ARCEnvironment
    from echo_shm.planning.environments.code import CodeReasoning
    from echo_shm.planning.environments.configs import (
        ALFWorldConfig,
        AlfworldConfig,
        ARCConfig,
        ArcConfig,
        CodeConfig,
        CRUXEvalConfig,
        EnvironmentConfig,
        MiniGridConfig,
        ShopConfig,
        TextWorldConfig,
        TextWorldGamesConfig,
        WebShopConfig,
    )
    from echo_shm.planning.environments.cruxeval import CRUXEvalEnvironment
    from echo_shm.planning.environments.minigrid import MiniGrid, MiniGridEnvironment
    from echo_shm.planning.environments.shop import Shop
    from echo_shm.planning.environments.shop_server import ShopServer
    from echo_shm.planning.environments.text_world import TextWorld
    from echo_shm.planning.environments.textworld_games import TextWorldGames
    from echo_shm.planning.environments.vocabulary import Vocabulary
    from echo_shm.planning.environments.webshop import WebShopEnvironment

#: For each module, its public names.
_NAMES = {
    "alfworld": ("ALFWorldEnvironment", "Alfworld"),
    "arc": ("ARCEnvironment", "Arc"),
    "code": ("CodeReasoning",),
    "configs": (
        "ALFWorldConfig",
        "ARCConfig",
        "AlfworldConfig",
        "ArcConfig",
        "CRUXEvalConfig",
        "CodeConfig",
        "EnvironmentConfig",
        "MiniGridConfig",
        "ShopConfig",
        "TextWorldConfig",
        "TextWorldGamesConfig",
        "WebShopConfig",
    ),
    "cruxeval": ("CRUXEvalEnvironment",),
    "minigrid": ("MiniGrid", "MiniGridEnvironment"),
    "shop": ("Shop",),
    "shop_server": ("ShopServer",),
    "text_world": ("TextWorld",),
    "textworld_games": ("TextWorldGames",),
    "vocabulary": ("Vocabulary",),
    "webshop": ("WebShopEnvironment",),
}

__all__ = [
    "ALFWorldConfig",
    "ALFWorldEnvironment",
    "ARCConfig",
    "ARCEnvironment",
    "Alfworld",
    "AlfworldConfig",
    "Arc",
    "ArcConfig",
    "CRUXEvalConfig",
    "CRUXEvalEnvironment",
    "CodeConfig",
    "CodeReasoning",
    "EnvironmentConfig",
    "MiniGrid",
    "MiniGridConfig",
    "MiniGridEnvironment",
    "Shop",
    "ShopConfig",
    "ShopServer",
    "TextWorld",
    "TextWorldConfig",
    "TextWorldGames",
    "TextWorldGamesConfig",
    "Vocabulary",
    "WebShopConfig",
    "WebShopEnvironment",
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
