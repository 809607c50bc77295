"""The user's own: `package.module:ClassName`, a ServedModel or an nn.Module with declared inputs.

The user's module is imported where the command runs, like any code; it may import torch.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from models.base import ModelError, ModelSource, ServedModel
from models.checkpoint import check_weights, load_weights, seeded, settle
from models.tensors import Declaration, TensorModel, explain

if TYPE_CHECKING:
    from torch import nn

_EXAMPLE = """
class Doubler(torch.nn.Module):
    inputs = (TensorSpec("x", "float32", ("batch", 4)),)
    outputs = (TensorSpec("y", "float32", ("batch", 4)),)
    def forward(self, x):
        return 2 * x"""


def create(source: ModelSource) -> ServedModel:
    """The class that the reference names, as a served model."""
    cls = _find(source.reference)
    if issubclass(cls, ServedModel):
        return _instance(cls, source)
    return PlainModule(source, cls)


class PlainModule(TensorModel):
    """An nn.Module with declared `inputs` and `outputs`; nothing is made of it before `load`."""

    def __init__(self, source: ModelSource, cls: type) -> None:
        check_weights(source)
        self.random_weights = source.weights == "random"
        self._cls = cls
        super().__init__(source, _declaration(cls, source.reference))

    def load(self, device: str, dtype: str) -> nn.Module:
        # Every worker has to end up with the same weights, also when they are left to chance.
        with seeded():
            module: nn.Module = self._cls()
        if self.source.weights not in ("default", "random"):
            load_weights(module, self.source.weights)
        return settle(module, device, dtype)


def _find(reference: str) -> type:
    path, _, name = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ModelError(
            f"{reference}: cannot import {path} ({error}); looked in {os.getcwd()} and in the "
            "installed packages. Start where the module is, or install it"
        ) from error
    cls = getattr(module, name, None)
    if not isinstance(cls, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ModelError(
            f"{reference}: {module.__file__} has no class {name}; it has: "
            f"{', '.join(classes) or 'none'}"
        )
    return cls


def _instance(cls: type[ServedModel], source: ModelSource) -> ServedModel:
    if missing := sorted(cls.__abstractmethods__):
        raise ModelError(f"{source.reference}: {cls.__name__} does not define {', '.join(missing)}")
    constructor: Any = cls
    takes_source = bool(inspect.signature(cls).parameters)
    if not takes_source and source != ModelSource(source.name, source.reference):
        raise ModelError(
            f"{source.reference}: {cls.__name__} takes no options; let its constructor take a "
            "ModelSource, or leave weights, labels and the like out"
        )
    model: ServedModel = constructor(source) if takes_source else constructor()
    model.name = source.name
    return model


def _declaration(cls: type, reference: str) -> Declaration:
    keys = ("inputs", "outputs", "max_seq", "min_seq")
    declared = {key: getattr(cls, key) for key in keys if hasattr(cls, key)}
    if not {"inputs", "outputs"} <= declared.keys() or not hasattr(cls, "forward"):
        raise ModelError(
            f"{reference}: expected a models.base.ServedModel, or an nn.Module that declares its "
            f"inputs and outputs, such as\n{_EXAMPLE}"
        )
    try:
        return Declaration(**declared)
    except ValidationError as error:
        text = f"{reference}: {explain(error)}. Expected for example\n{_EXAMPLE}"
        raise ModelError(text) from None
