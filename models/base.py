"""What a served model is: declared inputs and outputs, a load, a preprocess, a postprocess.

Knows nothing of HTTP, batching, buckets or compiling, and imports no torch at run time: the API
process uses `preprocess` and `postprocess`, the worker uses `load` and `example`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel

if TYPE_CHECKING:
    from torch import nn

Arrays = dict[str, np.ndarray[Any, Any]]
Dim = int | Literal["batch", "seq"]


class BadSample(ValueError):
    """The client's input cannot be used; the text names the field and what was expected."""


class ModelError(Exception):
    """The model cannot be served; the text names what was looked for, where, and the remedy."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named tensor: numpy dtype name, shape with `"batch"` first, and how `seq` is padded.

    `limits` are the lowest and highest value of an input: an id beyond its table is a fault of the
    whole device on CUDA, so it is refused before it gets there.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    pad_value: float = 0
    limits: tuple[int, int] | None = None

    @property
    def seq_axis(self) -> int | None:
        """The axis of `seq` in one sample (the batch dimension left out), or None."""
        return self.shape.index("seq") - 1 if "seq" in self.shape else None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What the user asked for: the reference without its kind, and the options beside it.

    `weights` is "default" (the model's own), "random", or a path to a `.safetensors` or `.pth`
    file. `labels` is a path to a text file with one class name a line.
    """

    name: str
    reference: str
    weights: str = "default"
    task: str | None = None
    revision: str | None = None
    labels: str | None = None
    max_seq: int | None = None


class ServedModel(ABC):
    """A model as the server sees it. One instance lives in the worker, one in each API process.

    `inputs` and `outputs` must be complete once `load` (worker) or `configure` (API process) has
    returned. The module is called with its inputs as positional arguments in declared order and
    returns one tensor, or a tuple or dict of tensors in the order (or by the names) of `outputs`.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_seq: int | None = None
    """The longest `seq` the model takes; None when no input has a `seq` dimension."""
    min_seq: int = 1
    """The shortest `seq` the model takes; shorter bucket sizes are not made."""
    random_weights: bool = False
    compilable: bool = True
    """False when Dynamo cannot take the module at all (a TorchScript file): served eager."""
    preprocess_inline: bool = False
    """True when preprocess is cheaper than a hop to the thread pool (some 50 microseconds)."""

    sample: type[BaseModel]
    """The JSON of one sample."""
    raw_bodies: ClassVar[Mapping[str, str]] = {}
    """Media types a request body may have as it is, and the sample field it becomes:
    `{"image/*": "image"}`."""

    @abstractmethod
    def load(self, device: str, dtype: str) -> nn.Module:
        """The module in eval mode on `device`, weights cast to `dtype` ("float32", ...), no grad.

        Raises ModelError when the weights cannot be had.
        """

    @abstractmethod
    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        """The fields of one `sample` to arrays without the batch dimension.

        Raises BadSample. Called from several threads.
        """

    @abstractmethod
    def postprocess(self, outputs: Arrays) -> Any:
        """The output arrays of one sample (no batch dimension, `seq` cut back) to JSON-able."""

    @abstractmethod
    def example(self, batch: int, seq: int) -> Arrays:
        """Real-looking inputs with the batch dimension, every `seq` exactly `seq`; seeded.

        Used for warm-up and for comparing compiled answers with eager ones.
        """

    def describe(self) -> dict[str, Any]:
        """After `load`, in the worker: JSON-able facts that `configure` needs in an API process."""
        return {}

    def configure(self, facts: Mapping[str, Any]) -> None:  # noqa: B027 - most need nothing
        """In an API process, before the first `preprocess`: take what `describe` gave."""
