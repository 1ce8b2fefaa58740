"""Spoken digits: the Free Spoken Digit Dataset, read from its zip in memory.

Enters: `fsdd.zip` (members such as recordings/7_theo_12.wav: digit, speaker, number). Leaves:
pictures of the clips with their digits and speakers. A file that is not what it should be is
refused with its name, what was found and what can be done instead.
"""

import io
import re
import wave
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.studies.separable.sound import RATE, SPEECH_RANGE, bands, picture

FILE = "fsdd.zip"
INSTEAD = "made sounds of 12 classes"
MEMBER = re.compile(r"(?:.*/)?([0-9])_([A-Za-z]+)_([0-9]{1,4})\.wav")
MOST_MEMBERS, MOST_BYTES = 20_000, 400_000  # of an archive, and of a clip
FEWEST_SPEAKERS = 3


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Clips as pictures."""

    pictures: Float[Tensor, "clips height width"]
    digits: Int[Tensor, " clips"]
    speakers: tuple[str, ...]  # one a clip

    @property
    def names(self) -> list[str]:
        """The speakers, in order."""
        return sorted(set(self.speakers))

    def of(self, speaker: str) -> Bool[Tensor, " clips"]:
        """Say which clips are one speaker's."""
        return torch.tensor([name == speaker for name in self.speakers])


def read_speech(file: Path, *, height: int, width: int, takes: int) -> Speech:
    """Return the first so many takes of each digit and speaker.

    Raises:
        InputError: the file is no such archive, or a clip in it is broken.
    """
    filters = bands(height, SPEECH_RANGE, mels=True)
    found = [
        (picture(clip, filters, width), digit, speaker)
        for clip, digit, speaker in _clips(file, takes)
    ]
    pictures, digits, speakers = zip(*found, strict=True) if found else ((), (), ())
    if len(set(speakers)) < FEWEST_SPEAKERS or set(digits) != set(range(10)):
        _refuse(
            file,
            f"{len(found)} clips of {len(set(speakers))} speakers and the digits "
            f"{sorted(set(digits))}",
            f"all ten digits and at least {FEWEST_SPEAKERS} speakers",
        )
    return Speech(pictures=torch.stack(pictures), digits=torch.tensor(digits), speakers=speakers)


def _clips(file: Path, takes: int) -> Iterator[tuple[np.ndarray, int, str]]:
    try:
        with zipfile.ZipFile(file) as archive:
            if len(archive.infolist()) > MOST_MEMBERS:
                _refuse(file, f"{len(archive.infolist())} members", f"at most {MOST_MEMBERS}")
            for name in sorted(archive.namelist()):
                match = MEMBER.fullmatch(name)
                if match is not None and int(match[3]) < takes:
                    yield _samples(file, archive, name), int(match[1]), match[2]
    except (zipfile.BadZipFile, OSError, zlib.error, NotImplementedError, RuntimeError) as error:
        _refuse(file, f"no archive that can be read ({error})", "a zip of WAV files")


def _samples(file: Path, archive: zipfile.ZipFile, name: str) -> Float[np.ndarray, " samples"]:
    """Return a clip's samples, between -1 and 1."""
    with archive.open(name) as member:
        data = member.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        _refuse(file, f"{name} of more than {MOST_BYTES} bytes", "clips of a few seconds")
    try:
        with wave.open(io.BytesIO(data)) as sound:
            kind = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            frames = sound.readframes(sound.getnframes())
    except (wave.Error, EOFError) as error:
        _refuse(file, f"{name} that is no WAV file ({error})", "WAV files")
    if kind != (1, 2, RATE) or len(frames) < 2:
        _refuse(
            file,
            f"{name} with {kind[0]} channels, {8 * kind[1]} bits, {kind[2]} Hz and {len(frames)} "
            "bytes of sound",
            f"one channel of 16 bits at {RATE} Hz",
        )
    return np.frombuffer(frames[: len(frames) // 2 * 2], dtype="<i2") / 32768.0


def _refuse(file: Path, found: str, expected: str) -> NoReturn:
    raise InputError(
        f"{file}: found {found}; expected {expected}, as in the Free Spoken Digit Dataset. Get the "
        f"file anew, or leave --data out: then {INSTEAD} are used."
    )
