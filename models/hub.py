"""Where the files of a transformers model are: a local directory, or a snapshot from the hub.

Finds and reads the small JSON files; knows nothing of tensors, tasks or tokenizers, and imports no
torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.base import ModelError, ModelSource

DESCRIPTION = ("*.json",)
WEIGHTS = ("*.json", "model*.safetensors")

KNOWN_CONFIGS: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
    },
}
"""With random weights these need no files at all: the rest is the default of their type."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of one model. `directory` is None where a known config is all there is."""

    directory: Path | None
    config: dict[str, Any]

    def read(self, name: str) -> Any:
        """The JSON file `name`, or an empty dict where there is none."""
        return _read(self.directory / name) if self.directory else {}

    def file(self, name: str) -> Path | None:
        """The path of `name`, or None where there is none."""
        path = self.directory / name if self.directory else None
        return path if path and path.is_file() else None


def find(source: ModelSource, patterns: tuple[str, ...]) -> Snapshot:
    """The model's snapshot, with at least the files that match `patterns`.

    A reference that is no directory is asked for at the hub, or without a network in its cache.
    """
    local = Path(source.reference).expanduser()
    if source.weights == "random" and source.reference in KNOWN_CONFIGS and not local.is_dir():
        return Snapshot(None, KNOWN_CONFIGS[source.reference])
    directory = _local(local, source) if local.is_dir() else _download(source, patterns)
    config = _read(directory / "config.json")
    if not config:
        raise ModelError(
            f"{source.reference}: no config.json in {directory}; "
            "expected a directory that save_pretrained() wrote"
        )
    return Snapshot(directory, config)


def _local(directory: Path, source: ModelSource) -> Path:
    if source.revision:
        raise ModelError(
            f"revision = {source.revision!r}: {directory} is a local directory, which has none; "
            "leave it out, or name a model of the hub"
        )
    return directory.resolve()


def _download(source: ModelSource, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        directory = snapshot_download(
            source.reference, revision=source.revision, allow_patterns=list(patterns)
        )
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{source.reference}, revision {source.revision or 'main'}: not a local directory, "
            f"and not to be had from the Hugging Face hub or its cache in {HF_HUB_CACHE} "
            f"({_first_line(error)}); give the path of a directory that holds config.json, "
            "tokenizer.json and model.safetensors, or a model and revision that the hub has"
        ) from error
    return Path(directory)


def _read(path: Path) -> Any:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}; fetch or save the model again") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
