"""Models of the hub, read where they lie: a config, headers, and the pieces that are asked for.

Enters: a name such as owner/model, owner/model@revision or hf://owner/model@revision/file.gguf.
Leaves: a `HubModel`, whose revision is settled to one commit when it is opened, so that all of its
files are of one model. Addresses, logins and proxies are those of `huggingface_hub`; so is its
cache, which comes first: what it holds whole is read from there.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.remote_file import Patience, RemoteFile
from orbitlens.errors import CheckpointError, printable

NAME = r"[A-Za-z0-9][\w.-]*"
REVISION = r"refs/(?:pr|convert)/[\w.-]+|[\w.-]+"
HUB_NAME = re.compile(rf"(?P<repo>{NAME}(/{NAME})?)(@(?P<revision>{REVISION}))?")
HUB_ADDRESS = re.compile(
    rf"hf://(?P<repo>{NAME}/{NAME})(@(?P<revision>{REVISION}))?(/(?P<file>[\w./-]+\.gguf))?/?"
)
HUB_ERRORS = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError)
WEIGHTS = ["config.json", "*.safetensors", "model.safetensors.index.json"]
# What a running model needs beside its weights
BESIDE = ["generation_config.json", "preprocessor_config.json", "special_tokens_map.json",
          "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt",
          "merges.txt", "added_tokens.json"]  # fmt: skip
TIMEOUTS = (10.0, 30.0, 30.0, 30.0)  # seconds: to connect, between bytes, to send, for a connection
PATIENCE = Patience()


@dataclass(frozen=True, kw_only=True)
class HubPlace:
    """A model of the hub, or one GGUF file of it."""

    repo: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        """Return its address."""
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repo}{revision}{f'/{self.file}' if self.file else ''}"


def hub_place(text: str) -> HubPlace | None:
    """Return the place that a name or an address means; None if it is neither.

    >>> str(hub_place("owner/model@main"))
    'hf://owner/model@main'
    """
    found = HUB_ADDRESS.fullmatch(text) or HUB_NAME.fullmatch(text)
    if found is None:
        return None
    parts = found.groupdict()
    file = parts.get("file")
    if file is not None and any(part in {"", ".", ".."} for part in file.split("/")):
        return None
    return HubPlace(repo=parts["repo"], revision=parts["revision"], file=file)


def is_offline() -> bool:
    """Say whether the hub is switched off (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def cached(place: HubPlace) -> Path | None:
    """Return what the hub's cache holds of a model: a folder, or a GGUF file; None if nothing.

    Raises:
        CheckpointError: the cache cannot be asked.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        if place.file is not None:
            return Path(
                hf_hub_download(
                    place.repo, place.file, revision=place.revision, local_files_only=True
                )
            )
        return Path(snapshot_download(place.repo, revision=place.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except hub_errors() as error:
        raise _failed(place, error) from error


def fetched(place: HubPlace) -> Path:
    """Fetch a whole model into the hub's cache, and return its folder or GGUF file.

    Raises:
        CheckpointError: the hub does not give it.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        if place.file is not None:
            return Path(hf_hub_download(place.repo, place.file, revision=place.revision))
        wanted = [*WEIGHTS, *BESIDE]
        return Path(snapshot_download(place.repo, revision=place.revision, allow_patterns=wanted))
    except hub_errors() as error:
        raise _failed(place, error) from error


class HubModel:
    """A model on the hub's server: which files it has, at one commit, and pieces of them."""

    def __init__(self, place: HubPlace) -> None:
        """Ask the hub for the list of files and the commit.

        Raises:
            CheckpointError: there is no such model, or the hub does not answer.
        """
        from huggingface_hub import HfApi, constants

        try:
            self._endpoint = constants.ENDPOINT
            info = HfApi(endpoint=self._endpoint).model_info(place.repo, revision=place.revision)
            commit, listed = str(info.sha), [entry.rfilename for entry in info.siblings or ()]
        except hub_errors() as error:
            raise _failed(place, error) from error
        self.place = replace(place, revision=commit)
        self.names = frozenset(str(name) for name in listed)
        self._opened: dict[str, RemoteFile] = {}

    @property
    def n_fetched(self) -> int:
        """Bytes that came over the network so far."""
        return sum(file.n_fetched for file in self._opened.values())

    @property
    def n_requests(self) -> int:
        """Requests made so far, for files."""
        return sum(file.n_requests for file in self._opened.values())

    def file(self, name: str) -> RemoteFile:
        """Return one of the model's files; its first bytes are fetched.

        Raises:
            CheckpointError: it is not one of the model's files, or cannot be read.
        """
        if name not in self.names:
            raise CheckpointError(
                f"{self.place}: there is no file {printable(name)[:100]!r} in this model. Refused: "
                "a checkpoint may only name files beside it."
            )
        if name not in self._opened:
            from huggingface_hub import hf_hub_url

            url = hf_hub_url(
                self.place.repo, name, revision=self.place.revision, endpoint=self._endpoint
            )
            self._opened[name] = RemoteFile(
                url,
                name=name.rpartition("/")[2],
                shown=f"{replace(self.place, file=None)}/{printable(name)}",
                stream=_stream,
                broken=hub_errors(),
                patience=PATIENCE,
            )
        return self._opened[name]

    def small(self, name: str, largest: int) -> bytes:
        """Return a small file whole.

        Raises:
            CheckpointError: it is too large, or cannot be read.
        """
        file = self.file(name)
        if file.size > largest:
            raise CheckpointError(
                f"{file.shown}: {file.size} bytes are too many for such a file; at most {largest} "
                "are read."
            )
        return bytes(file.read(0, file.size))


def _stream(url: str, headers: Mapping[str, str]) -> AbstractContextManager[Any]:
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    own = build_hf_headers(library_name="orbitlens")
    answer: AbstractContextManager[Any] = get_session().stream(
        "GET", url, headers={**own, **headers}, timeout=TIMEOUTS, follow_redirects=True
    )
    return answer


def hub_errors() -> tuple[type[Exception], ...]:
    """Return what asking the hub may raise, errors of whichever HTTP library it uses included."""
    from huggingface_hub.errors import HfHubHTTPError

    bases = (base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    return (*HUB_ERRORS, *bases)


def _failed(place: HubPlace, error: Exception) -> CheckpointError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    shown = place if place.file else place.repo
    return CheckpointError(
        f"{shown}: there is no such file or folder here, and asking the hub failed ({reason}). "
        "Check the name and the connection, or give the path of a local folder."
    )
