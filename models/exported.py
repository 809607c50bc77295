"""Files with a module in them: TorchScript (`torch.jit.save`) and `torch.export.save`.

NOTE: such a file is code. Whoever serves one trusts it as they trust a program.
What a file does not say of its tensors stands beside it: `model.json` for `model.pt`.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from models.base import Dim, ModelError, ModelSource, TensorSpec
from models.checkpoint import settle, shorten
from models.tensors import Declaration, TensorModel, explain

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram

_EXAMPLE = """
{"inputs": [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 224, 224]}],
 "outputs": [{"name": "logits", "dtype": "float32", "shape": ["batch", 1000]}]}

"batch" comes first; a length that varies is "seq", with "pad_value" beside the shape and
"max_seq" beside "inputs"."""


class TorchScriptFile(TensorModel):
    """A TorchScript file, which Dynamo cannot take: always eager. Needs a `.json` beside it."""

    compilable = False

    def __init__(self, source: ModelSource) -> None:
        declaration = _read_sidecar(source)
        if declaration is None:
            raise _undeclared(source, "a TorchScript file does not name its tensors")
        super().__init__(source, declaration)

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        try:
            with warnings.catch_warnings():
                # Of torch.jit.load itself; there is no other way to read these files.
                warnings.filterwarnings("ignore", r"`torch\.jit\.load`")
                script: nn.Module = torch.jit.load(  # type: ignore[no-untyped-call]
                    _path(self.source), map_location=device
                )
        except (RuntimeError, ValueError, OSError) as error:
            raise _unreadable(self.source, "torch.jit.save", error) from error
        if dtype != "float32" and not list(script.parameters()):
            raise ModelError(
                f"{self.source.reference}: frozen, its weights cannot be cast to {dtype}; serve it "
                "with dtype = float32, or save it without torch.jit.freeze"
            )
        return settle(_plain(script), device, dtype)


def _plain(script: nn.Module) -> nn.Module:
    """The script inside a plain module, as it refuses half of what a module can do."""
    from torch import nn

    class Script(nn.Module):
        """A TorchScript file as it is served."""

        def __init__(self) -> None:
            super().__init__()
            self.script = script

        def forward(self, *inputs: Tensor) -> Any:
            return self.script(*inputs)

    return Script()


class ExportedFile(TensorModel):
    """A `torch.export` file, which compiles like any module; a `.json` beside it wins over it.

    It has to be exported in eval mode, with positional arguments and a dynamic batch dimension.
    """

    def __init__(self, source: ModelSource) -> None:
        super().__init__(source, _read_sidecar(source))
        self._is_declared = hasattr(self, "inputs")

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch
        from torch.export.passes import move_to_device_pass

        try:
            program = torch.export.load(_path(self.source))
        except (RuntimeError, ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
            raise _unreadable(self.source, "torch.export.save", error) from error
        if not self._is_declared:
            self.declare(_derive(program, self.source))
        module = move_to_device_pass(program, device).module().to(dtype=getattr(torch, dtype))
        for part in module.modules():
            # Not `eval()`, which these refuse: the mode was settled when they were exported.
            part.training = False
        return module.requires_grad_(False)


def _path(source: ModelSource) -> Path:
    return Path(source.reference).expanduser()


def _read_sidecar(source: ModelSource) -> Declaration | None:
    path = _path(source)
    if not path.is_file():
        raise ModelError(f"{source.reference}: no such file, looked for {path.absolute()}")
    sidecar = path.with_suffix(".json")
    if not sidecar.is_file():
        return None
    try:
        return Declaration.model_validate_json(sidecar.read_bytes())
    except ValidationError as error:
        raise ModelError(f"{sidecar}: {explain(error)}. Expected like\n{_EXAMPLE}") from None


def _undeclared(source: ModelSource, why: str) -> ModelError:
    sidecar = _path(source).with_suffix(".json")
    return ModelError(f"{source.reference}: {why}; write {sidecar}, for example\n{_EXAMPLE}")


def _unreadable(source: ModelSource, writer: str, error: Exception) -> ModelError:
    return ModelError(
        f"{source.reference}: not a file of {writer} that this torch can read ({shorten(error)}). "
        "A file of weights alone goes into `weights`, beside a model that says what they are of"
    )


def _derive(program: ExportedProgram, source: ModelSource) -> Declaration:
    """The declaration a program implies. Raises ModelError where it leaves something open."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs, outputs = _names(program, source)
    shapes = {name: [str(dim) for dim in values[name].shape] for name in inputs}
    batch = next(iter(shapes[inputs[0]]), "0")
    varying = {dim for shape in shapes.values() for dim in shape if not dim.isdigit()} - {batch}
    if batch.isdigit() or len(varying) > 1:
        raise _undeclared(
            source,
            f"its shapes are {shapes}, where the first has to vary and at most one other; export "
            'it with dynamic_shapes such as ({0: torch.export.Dim("batch")},)',
        )
    dims: dict[str, Dim] = {batch: "batch", **dict.fromkeys(varying, "seq")}
    try:
        return Declaration(
            inputs=tuple(_spec(name, values[name], dims) for name in inputs),
            outputs=tuple(_spec(name, values[node], dims) for name, node in outputs.items()),
            **_range(program, varying),
        )
    except ValueError as error:  # an expression as a dimension, or no tensor the server knows
        raise _undeclared(source, f"its tensors cannot be derived: {error}") from error


def _names(program: ExportedProgram, source: ModelSource) -> tuple[list[str], dict[str, str]]:
    """The inputs, and the outputs by name, both as the program's nodes."""
    from torch.utils._pytree import tree_unflatten

    found = program.graph_signature
    spec = program.call_spec
    assert spec.in_spec is not None, "torch.export sets it"
    assert spec.out_spec is not None, "torch.export sets it"
    inputs = list(found.user_inputs)
    arguments, keywords = tree_unflatten(inputs, spec.in_spec)
    returned = tree_unflatten(list(found.user_outputs), spec.out_spec)
    if isinstance(returned, str):
        returned = {"output": returned}
    elif not isinstance(returned, Mapping):
        returned = {f"output_{index}": node for index, node in enumerate(returned)}
    nodes = [node.name for node in program.graph.nodes]
    tensors = all(name in nodes for name in (*inputs, *returned.values()))
    if not inputs or keywords or list(arguments) != inputs or not tensors:
        raise ModelError(
            f"{source.reference}: takes {arguments}, {keywords} and returns {returned}; export a "
            "module that takes positional tensors and returns a tensor, or a tuple or dict of them"
        )
    return inputs, returned


def _spec(name: str, value: Any, dims: Mapping[str, Dim]) -> TensorSpec:
    dtype = "float32" if value.dtype.is_floating_point else str(value.dtype).removeprefix("torch.")
    shape = (str(dim) for dim in value.shape)
    return TensorSpec(name, dtype, tuple(dims.get(dim) or int(dim) for dim in shape))


def _range(program: ExportedProgram, varying: set[str]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for symbol, bounds in program.range_constraints.items():
        if str(symbol) in varying and str(bounds.upper).isdigit():
            limits["max_seq"] = int(bounds.upper)
        # NOTE: torch writes 2 where it means 1, as it treats a size of 1 as a case of its own.
        if str(symbol) in varying and int(bounds.lower) > 2:
            limits["min_seq"] = int(bounds.lower)
    return limits
