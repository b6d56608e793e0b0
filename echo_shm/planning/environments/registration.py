"""Registers the environments with Gymnasium, when it is imported.

``gymnasium.make("echo_shm.planning.environments.registration:echo_shm/TextWorld-v0")`` imports it by itself; after
``import echo_shm.planning.environments.registration``, ``gymnasium.make("echo_shm/TextWorld-v0", rooms=6)`` is enough.
An environment's module, and what it needs, is imported when it is made.
"""

from echo_shm.missing import needs

with needs("planning.environments.registration", "Gymnasium", "gymnasium", extra="planning-environments"):
    import gymnasium

#: For each id, where its class is.
IDS = {
    "echo_shm/TextWorld-v0": "text_world:TextWorld",
    "echo_shm/TextWorldGames-v0": "textworld_games:TextWorldGames",
    "echo_shm/Alfworld-v0": "alfworld:Alfworld",
    "echo_shm/Shop-v0": "shop:Shop",
    "echo_shm/CodeReasoning-v0": "code:CodeReasoning",
    "echo_shm/Arc-v0": "arc:Arc",
    "echo_shm/MiniGrid-v0": "minigrid:MiniGrid",
    # EchoRL's names of its tasks.
    "echo_shm/alfworld-v0": "alfworld:ALFWorldEnvironment",
    "echo_shm/webshop-v0": "webshop:WebShopEnvironment",
    "echo_shm/cruxeval-v0": "cruxeval:CRUXEvalEnvironment",
    "echo_shm/arc-v0": "arc:ARCEnvironment",
    "echo_shm/minigrid-v0": "minigrid:MiniGridEnvironment",
}

for _id, _place in IDS.items():
    if _id not in gymnasium.registry:
        gymnasium.register(_id, f"echo_shm.planning.environments.{_place}")
