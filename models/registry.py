"""From what a user writes after `--model` to a served model; and the list of what can be written.

Each kind's code is imported when it is asked for. Knows no torch and downloads nothing.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from models.base import ModelError, ModelSource, ServedModel
from models.torchvision import names as torchvision_names


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to write a model: who makes it, with which options, and what users read of it."""

    target: str
    options: str
    written: str
    example: str
    description: str


class CatalogueRow(NamedTuple):
    """One line of the catalogue."""

    kind: str
    written: str
    example: str
    description: str


BUILT_IN = {
    "efficientnet-lite0": Kind(
        target="models.demo_image:EfficientNetLite0",
        options="weights labels",
        written="efficientnet-lite0",
        example="efficientnet-lite0",
        description="Demo: ImageNet classifier whose real weights install as a package",
    ),
    "all-MiniLM-L6-v2": Kind(
        target="models.transformers:MiniLM",
        options="weights max_seq",
        written="all-MiniLM-L6-v2",
        example="all-MiniLM-L6-v2",
        description="Demo: sentence embedding whose real weights install as a package",
    ),
    "lstm": Kind(
        target="models.lstm:LSTMForecaster",
        options="weights max_seq",
        written="lstm",
        example="lstm",
        description="Forecaster of monthly series (12 to 128 values), weights in the repository",
    ),
}

KINDS = {
    "torchvision": Kind(
        target="models.torchvision:TorchvisionModel",
        options="weights labels",
        written="NAME or torchvision:NAME",
        example="resnet50",
        description="torchvision's image classifiers",
    ),
    "timm": Kind(
        target="models.timm:TimmModel",
        options="weights labels",
        written="timm:NAME or timm:hf-hub:ID",
        example="timm:mobilenetv3_large_100",
        description="timm's image classifiers and embedders",
    ),
    "transformers": Kind(
        target="models.transformers:create",
        options="weights task revision labels max_seq",
        written="transformers:ID, hf:ID, or a path to a directory with config.json",
        example="transformers:bert-base-uncased",
        description="Hugging Face models: embedding, classification, fill-mask",
    ),
    "torchscript": Kind(
        target="models.exported:TorchScriptFile",
        options="max_seq",
        written="a path ending in .pt or .ts, or torchscript:PATH",
        example="./model.pt",
        description="A file of torch.jit.save, with its tensors declared in model.json; eager only",
    ),
    "export": Kind(
        target="models.exported:ExportedFile",
        options="max_seq",
        written="a path ending in .pt2, or export:PATH",
        example="./model.pt2",
        description="A file of torch.export.save",
    ),
    "module": Kind(
        target="models.module:create",
        options="weights task revision labels max_seq",
        written="package.module:ClassName",
        example="my_models.ranker:Ranker",
        description="Your own ServedModel, or nn.Module with declared inputs and outputs",
    ),
}

_ALIASES = {"hf": "transformers"}
_ENDINGS = {".pt": "torchscript", ".ts": "torchscript", ".pt2": "export"}
_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def create(
    model: str,
    *,
    name: str,
    weights: str = "default",
    task: str | None = None,
    revision: str | None = None,
    labels: str | None = None,
    max_seq: int | None = None,
) -> ServedModel:
    """The model that `model` refers to, not loaded yet. Raises ModelError."""
    kind, reference = _resolve(model)
    source = ModelSource(name, reference, weights, task, revision, labels, max_seq)
    unwanted = _given(source) - set(kind.options.split())
    if unwanted:
        raise ModelError(
            f"{model}: {', '.join(sorted(unwanted))} cannot be set for this kind of model; "
            f"it takes {', '.join(kind.options.split())}"
        )
    module, _, attribute = kind.target.partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    return cast("Callable[[ModelSource], ServedModel]", factory)(source)


def describe_catalogue() -> list[CatalogueRow]:
    """What can be served and how it is written, in the order a reader wants it."""
    rows = {**BUILT_IN, **KINDS}
    return [
        CatalogueRow(
            "built-in" if key in BUILT_IN else key, kind.written, kind.example, kind.description
        )
        for key, kind in rows.items()
    ]


def _given(source: ModelSource) -> set[str]:
    defaults = ModelSource(source.name, source.reference)
    options = ("weights", "task", "revision", "labels", "max_seq")
    return {option for option in options if getattr(source, option) != getattr(defaults, option)}


def _resolve(model: str) -> tuple[Kind, str]:
    for built_in, kind in BUILT_IN.items():
        if model.lower() == built_in.lower():
            return kind, built_in
    head, colon, rest = model.partition(":")
    if colon and (found := KINDS.get(_ALIASES.get(head, head))) and head != "module":
        return found, rest
    path = Path(model).expanduser()
    if path.suffix in _ENDINGS:
        return KINDS[_ENDINGS[path.suffix]], model
    if path.is_dir():
        return KINDS["transformers"], _with_config(path)
    if _CLASS.fullmatch(model):
        return KINDS["module"], model
    if model in torchvision_names():
        return KINDS["torchvision"], model
    raise _unknown(model)


def _with_config(directory: Path) -> str:
    if not (directory / "config.json").is_file():
        raise ModelError(
            f"{directory}: a directory without config.json; expected one that save_pretrained "
            "of transformers wrote"
        )
    return str(directory)


def _unknown(model: str) -> ModelError:
    known = {name.lower(): name for name in (*BUILT_IN, *torchvision_names())}
    close = [known[name] for name in difflib.get_close_matches(model.lower(), known, n=5)]
    hint = f"; close: {', '.join(close)}" if close else ""
    ways = "\n".join(f"  {kind.written}" for kind in KINDS.values())
    return ModelError(
        f"{model}: no built-in model, torchvision model, file or directory of that name{hint}. "
        f"What can be written:\n  {', '.join(BUILT_IN)}\n{ways}"
    )
