"""Trajectories of every kind that is drawn in its own way."""

import math
from dataclasses import replace

import torch

from orbitlens.flows.examples import example_system
from orbitlens.flows.system import Geometry
from orbitlens.trajectory import Status, Trajectory


def trajectory(tokens, *, log_scale=None, status=Status.FINISHED):
    n_steps = len(tokens)
    return Trajectory(
        times=torch.linspace(0, 3, n_steps, dtype=torch.float64),
        unit_tokens=tokens,
        log_scale=torch.zeros(n_steps, dtype=torch.float64) if log_scale is None else log_scale,
        status=status,
        status_time=1.0,
        n_clusters=1,
        n_evaluations=1,
        n_steps=n_steps,
        events=(),
    )


def cloud(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def turning(generator, n_steps=12, n_tokens=9):
    """Return tokens in the plane that turn by a right angle and keep apart."""
    angle = torch.linspace(0, math.pi / 2, n_steps, dtype=torch.float64)
    turn = torch.stack(
        [torch.stack([angle.cos(), angle.sin()], -1), torch.stack([-angle.sin(), angle.cos()], -1)],
        dim=1,
    )
    return cloud(generator, n_tokens, 2) @ turn


def gathering(generator):
    """Return tokens on the sphere that gather in clusters of 4 and 2, and one alone."""
    ends = torch.eye(3, dtype=torch.float64)[[0, 0, 0, 0, 1, 1, 2]]
    start = cloud(generator, 7, 3)
    shares = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None, None]
    mixed = (1 - shares) * start + shares * ends
    return mixed / mixed.norm(dim=-1, keepdim=True)


def on_sphere(beta=2.0):
    return replace(example_system("aligned", d_model=3), geometry=Geometry.SPHERE, beta=beta)


def runaway(generator, d=2, rate=400.0):
    """Return tokens of fixed direction whose size is beyond every float64 at the end."""
    start = cloud(generator, 6, d)
    unit = (start / start.norm()).expand(12, 6, d).clone()
    return trajectory(
        unit, log_scale=torch.linspace(0, 3, 12).double() * rate, status=Status.DIVERGED
    )


def shapes(generator):
    """Return one trajectory of every kind that is drawn in its own way."""
    yield "globe", trajectory(gathering(generator)), on_sphere()
    yield "runaway", runaway(generator, d=5), None
    yield "runaway on a line", runaway(generator, d=1), None
    yield "one token", trajectory(cloud(generator, 12, 1, 3)), None
    yield "one moment", trajectory(cloud(generator, 1, 4, 3)), None
    yield "one point", trajectory(torch.ones(12, 3, 2, dtype=torch.float64)), None
