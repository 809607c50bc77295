"""What a user may write for a model, what it becomes, and what they are told when it is neither."""

import pytest

from models.base import ModelError
from models.registry import create, describe_catalogue
from models.torchvision import names


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("efficientnet-lite0", "EfficientNetLite0 efficientnet-lite0"),
        ("EfficientNet-Lite0", "EfficientNetLite0 efficientnet-lite0"),
        ("resnet50", "TorchvisionModel resnet50"),
        ("torchvision:vit_b_16", "TorchvisionModel vit_b_16"),
        ("timm:resnet50.a1_in1k", "TimmModel resnet50.a1_in1k"),
        ("timm:hf-hub:timm/resnet18.a1_in1k", "TimmModel hf-hub:timm/resnet18.a1_in1k"),
    ],
)
def test_what_is_written_is_what_is_made(written, made):
    model = create(written, name="chosen")
    assert f"{type(model).__name__} {model.source.reference}" == made
    assert model.name == "chosen"


@pytest.mark.parametrize(
    ("written", "made"), [("all-minilm-l6-v2", "MiniLM"), ("LSTM", "LSTMForecaster")]
)
def test_built_in_names_mind_no_case(written, made):
    assert type(create(written, name="m")).__name__ == made


@pytest.mark.parametrize("written", ["{}/bert", "transformers:{}/bert", "hf:{}/bert"])
def test_a_directory_is_one_of_transformers(tmp_path, written):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(
        '{"model_type": "bert", "architectures": ["BertForMaskedLM"]}'
    )
    model = create(written.format(tmp_path), name="m", task="fill-mask", weights="random")
    assert type(model).__module__.startswith("models.")
    assert model.source.reference == f"{tmp_path}/bert"


def test_a_directory_of_something_else(tmp_path):
    with pytest.raises(ModelError, match=r"a directory without config\.json"):
        create(str(tmp_path), name="m")


@pytest.mark.parametrize(
    ("written", "close"),
    [
        ("resnet5", "resnet50"),
        ("ResNet50", "resnet50"),
        ("efficientnet-lite", "efficientnet-lite0"),
    ],
)
def test_an_unknown_name_lists_close_ones_and_every_kind(written, close):
    with pytest.raises(ModelError) as error:
        create(written, name="m")
    assert error.match(rf"close: .*\b{close}\b")
    for row in describe_catalogue():
        assert row.written in str(error.value)


@pytest.mark.parametrize("written", ["sentence-transformers/all-MiniLM-L6-v2", "nope", ":", "a b"])
def test_a_name_that_nothing_is_close_to(written):
    with pytest.raises(ModelError, match=r"transformers:ID"):
        create(written, name="m")


def test_an_unknown_name_of_torchvision():
    with pytest.raises(ModelError, match="no such classification model; close: resnet"):
        create("torchvision:resnet", name="m")


@pytest.mark.parametrize(
    ("written", "option"),
    [
        ("resnet50", {"task": "embedding"}),
        ("timm:resnet18", {"revision": "main"}),
        ("efficientnet-lite0", {"max_seq": 8}),
        ("all-MiniLM-L6-v2", {"labels": "labels.txt"}),
    ],
)
def test_an_option_of_another_kind_is_refused(written, option):
    with pytest.raises(ModelError, match=rf"{next(iter(option))} cannot be set"):
        create(written, name="m", **option)


def test_names_of_torchvision_are_those_installed():
    from torchvision import models

    assert names() == models.list_models(module=models)


def test_catalogue_has_a_row_for_every_kind_and_its_examples_are_understood():
    rows = describe_catalogue()
    assert {row.kind for row in rows} >= {"built-in", "torchvision", "timm", "transformers"}
    for row in rows:
        assert all(row), row
        problem = refusal(row.example)
        assert "no built-in model" not in problem, row


def refusal(written):
    """Why it cannot be made, such as a file that is not there; empty if it can."""
    try:
        create(written, name="m")
    except ModelError as error:
        return str(error)
    return ""
