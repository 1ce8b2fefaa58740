"""Sounds as small pictures: bands of frequency from top to bottom, time from left to right.

Enters: clips of sound, or a generator for made ones. Leaves: log-power spectrograms pooled to a few
bands and columns, each with mean 0 and deviation 1. The made sounds have two factors: three
harmonic patterns, which differ along frequency, and four envelopes, which differ along time.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

RATE = 8000  # samples a second
WINDOW, HOP = 256, 80  # samples
PARTIALS = ((1.0, 2.0, 3.0), (1.0, 3.0, 5.0), (1.0, 2.5, 4.2))  # over the lowest, 220 to 420 Hz
ENVELOPES = ("steady", "pulses", "decays", "attacks")
N_CLASSES = len(PARTIALS) * len(ENVELOPES)
NOISE = 0.2
MADE_RANGE = (0.0, 2200.0)  # Hz: up to the highest partial
SPEECH_RANGE = (100.0, 3800.0)
FLOOR = 1e-8  # of a clip's largest power: what counts as silence

Power = Float[np.ndarray, "frequency time"]
Picture = Float[Tensor, "height width"]
Pictures = Float[Tensor, "clips height width"]


def mel(frequency: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return 2595 log10(1 + f / 700), the usual scale of pitch."""
    return np.asarray(2595 * np.log10(1 + frequency / 700))


def from_mel(pitch: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return the frequency of a pitch."""
    return np.asarray(700 * (10 ** (pitch / 2595) - 1))


def bands(
    n_bands: int, limits: tuple[float, float], *, mels: bool, moved: float = 1.0
) -> Float[np.ndarray, "band frequency"]:
    """Return triangular filters, each 1 in its middle and 0 at its neighbours' middles.

    All their frequencies are multiplied by `moved`: a voice of a shorter throat sounds higher.
    """
    low, high = (float(mel(np.array(end))) if mels else end for end in limits)
    edges = np.linspace(low, high, n_bands + 2)
    edges = moved * (from_mel(edges) if mels else edges)
    frequency = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    first, middle, last = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequency - first) / (middle - first), (last - frequency) / (last - middle)
    return np.clip(np.minimum(rising, falling), 0, None)


def picture(
    clip: Float[np.ndarray, " samples"],
    filters: Float[np.ndarray, "band frequency"],
    n_columns: int,
) -> Picture:
    """Return log power in bands and columns; high bands on top; a longer clip is pooled more."""
    return shown(power(clip), filters, n_columns)


def power(clip: Float[np.ndarray, " samples"]) -> Power:
    """Return a clip's power by frequency and time."""
    from scipy.signal import spectrogram

    clip = np.pad(clip, (0, max(0, WINDOW - len(clip))))
    _, _, found = spectrogram(clip, RATE, nperseg=WINDOW, noverlap=WINDOW - HOP)
    return np.asarray(found)


def shown(found: Power, filters: Float[np.ndarray, "band frequency"], n_columns: int) -> Picture:
    """Return the picture of a power spectrogram."""
    banded = filters[::-1] @ found
    logs = torch.from_numpy(np.log(banded + FLOOR * max(float(banded.max()), 1e-30)))
    pooled = functional.adaptive_avg_pool1d(logs[None], n_columns)[0]
    spread = float(pooled.std())
    if spread < 1e-9:  # silence
        return torch.zeros(pooled.shape)
    return ((pooled - pooled.mean()) / spread).float()


def made_sounds(
    n: int, *, height: int, width: int, generator: torch.Generator
) -> tuple[Pictures, Int[Tensor, " clips"]]:
    """Return pictures of made sounds, and their classes: 4 times the pattern plus the envelope."""
    labels = torch.arange(n) % N_CLASSES
    labels = labels[torch.randperm(n, generator=generator)]
    filters = bands(height, MADE_RANGE, mels=False)
    seen = [picture(clip(int(label), generator), filters, width) for label in labels]
    return torch.stack(seen), labels


def clip(label: int, generator: torch.Generator) -> Float[np.ndarray, " samples"]:
    """Return one second of a class: its partials under its envelope, and noise."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    pattern, envelope = divmod(label, len(ENVELOPES))
    time = torch.arange(RATE, dtype=torch.float64) / RATE
    lowest = uniform(220.0, 420.0)
    waves = [
        torch.sin(2 * math.pi * (lowest * k * time + uniform(0.0, 1.0))) for k in PARTIALS[pattern]
    ]
    shape = _shape(ENVELOPES[envelope], time, uniform)
    noise = torch.randn(RATE, generator=generator, dtype=torch.float64)
    sound = uniform(0.5, 1.0) * shape * torch.stack(waves).sum(dim=0) + NOISE * noise
    return np.asarray(sound.numpy())


def _shape(name: str, time: Tensor, draw: Callable[[float, float], float]) -> Tensor:
    """Return an envelope; an attack is a decay backwards: the order of time alone differs."""
    onset = draw(0.0, 0.15)
    started = (time >= onset).double()
    if name == "steady":
        return started
    if name == "pulses":
        rate, phase = draw(3.0, 4.5), draw(0.0, 1.0)
        return started * (torch.sin(2 * math.pi * (rate * time + phase)) > 0).double()
    fading = started * torch.exp(-(time - onset).clamp(min=0) / draw(0.15, 0.35))
    return fading if name == "decays" else fading.flip(0)
