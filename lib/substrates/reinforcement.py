"""Policy optimisation as a black box: a scalar reward goes in, a policy comes out, with its returns if it samples.

Exact policy iteration, tabular Q-learning, and stable-baselines3's PPO on a gymnasium environment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lib.substrates.decision_processes import MultiObjectiveMDP
from lib.substrates.names import check_name

ORACLES = ("policy_iteration", "q_learning", "ppo")
Answer = np.ndarray | tuple[np.ndarray, np.ndarray]
Oracle = Callable[[np.ndarray], Answer]  # scalar reward (S, A) -> policy, or policy and its n returns


class PolicyIteration:
    """The exact black box: policy iteration that starts from its last answer."""

    def __init__(self, mdp: MultiObjectiveMDP) -> None:
        self.mdp = mdp
        self.policy: np.ndarray | None = None

    def __call__(self, reward: np.ndarray) -> np.ndarray:
        """Actions (S,) that maximise ``reward`` (S, A)."""
        self.policy = self.mdp.optimal_policy(reward, self.policy)
        return self.policy


@dataclass
class Simulator:
    """Draws transitions of ``mdp``, which learners see only through it; ``transitions`` counts them.

    ``reward`` (S, A) is the scalar reward of the moment.
    """

    mdp: MultiObjectiveMDP
    rng: np.random.Generator
    transitions: int = 0
    reward: np.ndarray = field(init=False, repr=False)
    _cumulative: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.reward = np.zeros(self.mdp.shape[1:])
        self._cumulative = self.mdp.P.cumsum(axis=-1)
        self._cumulative[..., -1] = 1.0

    def start(self, count: int) -> np.ndarray:
        """First states (count,)."""
        return self.rng.choice(len(self.mdp.rho0), size=count, p=self.mdp.rho0)

    def step(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Next states (b,) after ``actions`` (b,) in ``states`` (b,)."""
        self.transitions += len(states)
        return (self.rng.random((len(states), 1)) >= self._cumulative[actions, states]).sum(axis=1)

    def act(self, policy: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Actions (b,) drawn from ``policy`` (S,) or (S, A)."""
        if policy.ndim == 1:
            return policy[states]
        cumulative = policy[states].cumsum(axis=1)
        return (self.rng.random((len(states), 1)) * cumulative[:, -1:] >= cumulative).sum(axis=1)

    def rollout_returns(self, policy: np.ndarray, episodes: int = 1000, horizon: int = 60) -> np.ndarray:
        """Mean returns (n,) over ``episodes``, cut after ``horizon`` steps and rescaled to their total weight."""
        states, total = self.start(episodes), np.zeros(self.mdp.shape[0])
        discounts = self.mdp.gamma ** np.arange(horizon)
        for discount in discounts:
            actions = self.act(policy, states)
            total += discount * self.mdp.R[:, states, actions].mean(axis=1)
            states = self.step(states, actions)
        return total / discounts.sum()


class QLearning:
    """A black box that only samples: Q-learning in many copies of the process at once, then rollouts.

    A call takes ``transitions`` environment steps and starts from the table that the last call left behind.
    """

    def __init__(
        self, mdp: MultiObjectiveMDP, rng: np.random.Generator, transitions: int = 20_000, environments: int = 128
    ) -> None:
        self.simulator, self.environments = Simulator(mdp, rng), environments
        self.steps = max(1, transitions // environments)
        self.table = np.zeros(mdp.shape[1:])

    def __call__(self, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Greedy actions (S,) after learning, and their returns (n,) in 1000 rollouts."""
        mdp, rng, table = self.simulator.mdp, self.simulator.rng, self.table
        cells, seen, states = table.size, np.zeros(table.size), self.simulator.start(self.environments)
        for _ in range(self.steps):
            actions = table[states].argmax(axis=1)
            explore = rng.random(self.environments) < 0.3
            actions[explore] = rng.integers(table.shape[1], size=int(explore.sum()))
            following = self.simulator.step(states, actions)
            cell = states * table.shape[1] + actions
            goal = reward[states, actions] + mdp.gamma * table[following].max(axis=1)
            count = np.bincount(cell, minlength=cells)
            mean = np.bincount(cell, goal, cells) / count.clip(min=1)
            seen += count
            rate = count / (count + (1 - mdp.gamma) * (seen - count) + 1)
            table += (rate * (mean - table.ravel())).reshape(table.shape)
            restart = rng.random(self.environments) < 1 - mdp.gamma  # episodes end as the discount says
            states = np.where(restart, self.simulator.start(self.environments), following)
        policy = table.argmax(axis=1)
        return policy, self.simulator.rollout_returns(policy)


class PPO:
    """A deep black box: stable-baselines3's PPO on the process as a gymnasium environment, then rollouts.

    The network sees the state one-hot. A call trains a new network for about ``transitions`` environment steps, whole
    batches of 8 environments times 128 steps: one trained for another reward explores too little.
    """

    def __init__(self, mdp: MultiObjectiveMDP, rng: np.random.Generator, transitions: int = 8192) -> None:
        from stable_baselines3.common.env_util import make_vec_env

        self.simulator, self.transitions = Simulator(mdp, rng), transitions
        self.environments = make_vec_env(lambda: gymnasium_environment(self.simulator), n_envs=8)

    def __call__(self, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The most probable actions (S,) after learning, and their returns (n,) in 1000 rollouts."""
        from stable_baselines3 import PPO as Learner

        mdp = self.simulator.mdp
        self.simulator.reward = reward / np.abs(reward).max().clip(min=1e-9)
        learner = Learner(
            "MlpPolicy",
            self.environments,
            learning_rate=3e-3,
            n_steps=128,
            batch_size=512,
            gamma=mdp.gamma,
            gae_lambda=0.9,
            ent_coef=1e-2,
            policy_kwargs={"net_arch": [32]},
            seed=int(self.simulator.rng.integers(2**31)),
            device="cpu",
        ).learn(self.transitions)
        policy, _ = learner.predict(np.eye(mdp.shape[1], dtype=np.float32), deterministic=True)
        return policy, self.simulator.rollout_returns(policy)


def gymnasium_environment(simulator: Simulator, horizon: int = 40) -> Any:
    """The process as a gymnasium environment: one-hot states, ``simulator.reward``, episodes cut at ``horizon``."""
    import gymnasium

    _, states, actions = simulator.mdp.shape

    class Tabular(gymnasium.Env[np.ndarray, Any]):
        observation_space = gymnasium.spaces.Box(0, 1, (states,), np.float32)
        action_space = gymnasium.spaces.Discrete(actions)
        one_hot = np.eye(states, dtype=np.float32)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            super().reset(seed=seed)
            self.state = simulator.start(1)
            return self.one_hot[self.state[0]], {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
            gained = float(simulator.reward[self.state[0], action])
            self.state = simulator.step(self.state, np.array([action]))
            return self.one_hot[self.state[0]], gained, False, False, {}

    return gymnasium.wrappers.TimeLimit(Tabular(), horizon)


def make_oracle(name: str, mdp: MultiObjectiveMDP, rng: np.random.Generator, transitions: int = 20_000) -> Oracle:
    """The black box ``name``, one of ``ORACLES``; learners take ``transitions`` environment steps a call.

    Raises:
        ValueError: unknown name.
    """
    if check_name(name, ORACLES, "oracle") == "policy_iteration":
        return PolicyIteration(mdp)
    return (QLearning if name == "q_learning" else PPO)(mdp, rng, transitions)
