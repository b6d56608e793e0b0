"""DQN in one file, as CleanRL writes it. A corridor of five places is played, whose right end pays."""

import random

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer


class Corridor(gym.Env):
    """One step to the left or to the right; the left end is a wall."""

    observation_space, action_space = gym.spaces.Box(0, 1, (5,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Begins at the left end."""
        self.place = 0
        return np.eye(5, dtype=np.float32)[0], {}

    def step(self, action):
        """Moves."""
        self.place = max(0, self.place + (1 if action else -1))
        return np.eye(5, dtype=np.float32)[self.place], float(self.place == 4) - 0.01, self.place == 4, False, {}


random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
thunks = [lambda: gym.wrappers.TimeLimit(Corridor(), 50)] * 2
envs = gym.vector.SyncVectorEnv(thunks, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
q_network, target_network = (
    torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)) for _ in "ab"
)
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=3e-3)
rb = ReplayBuffer(
    2000, envs.single_observation_space, envs.single_action_space, torch.device("cpu"), n_envs=2,
    handle_timeout_termination=False,
)  # fmt: skip
returns, running = [], np.zeros(2)

obs, _ = envs.reset(seed=1)
for global_step in range(1500):
    if random.random() < max(1 - global_step / 800, 0.05):
        actions = np.array([envs.single_action_space.sample() for _ in range(2)])
    else:
        actions = torch.argmax(q_network(torch.Tensor(obs)), dim=1).numpy()
    next_obs, rewards, terminations, truncations, infos = envs.step(actions)
    running += rewards
    real_next_obs = next_obs.copy()
    for idx in np.flatnonzero(terminations | truncations):
        real_next_obs[idx] = infos["final_obs"][idx]
        returns.append(running[idx])
        running[idx] = 0
    rb.add(obs, real_next_obs, actions, rewards, terminations, infos)
    obs = next_obs
    if global_step > 100:
        data = rb.sample(64)
        with torch.no_grad():
            target_max, _ = target_network(data.next_observations).max(dim=1)
            td_target = data.rewards.flatten() + 0.9 * target_max * (1 - data.dones.flatten())
        old_val = q_network(data.observations).gather(1, data.actions).squeeze()
        loss = torch.nn.functional.mse_loss(td_target, old_val)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if global_step % 50 == 0:
            target_network.load_state_dict(q_network.state_dict())
envs.close()
