"""Named tensors from outside: samples as nested lists, checked against a declaration.

`TensorModel` is everything a model needs beside its module when its samples are plain tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    create_model,
    field_validator,
)

from models.base import Arrays, BadSample, ModelError, ModelSource, ServedModel, TensorSpec

if TYPE_CHECKING:
    pass

Array = np.ndarray[Any, Any]

_DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
_TAKES = {"b": ("booleans", "b"), "i": ("integers", "iu"), "u": ("integers", "iu")}


class Declaration(BaseModel):
    """The tensors of a model, as its author wrote them down; also how they travel as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", revalidate_instances="always")

    inputs: tuple[TensorSpec, ...] = Field(min_length=1)
    outputs: tuple[TensorSpec, ...] = Field(min_length=1)
    max_seq: PositiveInt | None = None
    min_seq: PositiveInt = 1

    @field_validator("inputs", "outputs")
    @classmethod
    def _are_served(cls, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        names = [spec.name for spec in specs]
        if len(set(names)) < len(names):
            raise ValueError(f"the names {names} have to differ")
        for spec in specs:
            if not spec.name.isidentifier() or spec.name.startswith("_"):
                raise ValueError(f"{spec.name!r}: expected a name like input_ids")
            if spec.dtype not in _DTYPES:
                raise ValueError(
                    f"{spec.name}: dtype {spec.dtype!r}; expected {', '.join(_DTYPES)}"
                )
            if spec.shape[:1] != ("batch",) or spec.shape.count("seq") > 1:
                raise ValueError(
                    f'{spec.name}: shape {spec.shape}; expected "batch" first, "seq" at most once'
                )
        return specs


def explain(error: ValidationError) -> str:
    """What is wrong with a declaration, each problem with its place."""
    problems = error.errors(include_url=False)
    return "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems)


class TensorSample(BaseModel):
    """Named tensors as nested lists, without the batch dimension."""

    model_config = ConfigDict(extra="allow")


def sample_type(inputs: Sequence[TensorSpec]) -> type[TensorSample]:
    """The JSON of one sample with these inputs, as a schema shows it."""
    fields: dict[str, Any] = {}
    for spec in inputs:
        text = f"{spec.dtype}, shape [{', '.join(map(str, spec.shape[1:]))}]"
        kind = list[Any] if len(spec.shape) > 1 else bool | int | float
        fields[spec.name] = (kind, Field(description=text))
    config = ConfigDict(extra="forbid", protected_namespaces=())
    base = type("TensorSample", (TensorSample,), {"model_config": config})
    return cast("type[TensorSample]", create_model("TensorSample", __base__=base, **fields))


class TensorModel(ServedModel):
    """A model of declared tensors: nested lists in, nested lists out."""

    sample = TensorSample

    def __init__(self, source: ModelSource, declaration: Declaration | None = None) -> None:
        """Without a declaration, `load` must `declare` one."""
        self.name = source.name
        self.source = source
        if declaration is not None:
            self.declare(declaration)

    def declare(self, declaration: Declaration) -> None:
        """Take the declaration; `max_seq` is the source's where that is given."""
        limit = _limit(declaration, self.source)
        self._declaration = declaration
        self.inputs, self.outputs = declaration.inputs, declaration.outputs
        self.max_seq, self.min_seq = limit, declaration.min_seq
        # Its own and not the class's: two files served side by side differ in their inputs.
        self.sample = sample_type(declaration.inputs)

    def describe(self) -> dict[str, Any]:
        return self._declaration.model_dump(mode="json")

    def configure(self, facts: Mapping[str, Any]) -> None:
        self.declare(Declaration.model_validate(facts))

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        arrays = {spec.name: _read(payload[spec.name], spec) for spec in self.inputs}
        lengths = {
            spec.name: arrays[spec.name].shape[spec.seq_axis]
            for spec in self.inputs
            if spec.seq_axis is not None
        }
        if len(set(lengths.values())) > 1:
            raise BadSample(f"{', '.join(lengths)}: expected one length, got {lengths}")
        for name, length in lengths.items():
            if not self.min_seq <= length <= (self.max_seq or length):
                limits = f"{self.min_seq} to {self.max_seq}"
                raise BadSample(f"{name}: length {length}; expected {limits}")
        return arrays

    def postprocess(self, outputs: Arrays) -> Any:
        return {name: array.tolist() for name, array in outputs.items()}

    def example(self, batch: int, seq: int) -> Arrays:
        generator = np.random.default_rng(0)
        sizes = {"batch": batch, "seq": seq}
        return {
            spec.name: _invent(
                spec, [d if isinstance(d, int) else sizes[d] for d in spec.shape], generator
            )
            for spec in self.inputs
        }


def _limit(declaration: Declaration, source: ModelSource) -> int | None:
    own, asked = declaration.max_seq, source.max_seq
    has_seq = any(spec.seq_axis is not None for spec in declaration.inputs)
    if not has_seq:
        if asked is None:
            return None
        raise ModelError(
            f'max_seq = {asked}: {source.reference} has no input with a "seq" dimension'
        )
    limit = asked or own
    if limit is None:
        raise ModelError(
            f'{source.reference}: an input has a "seq" dimension without a limit; declare max_seq, '
            "the longest sequence it takes, or set it for the model in the configuration"
        )
    if not declaration.min_seq <= limit <= (own or limit):
        takes = f"{declaration.min_seq} to {own or 'any'}"
        raise ModelError(f"max_seq = {limit}: {source.reference} takes {takes}")
    return limit


def _read(value: Any, spec: TensorSpec) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        raise BadSample(f"{spec.name}: the lists are ragged; expected {_shown(spec)}") from None
    if not _fits(array.shape, spec):
        raise BadSample(f"{spec.name}: shape {list(array.shape)}; expected {_shown(spec)}")
    what, kinds = _TAKES.get(np.dtype(spec.dtype).kind, ("numbers", "fiu"))
    if array.size and array.dtype.kind not in kinds:
        raise BadSample(f"{spec.name}: expected {what} ({spec.dtype})")
    converted = array.astype(spec.dtype)
    if what == "integers" and not np.array_equal(converted, array):
        raise BadSample(f"{spec.name}: out of the range of {spec.dtype}")
    return converted


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    wanted = spec.shape[1:]
    return len(shape) == len(wanted) and all(
        want in (got, "seq") for got, want in zip(shape, wanted, strict=True)
    )


def _shown(spec: TensorSpec) -> str:
    return f"[{', '.join(map(str, spec.shape[1:]))}]"


def _invent(spec: TensorSpec, shape: list[int], generator: np.random.Generator) -> Array:
    # A mask of nothing but zeros leaves attention nothing to look at: its answer is NaN.
    if spec.dtype == "bool" or "mask" in spec.name:
        return np.ones(shape, spec.dtype)
    if spec.dtype.startswith("float"):
        values = generator.standard_normal(shape).astype(spec.dtype)
        return values.clip(*spec.limits) if spec.limits else values
    # 0 and 1 are valid tokens, segments and categories alike, however few of them there are.
    lowest, highest = spec.limits or (0, 1)
    return generator.integers(lowest, highest, shape, endpoint=True).astype(spec.dtype)
