"""Spoken digits: the Free Spoken Digit Dataset, read from its zip in memory.

Enters: `fsdd.zip` (members such as recordings/7_theo_12.wav: digit, speaker, number). Leaves:
pictures of the clips with their digits and speakers. A file that is not what it should be is
refused with its name, what was found and what can be done instead.
"""

import io
import re
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens_papers.archive import Archive, open_archive
from orbitlens_papers.separable.claims import INSTEAD
from orbitlens_papers.separable.sound import RATE, SPEECH_RANGE, bands, power, shown

MEMBER = re.compile(r"(?:.*/)?([0-9])_([A-Za-z]+)_([0-9]{1,4})\.wav")
BOUNDS = {"most_members": 20_000, "most_bytes": 400_000}
ADVICE = (
    "Expected a file as that of the Free Spoken Digit Dataset. Get it anew, or leave the folder of "
    f"data out: then {INSTEAD} are used."
)
FEWEST_SPEAKERS = 3
VOICES = tuple(1.25 ** (k / 4) for k in range(-2, 3))  # factors of frequency, as read; 0.89 to 1.12


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Clips as pictures."""

    pictures: Float[Tensor, "clips height width"]
    digits: Int[Tensor, " clips"]
    speakers: tuple[str, ...]  # one a clip
    voices: Float[Tensor, "clips voices height width"]  # the same at other factors of frequency

    @property
    def names(self) -> list[str]:
        """The speakers, in order."""
        return sorted(set(self.speakers))

    def of(self, speaker: str) -> Bool[Tensor, " clips"]:
        """Say which clips are one speaker's."""
        return torch.tensor([name == speaker for name in self.speakers])


def read_speech(
    file: Path, *, height: int, width: int, takes: int, voices: Sequence[float] = ()
) -> Speech:
    """Return the first so many takes of each digit and speaker.

    Args:
        file: the archive.
        height: bands of frequency.
        width: columns of time.
        takes: how many of each digit and speaker.
        voices: factors by which bands are moved, for further pictures of every clip.

    Raises:
        InputError: the file is no such archive, or a clip in it is broken.
    """
    filters = [bands(height, SPEECH_RANGE, mels=True, moved=moved) for moved in (1.0, *voices)]
    with open_archive(file, **BOUNDS, advice=ADVICE) as archive:
        clips = []
        for clip, digit, speaker in _clips(archive, takes):
            found = power(clip)
            seen = torch.stack([shown(found, own, width) for own in filters])
            clips.append((seen, digit, speaker))
        pictures, digits, speakers = zip(*clips, strict=True) if clips else ((), (), ())
        if len(set(speakers)) < FEWEST_SPEAKERS or set(digits) != set(range(10)):
            raise archive.refusal(
                f"{len(clips)} clips of {len(set(speakers))} speakers and the digits "
                f"{sorted(set(digits))}; expected all ten digits and at least {FEWEST_SPEAKERS} "
                "speakers"
            )
    both = torch.stack(pictures)
    return Speech(
        pictures=both[:, 0], digits=torch.tensor(digits), speakers=speakers, voices=both[:, 1:]
    )


def _clips(archive: Archive, takes: int) -> Iterator[tuple[np.ndarray, int, str]]:
    for name in sorted(archive.names):
        match = MEMBER.fullmatch(name)
        if match is not None and int(match[3]) < takes:
            yield _samples(archive, name), int(match[1]), match[2]


def _samples(archive: Archive, name: str) -> Float[np.ndarray, " samples"]:
    """Return a clip's samples, between -1 and 1."""
    try:
        with wave.open(io.BytesIO(archive.read(name))) as sound:
            kind = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            frames = sound.readframes(sound.getnframes())
    except (wave.Error, EOFError) as error:
        raise archive.refusal(f"{name} is no WAV file ({error})") from error
    if kind != (1, 2, RATE) or len(frames) < 2:
        raise archive.refusal(
            f"{name} has {kind[0]} channels, {8 * kind[1]} bits, {kind[2]} Hz and {len(frames)} "
            f"bytes of sound; expected one channel of 16 bits at {RATE} Hz"
        )
    return np.frombuffer(frames[: len(frames) // 2 * 2], dtype="<i2") / 32768.0
