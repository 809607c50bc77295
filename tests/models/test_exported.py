"""TorchScript and torch.export files: loaded, described by themselves or by a file beside them."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, export, save

from models.base import ModelError, TensorSpec
from models.registry import create


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.dropout = nn.Dropout()

    def forward(self, x):
        return self.dropout(self.linear(x)) + torch.arange(3, device=x.device)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, ids, weight):
        hidden = self.embedding(ids) * weight[..., None]
        return {"tags": hidden, "mean": hidden.mean(1)}


CLASSIFIER = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": ["batch", 3]}],
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def script(module, path, freeze=False):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit")
        scripted = torch.jit.script(module.eval())
        torch.jit.save(torch.jit.freeze(scripted) if freeze else scripted, path)
    return module


def export_to(path, module, *args, dims):
    save(export(module.eval(), args, dynamic_shapes=dims), path)
    return module


def write_json(path, content):
    with open(path, "w") as file:
        json.dump(content, file)


def run(model, module, batch, seq=0):
    with torch.inference_mode():
        return module(*[torch.from_numpy(array) for array in model.example(batch, seq).values()])


def other_process(model, reference):
    twin = create(reference, name="m")
    twin.configure(json.loads(json.dumps(model.describe())))
    return twin


# TorchScript


@pytest.mark.parametrize("reference", ["model.pt", "./model.ts", "torchscript:model.pt"])
def test_torchscript_answers_as_the_module_did(reference):
    original = script(Classifier(), reference.removeprefix("torchscript:"))
    write_json("model.json", CLASSIFIER)
    model = create(reference, name="m")
    module = model.load("cpu", "float32")
    torch.testing.assert_close(run(model, module, 3), run(model, original, 3))
    assert not model.compilable
    assert not module.requires_grad_(False).training
    assert not any(parameter.requires_grad for parameter in module.parameters())

    api = other_process(model, reference)
    assert api.inputs == (TensorSpec("x", "float32", ("batch", 4)),)
    assert api.preprocess({"x": [1, 2, 3, 4]})["x"].dtype == np.float32
    assert api.postprocess({"y": np.ones(3, np.float32)}) == {"y": [1.0, 1.0, 1.0]}


def test_torchscript_is_cast():
    script(Classifier(), "model.pt")
    write_json("model.json", CLASSIFIER)
    module = create("model.pt", name="m").load("cpu", "bfloat16")
    assert module(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_frozen_torchscript_runs_in_its_own_type_only():
    original = script(Classifier(), "model.pt", freeze=True)
    write_json("model.json", CLASSIFIER)
    model = create("model.pt", name="m")
    torch.testing.assert_close(run(model, model.load("cpu", "float32"), 2), run(model, original, 2))
    with pytest.raises(ModelError, match="frozen, its weights cannot be cast to bfloat16"):
        model.load("cpu", "bfloat16")


def test_torchscript_needs_its_tensors_declared():
    script(Classifier(), "model.pt")
    with pytest.raises(ModelError) as error:
        create("model.pt", name="m")
    assert error.match(r"write model\.json, for example")
    example = str(error.value).partition("for example\n")[2].partition('\n\n"batch"')[0]
    write_json("model.json", json.loads(example))
    assert create("model.pt", name="m").inputs[0].shape == ("batch", 3, 224, 224)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"inputs": CLASSIFIER["inputs"]}, r"model\.json: outputs: Field required"),
        (CLASSIFIER | {"name": "m"}, "name: Extra inputs are not permitted"),
        (CLASSIFIER | {"outputs": []}, "outputs: .*at least 1 item"),
        (CLASSIFIER | {"inputs": [{"name": "x"}]}, r"inputs\.0\.dtype: Field required"),
        ("nonsense", r"model\.json: .*Expected like"),
    ],
)
def test_a_declaration_that_is_wrong(content, says):
    script(Classifier(), "model.pt")
    write_json("model.json", content)
    with pytest.raises(ModelError, match=says):
        create("model.pt", name="m")


# torch.export


def test_export_describes_itself():
    batch, length = Dim("batch"), Dim("length", max=12)
    args = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5)
    dims = ({0: batch, 1: length}, {0: batch, 1: length})
    original = export_to("model.pt2", Tagger(), *args, dims=dims)
    model = create("model.pt2", name="m")
    module = model.load("cpu", "float32")
    assert model.inputs == (
        TensorSpec("ids", "int64", ("batch", "seq")),
        TensorSpec("weight", "float32", ("batch", "seq")),
    )
    assert model.outputs == (
        TensorSpec("tags", "float32", ("batch", "seq", 4)),
        TensorSpec("mean", "float32", ("batch", 4)),
    )
    assert (model.max_seq, model.min_seq, model.compilable) == (12, 1, True)
    for batch, seq in [(1, 1), (4, 12)]:
        torch.testing.assert_close(run(model, module, batch, seq), run(model, original, batch, seq))

    api = other_process(model, "export:model.pt2")
    assert (api.inputs, api.outputs, api.max_seq) == (model.inputs, model.outputs, 12)
    assert list(api.sample.model_json_schema()["properties"]) == ["ids", "weight"]


def exported_classifier(dims=None):
    return export_to("model.pt2", Classifier(), torch.ones(2, 4), dims=dims or ({0: Dim("batch")},))


def test_export_is_cast_and_in_eval_mode():
    exported_classifier()
    module = create("model.pt2", name="m").load("cpu", "bfloat16")
    batch = torch.ones(2, 4, dtype=torch.bfloat16)
    assert module(batch).dtype == torch.bfloat16
    assert torch.equal(module(batch), module(batch))
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_export_compiles_without_a_graph_break():
    exported_classifier()
    model = create("model.pt2", name="m")
    module = model.load("cpu", "float32")
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=False)
    for batch in (1, 2, 4):
        torch.testing.assert_close(run(model, compiled, batch), run(model, module, batch))


def test_a_declaration_beside_an_export_wins():
    exported_classifier()
    write_json("model.json", CLASSIFIER)
    model = create("model.pt2", name="m")
    model.load("cpu", "float32")
    assert model.outputs[0].name == "y"


def test_export_with_a_static_batch():
    export_to("model.pt2", Classifier(), torch.ones(2, 4), dims=None)
    with pytest.raises(ModelError, match=r"'x': \['2', '4'\].*export it with dynamic_shapes"):
        create("model.pt2", name="m").load("cpu", "float32")


def test_export_of_two_lengths_or_of_computed_ones():
    class Twice(nn.Module):
        def forward(self, x):
            return torch.cat([x, x], 1)

    dims = ({0: Dim("batch"), 1: Dim("length", max=9)},)
    export_to("model.pt2", Twice(), torch.ones(2, 4), dims=dims)
    with pytest.raises(ModelError, match=r"cannot be derived: .*; write model\.json"):
        create("model.pt2", name="m").load("cpu", "float32")
    dims = ({0: Dim("batch"), 1: Dim("height"), 2: Dim("width")},)
    export_to("model.pt2", nn.ReLU(), torch.ones(2, 4, 5), dims=dims)
    with pytest.raises(ModelError, match="at most one other"):
        create("model.pt2", name="m").load("cpu", "float32")


def test_export_without_a_limit_needs_one():
    dims = ({0: Dim("batch"), 1: Dim("length")},)
    export_to("model.pt2", nn.ReLU(), torch.ones(2, 4), dims=dims)
    with pytest.raises(ModelError, match="declare max_seq"):
        create("model.pt2", name="m").load("cpu", "float32")
    model = create("model.pt2", name="m", max_seq=7)
    model.load("cpu", "float32")
    assert model.max_seq == 7


def test_export_with_keywords():
    class Scaled(nn.Module):
        def forward(self, x, *, by):
            return x * by

    batch = Dim("batch")
    program = export(
        Scaled(),
        (torch.ones(2, 4),),
        {"by": torch.ones(2, 1)},
        dynamic_shapes={"x": {0: batch}, "by": {0: batch}},
    )
    save(program, "model.pt2")
    with pytest.raises(ModelError, match="positional tensors"):
        create("model.pt2", name="m").load("cpu", "float32")


# Neither


@pytest.mark.parametrize("reference", ["torchscript:gone.pt", "gone.pt2"])
def test_no_such_file(reference, tmp_path):
    with pytest.raises(ModelError, match=f"no such file, looked for {tmp_path}/gone"):
        create(reference, name="m")


@pytest.mark.parametrize("reference", ["model.pt", "model.pt2"])
@pytest.mark.parametrize("content", ["garbage", "state dict"])
def test_not_such_a_file(reference, content):
    write_json("model.json", CLASSIFIER)
    if content == "garbage":
        with open(reference, "wb") as file:
            file.write(b"garbage" * 99)
    else:
        torch.save(Classifier().state_dict(), reference)
    with pytest.raises(ModelError, match="not a file of torch.*A file of weights alone"):
        create(reference, name="m").load("cpu", "float32")
