"""A model that does nothing, so that what is left is the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from models.base import Arrays, ModelSource, ServedModel, TensorSpec

if TYPE_CHECKING:
    from torch import nn


class Vector(BaseModel):
    """Four numbers."""

    model_config = ConfigDict(extra="forbid")

    x: Annotated[list[float], Field(min_length=4, max_length=4)]


class Nothing(ServedModel):
    """y = x."""

    inputs = (TensorSpec("x", "float32", ("batch", 4)),)
    outputs = (TensorSpec("y", "float32", ("batch", 4)),)
    preprocess_inline = True
    sample = Vector

    def __init__(self, source: ModelSource) -> None:
        self.name = source.name

    def load(self, device: str, dtype: str) -> nn.Module:
        from torch import nn

        return nn.Identity().eval()

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        return {"x": np.asarray(payload["x"], np.float32)}

    def postprocess(self, outputs: Arrays) -> Any:
        return {"y": outputs["y"]}

    def example(self, batch: int, seq: int) -> Arrays:
        return {"x": np.zeros((batch, 4), np.float32)}
