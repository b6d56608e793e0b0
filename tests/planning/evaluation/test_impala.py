"""The program of IMPALA: what an evaluation starts, and what it counts."""

import asyncio
import json
import math
import os
import sys

import numpy as np
from harness.packages import need

need("gymnasium")

from echo_shm.examples import impala as example  # noqa: E402
from echo_shm.planning.evaluation import impala, tasks  # noqa: E402
from echo_shm.planning.evaluation.configs import EvaluationConfig  # noqa: E402


def test_a_return_of_nothing_is_no_success():
    """Where any reward is one, the return of a success is the least number above 0."""
    returns = example.rollout_of(4)["episode_return"]
    returns[0, :2] = 0.0, 1e-3
    returns[1:] = returns[0, 2:] = math.nan
    assert np.sum(returns >= math.nextafter(0.0, 1.0)) == 1


def test_evaluations_of_runs_share_no_layouts():
    """Each environment of an evaluation has the seed after that of the one before."""
    seeds = [example.evaluation_seed(run, last) + i for run in range(100) for last in (False, True) for i in range(16)]
    assert len(set(seeds)) == len(seeds)
    assert max(example.evaluation_seed(10**9, True), *seeds) < 2**31


def test_what_an_evaluation_starts(tmp_path, monkeypatch):
    """A program that knows its parent, with PPO's constant learning rate; a file of another start is not its."""
    program = tmp_path / "python"
    write = 'for last; do :; done\necho "$SAID" > "${last#*=}"\n'
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> "$0.told"\n{write}')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    last = {"success_rate": 0.5, "avg_reward": 1.0, "episodes": 4}
    said = {"timesteps": 9, "successes": 2, "seconds": 1.0, "history": [], "last": last}
    monkeypatch.setenv("SAID", json.dumps(said))
    task, at = tasks.find("cartpole"), tmp_path / "at"
    for _ in range(2):
        found = asyncio.run(impala.learn_impala(EvaluationConfig(), task, 3, at))
        assert (found.steps, found.success_rate) == (9, 0.5)
    told = (tmp_path / "python.told").read_text().splitlines()
    assert told[:3] == ["-m", "echo_shm.planning.evaluation.impala", str(os.getpid())]
    assert "--no-anneal" in told
    assert len(list(at.iterdir())) == 2
