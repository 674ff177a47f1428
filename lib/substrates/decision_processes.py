"""Tabular Markov decision processes with several reward tables, and small ones with known structure.

S states, A actions, n agents; agent i's return is J_i(pi) = (1 - gamma) E sum_t gamma^t R_i(s_t, a_t).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class MultiObjectiveMDP:
    """A tabular process with one reward table an agent.

    ``P`` (A, S, S) holds P[a, s, s'], ``R`` (n, S, A) the rewards, ``rho0`` (S,) the distribution of the first state.
    A policy is an integer array (..., S) of actions or a float array (..., S, A) of probabilities; leading axes are a
    batch.

    Raises:
        ValueError: shapes that don't fit, NaN, probabilities that don't sum to 1, a discount outside [0, 1).
    """

    P: np.ndarray
    R: np.ndarray
    gamma: float
    rho0: np.ndarray

    def __post_init__(self) -> None:
        for name in ("P", "R", "rho0"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=float))
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} holds NaN or infinite values: fill them first")
        if self.P.ndim != 3 or self.P.shape[1] != self.P.shape[2] or not self.P.size:
            raise ValueError(f"P must be an [actions, states, states] array, not one of shape {self.P.shape}")
        actions, states, _ = self.P.shape
        if self.R.ndim != 3 or self.R.shape[1:] != (states, actions) or not len(self.R):
            raise ValueError(f"R must be an [agents, {states}, {actions}] array, not one of shape {self.R.shape}")
        if self.rho0.shape != (states,):
            raise ValueError(f"rho0 must have one probability for each of {states} states, not shape {self.rho0.shape}")
        for name, rows in (("every row P[a, s]", self.P), ("rho0", self.rho0)):
            if (rows < 0).any() or (np.abs(rows.sum(axis=-1) - 1) > 1e-8).any():
                raise ValueError(f"{name} must be probabilities that sum to 1: divide by the sums")
        if not 0 <= self.gamma < 1:
            raise ValueError(f"gamma must lie in [0, 1), not {self.gamma}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Agents, states, actions."""
        return self.R.shape

    def scalar_reward(self, weights: np.ndarray) -> np.ndarray:
        """The reward table (S, A) sum_i weights_i R_i."""
        return np.tensordot(weights, self.R, axes=1)

    def optimal_policy(self, reward: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """Actions (S,) that maximise the scalar ``reward`` (S, A), by policy iteration from the actions ``start``.

        Raises:
            ValueError: a reward of another shape, or with NaN.
        """
        _, states, actions = self.shape
        reward = np.asarray(reward, dtype=float)
        if reward.shape != (states, actions) or not np.isfinite(reward).all():
            raise ValueError(f"a scalar reward must be a finite [{states}, {actions}] array, not {reward.shape}")
        everywhere, identity = np.arange(states), np.eye(states)
        policy = reward.argmax(axis=1) if start is None else start
        least_gain = 1e-10 * max(np.abs(reward).max(), 1e-300) / (1 - self.gamma)  # rounding must not turn in circles
        while True:
            value = np.linalg.solve(identity - self.gamma * self.P[policy, everywhere], reward[everywhere, policy])
            gain = reward + self.gamma * (self.P @ value).T
            better = gain.max(axis=1) > gain[everywhere, policy] + least_gain
            if not better.any():
                return policy
            policy = np.where(better, gain.argmax(axis=1), policy)

    def occupancy(self, policy: np.ndarray) -> np.ndarray:
        """Discounted shares of time d(s, a), (..., S, A), that sum to 1.

        Raises:
            ValueError: the array isn't a policy of this process.
        """
        _, states, actions = self.shape
        policy = np.asarray(policy)
        if policy.dtype.kind in "iu":
            if policy.shape[-1:] != (states,) or (policy < 0).any() or (policy >= actions).any():
                raise ValueError(f"a policy of actions needs {states} numbers below {actions}, not {policy.shape}")
            chain, chosen = self.P[policy, np.arange(states)], np.eye(actions)[policy]
        else:
            if policy.shape[-2:] != (states, actions) or not np.allclose(policy.sum(axis=-1), 1):
                raise ValueError(f"a policy must be [{states}, {actions}] probabilities with rows that sum to 1")
            chain, chosen = (policy[..., None, :] @ np.swapaxes(self.P, 0, 1))[..., 0, :], policy
        system = np.eye(states) - self.gamma * np.swapaxes(chain, -1, -2)
        visits = np.linalg.solve(system, np.broadcast_to((1 - self.gamma) * self.rho0, chain.shape[:-1])[..., None])
        return visits * chosen

    def returns(self, policy: np.ndarray) -> np.ndarray:
        """Normalised discounted returns J_i of a policy, or of a batch of them: (..., n)."""
        return np.tensordot(self.occupancy(policy), self.R, axes=((-2, -1), (1, 2)))


def conflict_gridworld(
    size: int, agents: int, rng: np.random.Generator, gamma: float = 0.9, slip: float = 0.1
) -> MultiObjectiveMDP:
    """A square grid with one random goal an agent: R_i(s) = exp(-|s - g_i|_1 / 1.5).

    Five moves (stay, up, down, left, right); with probability ``slip`` a uniformly random one of them is made.

    Raises:
        ValueError: more agents than cells.
    """
    if agents > size * size:
        raise ValueError(f"{agents} agents need as many goals, and a grid of side {size} has only {size * size} cells")
    cells = np.indices((size, size)).reshape(2, -1).T
    moves = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])
    landed = (cells + moves[:, None]).clip(0, size - 1) @ [size, 1]
    P = np.eye(size * size)[landed]
    P = (1 - slip) * P + slip * P.mean(axis=0)
    goals = cells[rng.choice(size * size, agents, replace=False)]
    reward = np.exp(-np.abs(cells - goals[:, None]).sum(axis=-1) / 1.5)
    return MultiObjectiveMDP(P, np.repeat(reward[..., None], 5, axis=2), gamma, np.full(size * size, size**-2.0))


def factory_monitoring(
    factories: int, agents: int, rng: np.random.Generator, gamma: float = 0.95, full_reset: bool = False
) -> MultiObjectiveMDP:
    """The predecessor's process: factories drift through phases 0, 1, 2 (incident) unless the one visitor comes.

    Action f visits factory f, the last action stays home. A visit moves a factory down one phase, and with
    ``full_reset`` from 2 straight to 0; an unvisited one moves up with its own probability in {0.50, ..., 0.79}.
    Agent i pays 1 a visit, and 100 weight_f scale_i for every f of its random subset that is in phase 2 unvisited.
    """
    rise = rng.integers(50, 80, (factories, 2)) / 100
    weight = rng.integers(2, factories + 1, factories) / 2
    scale = rng.integers(1, 4 * factories + 4, agents) / 4
    codes = rng.integers(1, 2**factories, agents)
    members = codes[:, None] >> np.arange(factories) & 1
    alone = np.zeros((factories, 3, 3))
    alone[:, [0, 1], [1, 2]], alone[:, [0, 1], [0, 1]], alone[:, 2, 2] = rise, 1 - rise, 1
    visited = np.eye(3)[[0, 0, 0 if full_reset else 1]]
    phases = np.indices((3,) * factories).reshape(factories, -1)  # (factories, states)
    here = np.eye(factories + 1, factories, dtype=bool)  # (actions, factories)
    each = np.where(here[..., None, None], visited, alone)  # (actions, factories, 3, 3)
    moves = each[:, np.arange(factories)[:, None, None], phases[:, :, None], phases[:, None, :]]
    incident = (phases.T[:, None] == 2) & ~here  # (states, actions, factories)
    harm = 100 * scale[:, None] * members * weight
    R = -np.einsum("saf,nf->nsa", incident, harm) - here.any(axis=1)
    return MultiObjectiveMDP(moves.prod(axis=1), R, gamma, np.full(3**factories, 3.0**-factories))


def combination_lock(length: int, rng: np.random.Generator, gamma: float = 0.9) -> MultiObjectiveMDP:
    """A chain of ``length`` states where one secret action of two advances and the other leads back to the start.

    Agent 0 is rewarded in the last state, which is left for the start by any action; agent 1 in the first.
    """
    right, here = rng.integers(2, size=length), np.arange(length)
    P = np.zeros((2, length, length))
    P[1 - right, here, 0] = 1
    P[right, here, (here + 1) % length] = 1
    P[:, -1] = np.eye(length)[0]
    R = np.zeros((2, length, 2))
    R[0, -1], R[1, 0] = 1, 1
    return MultiObjectiveMDP(P, R, gamma, np.eye(length)[0])
