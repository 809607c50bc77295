"""The user's own modules: found where the command runs, declared, filled, checked."""

import importlib
import json
import sys
from textwrap import dedent

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.base import BadSample, ModelError
from models.registry import create

HEAD = """
import torch
from torch import nn
from models.base import ModelSource, ServedModel, TensorSpec
"""

RANKER = """
class Ranker(nn.Module):
    inputs = (
        TensorSpec("ids", "int64", ("batch", "seq"), pad_value=-1),
        TensorSpec("price", "float32", ("batch",), limits=(1, 2)),
        TensorSpec("mask", "bool", ("batch", "seq")),
        TensorSpec("shade", "uint8", ("batch",), limits=(40, 49)),
    )
    outputs = (
        TensorSpec("score", "float32", ("batch", 2)),
        TensorSpec("ids", "int64", ("batch", "seq")),
    )
    max_seq = 6

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 2)

    def forward(self, ids, price, mask, shade):
        return self.linear(price[:, None]), ids * mask
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module where the command is run; it is importable there, and gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine").mkdir()

    def write(text, name="ranking"):
        (tmp_path / "mine" / f"{name}.py").write_text(HEAD + dedent(text))
        importlib.invalidate_caches()

    yield write
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


def test_a_module_with_declared_inputs_is_enough(write):
    write(RANKER)
    worker, api = (create("mine.ranking:Ranker", name="ranker") for _ in range(2))
    module = worker.load("cpu", "float32")
    api.configure(json.loads(json.dumps(worker.describe())))

    sample = {"ids": [3, 4], "price": 2, "mask": [True, False], "shade": 9}
    arrays = api.preprocess(dict(api.sample.model_validate(sample)))
    dtypes = [str(arrays[spec.name].dtype) for spec in api.inputs]
    assert dtypes == ["int64", "float32", "bool", "uint8"]
    batch = [torch.from_numpy(arrays[spec.name])[None] for spec in api.inputs]
    score, ids = module(*batch)
    answer = api.postprocess({"score": score[0].numpy(), "ids": ids[0].numpy()})
    assert answer == {"score": score[0].tolist(), "ids": [3, 0]}
    assert (api.name, api.max_seq, api.inputs[0].pad_value) == ("ranker", 6, -1)
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_every_worker_has_the_same_weights(write):
    write(RANKER)
    models = [create("mine.ranking:Ranker", name="m") for _ in range(2)]
    first, second = (model.load("cpu", "float32").state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not models[0].random_weights
    assert create("mine.ranking:Ranker", name="m", weights="random").random_weights


def test_weights_from_a_file(write, tmp_path):
    write(RANKER)
    wanted = {"linear.weight": torch.ones(2, 1), "linear.bias": torch.zeros(2)}
    torch.save(wanted, tmp_path / "w.pth")
    module = create("mine.ranking:Ranker", name="m", weights="w.pth").load("cpu", "float32")
    assert all(torch.equal(module.state_dict()[name], wanted[name]) for name in wanted)


def test_examples_fit_the_declaration_and_are_always_the_same(write):
    write(RANKER)
    model = create("mine.ranking:Ranker", name="m")
    module = model.load("cpu", "float32")
    example = model.example(3, 5)
    shapes = {name: array.shape for name, array in example.items()}
    assert shapes == {"ids": (3, 5), "price": (3,), "mask": (3, 5), "shade": (3,)}
    assert example["mask"].all()
    assert set(example["ids"].flat) == {0, 1}
    assert all(1 <= price <= 2 for price in example["price"])
    assert all(40 <= shade <= 49 for shade in example["shade"])
    module(*map(torch.from_numpy, example.values()))
    again = create("mine.ranking:Ranker", name="m").example(3, 5)
    assert all(np.array_equal(again[name], example[name]) for name in example)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ids": [[1, 2]]}, r"ids: shape \[1, 2\]; expected \[seq\]"),
        ({"ids": [1, [2]]}, "ids: the lists are ragged"),
        ({"ids": [1, 2.5]}, r"ids: expected integers \(int64\)"),
        ({"ids": [1, "2"]}, "ids: expected integers"),
        ({"ids": [1, 2**70]}, "ids: expected integers"),
        ({"ids": [1, 2**63]}, "ids: expected integers"),
        ({"shade": 256}, "shade: out of the range of uint8"),
        ({"shade": True}, r"shade: expected integers \(uint8\)"),
        ({"price": "2"}, r"price: expected numbers \(float32\)"),
        ({"ids": [1, None]}, "ids: expected integers"),
        ({"mask": [1, 0]}, r"mask: expected booleans \(bool\)"),
        ({"ids": [1]}, r"ids, mask: expected one length, got {'ids': 1, 'mask': 2}"),
        ({"ids": [1] * 7, "mask": [True] * 7}, "ids: length 7; expected 1 to 6"),
        ({"ids": [], "mask": []}, "ids: length 0; expected 1 to 6"),
    ],
)
def test_a_wrong_tensor_is_named(write, change, says):
    write(RANKER)
    model = create("mine.ranking:Ranker", name="m")
    with pytest.raises(BadSample, match=says):
        model.preprocess({"ids": [1, 2], "price": 1.0, "mask": [True, True], "shade": 9} | change)


def test_the_sample_knows_its_fields(write):
    write(RANKER)
    model = create("mine.ranking:Ranker", name="m")
    schema = model.sample.model_json_schema()
    assert schema["properties"]["ids"]["description"] == "int64, shape [seq]"
    with pytest.raises(ValidationError, match=r"price\n.*required"):
        model.sample.model_validate({"ids": [1], "mask": [True], "shade": 9})
    with pytest.raises(ValidationError, match=r"other\n.*not permitted"):
        model.sample.model_validate(
            {"ids": [1], "mask": [True], "price": 1, "shade": 9, "other": 2}
        )


def test_max_seq_can_be_lowered_but_not_raised(write):
    write(RANKER)
    assert create("mine.ranking:Ranker", name="m", max_seq=4).max_seq == 4
    with pytest.raises(ModelError, match=r"max_seq = 7: mine\.ranking:Ranker takes 1 to 6"):
        create("mine.ranking:Ranker", name="m", max_seq=7)


OWN = """
class Own(ServedModel):
    inputs = outputs = (TensorSpec("x", "float32", ("batch", 1)),)
    {constructor}
    def load(self, device, dtype): return nn.Identity()
    def preprocess(self, payload): return {{}}
    def postprocess(self, outputs): return None
    def example(self, batch, seq): return {{}}
"""


def test_a_served_model_is_used_as_it_is(write):
    write(OWN.format(constructor="def __init__(self, source: ModelSource): self.source = source"))
    model = create("mine.ranking:Own", name="own", task="rank")
    assert (type(model).__name__, model.name, model.source.task) == ("Own", "own", "rank")


def test_a_served_model_without_options(write):
    write(OWN.format(constructor=""))
    assert create("mine.ranking:Own", name="own").name == "own"
    with pytest.raises(ModelError, match="takes no options; let its constructor take"):
        create("mine.ranking:Own", name="own", task="rank")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class Net(ServedModel): pass", "Net does not define example, load, postprocess"),
        ("class Net(nn.Module): pass", r"declares its inputs and outputs.*\n.*\nclass Doubler"),
        ("class Net: inputs = outputs = ()", "expected a models.base.ServedModel, or an nn.Module"),
        ("class Nets: pass", r"ranking\.py has no class Net; it has: .*Nets"),
        ("Net = 5", "has no class Net"),
        (
            "import no_such_thing",
            r"cannot import mine\.ranking \(No module named 'no_such_thing'\)",
        ),
    ],
)
def test_what_is_no_model_is_explained(write, text, says):
    write(text)
    with pytest.raises(ModelError, match=says):
        create("mine.ranking:Net", name="m")


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ('TensorSpec("x", "float32", (3, "batch"))', r'"batch" first'),
        ('TensorSpec("x", "float32", ("batch", "length"))', r"inputs\.0\.shape"),
        ('TensorSpec("x", "bfloat16", ("batch",))', "dtype 'bfloat16'; expected bool, uint8"),
        ('TensorSpec("x y", "int64", ("batch",))', "expected a name like input_ids"),
        ('TensorSpec("x", "int64", ("batch", "seq"))', "declare max_seq"),
        ('TensorSpec("x", "int8", ("batch",)), TensorSpec("x", "int8", ("batch",))', "differ"),
        ('"x"', r"inputs\.0"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(write, inputs, says):
    write(
        f"""
        class Net(nn.Module):
            inputs = ({inputs},)
            outputs = (TensorSpec("y", "float32", ("batch",)),)
        """
    )
    with pytest.raises(ModelError, match=says):
        create("mine.ranking:Net", name="m")


def test_a_module_that_is_not_there(write):
    with pytest.raises(ModelError, match=r"cannot import mine\.other .*Start where the module is"):
        create("mine.other:Net", name="m")
