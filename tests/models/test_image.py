"""Image models: what they read, that they see what torchvision and timm see, what they answer."""

import base64
import io
import json
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image

from models.base import BadSample, ModelError
from models.image import ImageSample, decode, imagenet_labels, pixels, top_labels
from models.registry import create


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    def unreachable(*_, **__):
        raise socket.gaierror("no network")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))


def picture(height=60, width=80, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def other_process(model, reference, **options):
    """The model as an API process has it: made anew, told what the worker's own has found out."""
    twin = create(reference, name="m", **options)
    twin.configure(json.loads(json.dumps(model.describe())))
    return twin


def answer(module, api, data):
    batch = torch.from_numpy(api.preprocess({"image": data})["image"])[None]
    with torch.inference_mode():
        outputs = module(batch)
    return api.postprocess({api.outputs[0].name: outputs[0].numpy()})


# Decoding


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_reads_every_format_it_names(kind):
    data = encoded(picture(), kind)
    assert pixels(data) == 60 * 80
    assert (decode(data).mode, decode(data).size) == ("RGB", (80, 60))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_any_mode_becomes_rgb(mode):
    image = picture().convert(mode)
    assert decode(encoded(image)).tobytes() == image.convert("RGBA").convert("RGB").tobytes()


def test_cmyk_becomes_rgb():
    colours = np.asarray(decode(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")))
    np.testing.assert_allclose(colours, np.broadcast_to([255, 0, 0], (8, 8, 3)), atol=3)


def test_palette_with_several_transparent_colours():
    data = encoded(picture().quantize(16), transparency=bytes(range(0, 256, 16)))
    assert decode(data).tobytes() == picture().quantize(16).convert("RGB").tobytes()


def test_16_bits_keep_their_brightness():
    grey = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    red = np.asarray(decode(encoded(Image.fromarray(grey))))[..., 0]
    assert (red == grey >> 8).all()


def test_exif_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = decode(encoded(picture(), exif=exif))
    assert turned.tobytes() == picture().transpose(Image.Transpose.ROTATE_270).tobytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        encoded(picture(), "JPEG")[:300],
        encoded(picture())[:-200],
        encoded(picture())[:20],
        encoded(picture(), "TIFF"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
)
def test_what_cannot_be_read_is_refused(data):
    with pytest.raises(BadSample, match=r"^image: .*expected a JPEG, PNG, WebP, GIF or BMP image"):
        decode(data)


def test_pixels_needs_the_header_alone_and_has_no_limit_of_its_own():
    assert pixels(encoded(Image.new("1", (20_000, 10_000)))[:200]) == 200_000_000


def test_sample_is_base64():
    sample = ImageSample.model_validate({"image": base64.b64encode(b"bytes").decode()})
    assert dict(sample) == {"image": b"bytes"}
    assert ImageSample.model_json_schema()["properties"]["image"]["contentEncoding"] == "base64"


@pytest.mark.parametrize("value", ["not base64", "YWJj\nYWJj", "YWJ", 5, None])
def test_sample_that_is_not_base64(value):
    with pytest.raises(ValidationError, match=r"base64|valid bytes"):
        ImageSample.model_validate({"image": value})


# The transforms of torchvision and timm

SIZES = [(60, 80), (480, 640), (257, 255), (37, 91), (1000, 333), (8, 8)]


@pytest.mark.parametrize("name", ["squeezenet1_1", "efficientnet_b1", "inception_v3", "swin_v2_t"])
def test_preprocess_is_that_of_torchvision(name):
    from torchvision.models import get_model_weights

    model = create(name, name="m", weights="random")
    model.load("meta", "float32")
    theirs = get_model_weights(name).DEFAULT.transforms()
    for height, width in SIZES:
        image = picture(height, width)
        ours = model.preprocess({"image": encoded(image)})["image"]
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs(image).numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("crop_mode", "crop_pct", "input_size"),
    [("center", 0.875, (3, 224, 224)), ("center", 1.0, (3, 96, 96)), ("squash", 0.9, (3, 96, 64))],
)
def test_preprocess_is_that_of_timm(crop_mode, crop_pct, input_size):
    from timm.data import create_transform

    from models.timm import transform

    config = {
        "input_size": input_size,
        "interpolation": "bicubic",
        "mean": (0.48, 0.45, 0.4),
        "std": (0.26, 0.26, 0.27),
        "crop_pct": crop_pct,
        "crop_mode": crop_mode,
    }
    for height, width in SIZES:
        image = picture(height, width)
        theirs = create_transform(**config)(image).numpy()
        np.testing.assert_allclose(transform(config)(image), theirs, atol=1e-6)


def test_a_transform_that_would_need_a_border_is_refused():
    from models.timm import transform

    config = {"input_size": (3, 64, 64), "interpolation": "bicubic", "mean": (0, 0, 0)}
    config |= {"std": (1, 1, 1), "crop_pct": 1.0, "crop_mode": "border"}
    with pytest.raises(ModelError, match="'border'"):
        transform(config)


def test_a_sliver_is_refused_before_it_is_enlarged():
    model = create("squeezenet1_1", name="m", weights="random")
    model.load("meta", "float32")
    with pytest.raises(BadSample, match="image: 50000 by 2 pixels; expected at most 100 times"):
        model.preprocess({"image": encoded(Image.new("1", (50_000, 2)))})


# Answers


def test_labels_come_best_first_with_their_softmax():
    best = top_labels(np.array([1.0, 3.0, 2.0, -1e4], np.float32), ["a", "b", "c", "d"])
    assert [(item["label"], item["index"]) for item in best] == [
        ("b", 1),
        ("c", 2),
        ("a", 0),
        ("d", 3),
    ]
    assert [item["score"] for item in best] == pytest.approx([0.6652, 0.2447, 0.09, 0], abs=1e-4)


def test_labels_of_imagenet_are_those_of_torchvision():
    from torchvision.models import ResNet50_Weights

    assert list(imagenet_labels()) == ResNet50_Weights.DEFAULT.meta["categories"]


@pytest.mark.parametrize(("file", "label"), [("flower.jpg", "daisy"), ("china.jpg", "palace")])
def test_demo_knows_real_photographs(file, label):
    model = create("efficientnet-lite0", name="m")
    module = model.load("cpu", "float32")
    api = other_process(model, "efficientnet-lite0")
    photograph = encoded(Image.fromarray(load_sample_image(file)), "JPEG", quality=95)
    labels = answer(module, api, photograph)["labels"]
    assert labels[0]["label"] == label
    assert len(labels) == 5
    assert not api.random_weights


def test_demo_has_one_set_of_weights(tmp_path):
    (tmp_path / "w.pth").touch()
    with pytest.raises(ModelError, match="timm:tf_efficientnet_lite0"):
        create("efficientnet-lite0", name="m", weights=str(tmp_path / "w.pth"))


# torchvision and timm


@pytest.mark.parametrize("reference", ["mobilenet_v3_small", "timm:test_resnet"])
def test_random_weights_are_the_same_everywhere_and_say_so(reference):
    first, second = (create(reference, name="m", weights="random") for _ in range(2))
    batch = torch.from_numpy(first_example(first))
    state = torch.get_rng_state()
    modules = [model.load("cpu", "float32") for model in (first, second)]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(modules[0](batch), modules[1](batch))
    assert first.random_weights
    assert not modules[0].training
    assert not any(parameter.requires_grad for parameter in modules[0].parameters())


def first_example(model):
    model.load("cpu", "float32")
    return model.example(2, 0)["image"]


@pytest.mark.parametrize("reference", ["squeezenet1_1", "timm:test_resnet"])
def test_own_weights_and_labels(tmp_path, reference):
    trained = create(reference, name="m", weights="random", labels=labels_file(tmp_path, "cat dog"))
    module = trained.load("cpu", "float32")
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    torch.save(module.state_dict(), tmp_path / "w.pth")

    expected = answer(module, trained, encoded(picture()))
    assert {item["label"] for item in expected["labels"]} == {"cat", "dog"}
    for file in ("w.safetensors", "w.pth"):
        options = {"weights": str(tmp_path / file), "labels": trained.source.labels}
        model = create(reference, name="m", **options)
        module = model.load("cpu", "float32")
        api = other_process(model, reference, **options)
        assert answer(module, api, encoded(picture())) == expected
        assert not api.random_weights


def labels_file(folder, names):
    path = folder / "labels.txt"
    path.write_text(names.replace(" ", "\n") + "\n")
    return str(path)


def test_weights_are_cast():
    module = create("squeezenet1_1", name="m", weights="random").load("cpu", "bfloat16")
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


def test_older_names_in_the_files_of_densenets(tmp_path):
    model = create("densenet121", name="m", weights="random")
    state = model.load("cpu", "float32").state_dict()
    old = {
        name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): tensor
        for name, tensor in state.items()
    }
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "w.pth")
    loaded = create("densenet121", name="m", weights=str(tmp_path / "w.pth")).load("cpu", "float32")
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_models_with_auxiliary_outputs_give_one(name):
    model = create(name, name="m", weights="random")
    module = model.load("cpu", "float32")
    with torch.inference_mode():
        assert module(torch.from_numpy(model.example(1, 0)["image"])).shape == (1, 1000)


def test_a_model_without_classes_embeds():
    reference = "timm:vit_small_patch16_dinov3"
    model = create(reference, name="m", weights="random")
    module = model.load("cpu", "float32")
    api = other_process(model, reference, weights="random")
    assert len(answer(module, api, encoded(picture()))["embedding"]) == 384


def test_other_classes_than_imagenets_are_named_by_timm():
    model = create("timm:vit_tiny_patch16_224.augreg_in21k", name="m", weights="random")
    model.load("meta", "float32")
    logits = np.zeros(21843, np.float32)
    logits[2] = 5
    assert model.postprocess({"logits": logits})["labels"][0]["label"] == "heterotroph"


def test_without_a_network_the_file_and_the_remedy_are_named(no_network, tmp_path):
    with pytest.raises(ModelError) as error:
        create("squeezenet1_1", name="m").load("cpu", "float32")
    assert error.match(r"squeezenet1_1-b8a52dc0\.pth")
    assert error.match(str(tmp_path / "hub" / "checkpoints"))
    assert error.match("set weights to its path")


def test_without_a_network_timm_names_the_hub_and_the_remedy(no_network, tmp_path):
    with pytest.raises(ModelError) as error:
        create("timm:test_resnet", name="m").load("cpu", "float32")
    assert error.match(r"timm/test_resnet\.r160_in1k")
    assert error.match(str(tmp_path))
    assert error.match("Set weights to the path")


def test_unknown_name_of_timm():
    with pytest.raises(ModelError, match=r"no such model; close: .*mobilenetv3_large_100"):
        create("timm:mobilenetv3_large", name="m", weights="random").load("cpu", "float32")


@pytest.mark.parametrize("reference", ["squeezenet1_1", "timm:test_resnet"])
class TestWrongWeights:
    def load(self, reference, path, **options):
        create(reference, name="m", weights=str(path), **options).load("cpu", "float32")

    def test_no_such_file(self, reference, tmp_path):
        with pytest.raises(ModelError, match=r"w\.pth: no such file"):
            self.load(reference, tmp_path / "w.pth")

    def test_no_such_kind_of_file(self, reference, tmp_path):
        (tmp_path / "w.onnx").touch()
        with pytest.raises(ModelError, match=r"expected a \.safetensors file"):
            self.load(reference, tmp_path / "w.onnx")

    @pytest.mark.parametrize("file", ["w.pth", "w.safetensors"])
    def test_garbage(self, reference, tmp_path, file):
        (tmp_path / file).write_bytes(b"garbage" * 99)
        with pytest.raises(ModelError, match=rf"weights = .*{file}"):
            self.load(reference, tmp_path / file)

    def test_code_in_a_pickle_is_not_run(self, reference, tmp_path):
        torch.save({"a": Sneaky()}, tmp_path / "w.pth")
        with pytest.raises(ModelError, match=r"weights = .*w\.pth"):
            self.load(reference, tmp_path / "w.pth")

    def test_of_another_model(self, reference, tmp_path):
        torch.save({"layer.weight": torch.zeros(2)}, tmp_path / "w.pth")
        with pytest.raises(ModelError, match=r"weights = .*w\.pth: .*Missing key"):
            self.load(reference, tmp_path / "w.pth")

    def test_of_other_classes(self, reference, tmp_path):
        labels = labels_file(tmp_path, "cat dog")
        module = create(reference, name="m", weights="random", labels=labels).load("cpu", "float32")
        torch.save(module.state_dict(), tmp_path / "w.pth")
        with pytest.raises(ModelError, match="size mismatch"):
            self.load(reference, tmp_path / "w.pth")


class Sneaky:
    def __reduce__(self):
        return pytest.fail, ("a pickle ran its code",)


def test_labels_that_cannot_be_right(tmp_path):
    with pytest.raises(ModelError, match=r"labels = none\.txt: cannot be read"):
        create("resnet50", name="m", labels="none.txt")
    (tmp_path / "labels.txt").write_text("cat\n\ndog\n")
    with pytest.raises(ModelError, match="no empty line"):
        create("resnet50", name="m", labels=str(tmp_path / "labels.txt"))
    with pytest.raises(ModelError, match="2 names, but efficientnet-lite0 has 1000 outputs"):
        create("efficientnet-lite0", name="m", labels=labels_file(tmp_path, "cat dog")).load(
            "cpu", "float32"
        )


def test_api_process_answers_without_torch():
    worker = create("squeezenet1_1", name="m", weights="random")
    worker.load("meta", "float32")
    image = base64.b64encode(encoded(picture())).decode()
    code = f"""
import base64, json, sys
import numpy as np
from models.registry import create, describe_catalogue
model = create("squeezenet1_1", name="m", weights="random")
create("timm:test_resnet", name="t"), create("efficientnet-lite0", name="e"), describe_catalogue()
model.configure(json.loads({json.dumps(json.dumps(worker.describe()))}))
model.preprocess({{"image": base64.b64decode("{image}")}})
print(model.postprocess({{"logits": np.arange(1000, dtype=np.float32)}})["labels"][0]["label"])
print([name for name in ("torch", "torchvision", "timm") if name in sys.modules])
"""
    run = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("toilet tissue\n[]\n", "")
