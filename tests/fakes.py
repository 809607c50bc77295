"""Tiny served models for tests, also for a real server: `--model tests.fakes:Double`.

`Double` takes a tensor, `Sleeps` and `Paced` take their time as well, `Tokens` takes a text of any
length (two inputs, padded), `Colors` an image. `Raises` goes wrong, `Fragile` takes its process
with it, `Signed` says which process that is, `Wide` answers at length.
"""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from PIL import Image
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from models.base import Arrays, BadSample, ModelSource, ServedModel, TensorSpec

if TYPE_CHECKING:
    from torch import nn


class Vector(BaseModel):
    """Four numbers."""

    model_config = ConfigDict(extra="forbid")

    x: Annotated[list[float], Field(min_length=4, max_length=4)]


class Double(ServedModel):
    """y = 2 x, with the 2 as a parameter."""

    inputs = (TensorSpec("x", "float32", ("batch", 4)),)
    outputs = (TensorSpec("y", "float32", ("batch", 4)),)
    preprocess_inline = True
    sample: ClassVar[type[BaseModel]] = Vector

    def __init__(self, source: ModelSource | None = None) -> None:
        self.name = source.name if source else "double"

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class Scale(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = torch.nn.Parameter(torch.full((4,), 2.0))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        return ready(Scale(), device, dtype)

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        return {"x": np.asarray(payload["x"], np.float32)}

    def postprocess(self, outputs: Arrays) -> Any:
        return outputs["y"]

    def example(self, batch: int, seq: int) -> Arrays:
        return {"x": np.random.default_rng(0).standard_normal((batch, 4), np.float32)}


class Sleeps(Double):
    """y = 2 x, once as many seconds have passed as the largest number of the batch says."""

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class Sleep(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                time.sleep(float(x.max()))
                return x * 2

        return ready(Sleep(), device, dtype)

    def example(self, batch: int, seq: int) -> Arrays:
        return {"x": np.zeros((batch, 4), np.float32)}


class Wide(Double):
    """Says the first number a hundred thousand times: an answer of about a megabyte."""

    outputs = (TensorSpec("y", "float32", ("batch", 100_000)),)

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class Repeat(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x[:, :1].repeat(1, 100_000)

        return ready(Repeat(), device, dtype)


class Raises(Double):
    """Raises where the first number says: 1 before it runs, 2 while it does, 3 after that."""

    text = "cannot open /srv/secret/weights.pt"

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class Raise(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if bool((x[:, 0] == 2).any()):
                    raise ValueError(Raises.text)
                return x * 2

        return ready(Raise(), device, dtype)

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        if payload["x"][0] == 1:
            raise ValueError(self.text)
        return super().preprocess(payload)

    def postprocess(self, outputs: Arrays) -> Any:
        if outputs["y"][0] == 6:
            raise ValueError(self.text)
        return super().postprocess(outputs)


class Paced(Double):
    """y = 2 x, and 10 ms longer where it is not compiled; x[3] says for how many ms it sleeps
    first."""

    preprocess_inline = False

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class Slow(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = torch.nn.Parameter(torch.full((4,), 2.0))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if not torch.compiler.is_compiling():
                    time.sleep(0.01)
                return x * self.factor

        return ready(Slow(), device, dtype)

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        time.sleep(payload["x"][3] / 1000)
        return super().preprocess(payload)


class Fragile(Double):
    """Double, slowly; a sample that begins with 13 kills its process, one with 14 never ends.

    Where there is a file `unlucky`, its process dies when it is loaded.
    """

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        if Path("unlucky").exists():
            os.kill(os.getpid(), signal.SIGKILL)

        class Scale(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if bool((x[:, 0] == 13).any()):
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(3600 if bool((x[:, 0] == 14).any()) else 0.2)
                return x * 2

        return ready(Scale(), device, dtype)


class Signed(Double):
    """y = x, but for the last: the process that ran it. Each batch takes 20 ms."""

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class Sign(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                time.sleep(0.02)
                signature = torch.full((len(x), 1), float(os.getpid()))
                return torch.cat((x[:, :3], signature), 1)

        return ready(Sign(), device, dtype)


class Text(BaseModel):
    """A text, one token a byte."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1)]


class Tokens(ServedModel):
    """A score for each byte of a text, and their mean over the text, padding left out."""

    inputs = (
        TensorSpec("ids", "int64", ("batch", "seq"), limits=(0, 255)),
        TensorSpec("mask", "int64", ("batch", "seq"), limits=(0, 1)),
    )
    outputs = (
        TensorSpec("scores", "float32", ("batch", "seq")),
        TensorSpec("mean", "float32", ("batch",)),
    )
    max_seq = 32
    sample: ClassVar[type[BaseModel]] = Text
    raw_bodies: ClassVar[Mapping[str, str]] = {"text/plain": "text"}

    def __init__(self, source: ModelSource | None = None) -> None:
        self.name = source.name if source else "tokens"

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class MaskedMean(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table = torch.nn.Embedding.from_pretrained(
                    torch.arange(256).sin().unsqueeze(1)
                )

            def forward(
                self, ids: torch.Tensor, mask: torch.Tensor
            ) -> tuple[torch.Tensor, torch.Tensor]:
                scores = self.table(ids).squeeze(-1) * mask  # [B, S]
                return scores, scores.sum(1) / mask.sum(1)

        return ready(MaskedMean(), device, dtype)

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        ids = np.frombuffer(payload["text"].encode(), np.uint8).astype(np.int64)
        if len(ids) > self.max_seq:
            raise BadSample(f"text: {len(ids)} bytes, this model takes up to {self.max_seq}")
        return {"ids": ids, "mask": np.ones_like(ids)}

    def postprocess(self, outputs: Arrays) -> Any:
        return {name: array.tolist() for name, array in outputs.items()}

    def example(self, batch: int, seq: int) -> Arrays:
        ids = np.random.default_rng(0).integers(32, 127, (batch, seq), np.int64)
        return {"ids": ids, "mask": np.ones_like(ids)}


class Picture(BaseModel):
    """An image file, base64."""

    model_config = ConfigDict(extra="forbid")

    image: Base64Bytes


class Colors(ServedModel):
    """The mean red, green and blue of an image, 0 to 1."""

    inputs = (TensorSpec("pixels", "float32", ("batch", 3, 8, 8)),)
    outputs = (TensorSpec("means", "float32", ("batch", 3)),)
    sample: ClassVar[type[BaseModel]] = Picture
    raw_bodies: ClassVar[Mapping[str, str]] = {"image/*": "image"}

    def __init__(self, source: ModelSource | None = None) -> None:
        self.name = source.name if source else "colors"

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        return ready(
            torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()), device, dtype
        )

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        try:
            image = Image.open(io.BytesIO(payload["image"])).convert("RGB").resize((8, 8))
        except OSError:
            raise BadSample("image: not an image file this server can read") from None
        pixels = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
        return {"pixels": np.ascontiguousarray(pixels)}

    def postprocess(self, outputs: Arrays) -> Any:
        return dict(zip(("red", "green", "blue"), outputs["means"].tolist(), strict=True))

    def example(self, batch: int, seq: int) -> Arrays:
        return {"pixels": np.random.default_rng(0).random((batch, 3, 8, 8), np.float32)}


def ready(module: nn.Module, device: str, dtype: str) -> nn.Module:
    """The module as `ServedModel.load` promises it."""
    import torch

    return module.to(device, getattr(torch, dtype)).eval().requires_grad_(False)
