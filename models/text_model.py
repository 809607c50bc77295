"""What all text models of the transformers library share: files, limits, inputs, tokens.

The worker loads and examines a model; the API process is told what it found, and tokenises. Knows
nothing of single tasks: `text_tasks` does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from models import hub, pretrained
from models.base import Arrays, Dim, ModelError, ModelSource, ServedModel, TensorSpec
from models.checkpoint import check_weights
from models.text import TextSample, Tokens

if TYPE_CHECKING:
    from tokenizers import Encoding
    from torch import nn

NO_LIMIT = 1_000_000
"""What tokenizers write for "no limit" is far above this."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What the worker found in a text model and an API process has to know; JSON-able.

    `tokenizer` is a path, None for the stand-in. `prompt` goes before every text.
    """

    tokenizer: str | None
    max_seq: int
    vocab_size: int
    hidden_size: int
    pad_id: int
    token_types: bool
    labels: list[str] = field(default_factory=list)
    scores: str = "softmax"
    prompt: str = ""


class TextModel(ServedModel):
    """An encoder with the head of one task."""

    sample = TextSample
    raw_bodies: ClassVar[Mapping[str, str]] = {"text/plain": "text"}
    auto_class: ClassVar[str]
    facts: TextFacts
    tokens: Tokens

    def __init__(self, source: ModelSource) -> None:
        check_weights(source)
        if source.labels is not None:
            raise ModelError(
                f"labels = {source.labels!r}: for image classifiers only; a text model has its "
                "labels in its config.json (id2label)"
            )
        self.name = source.name
        self.random_weights = source.weights == "random"
        self.source = source

    @abstractmethod
    def select(self, snapshot: hub.Snapshot) -> pretrained.Select:
        """What the module gives of all that the model computes."""

    @abstractmethod
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs, once `facts` are known."""

    def load(self, device: str, dtype: str) -> nn.Module:
        snapshot = hub.find(self.source, hub.WEIGHTS)
        tokenizer = _tokenizer(snapshot, self.source)
        model = pretrained.load(self.auto_class, snapshot, self.source.weights)
        self.configure(asdict(self.examine(snapshot, tokenizer, model)))
        names = [spec.name for spec in self.encoder_inputs()]
        return pretrained.positional(model, names, self.select(snapshot), device, dtype)

    def examine(self, snapshot: hub.Snapshot, tokenizer: str | None, model: Any) -> TextFacts:
        """The facts of a loaded model."""
        config = model.config
        return TextFacts(
            tokenizer=tokenizer,
            max_seq=_limit(snapshot, model, self.source),
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            pad_id=getattr(config, "pad_token_id", None) or 0,
            token_types=getattr(config, "type_vocab_size", 0) > 1,
        )

    def describe(self) -> dict[str, Any]:
        return asdict(self.facts)

    def configure(self, facts: Mapping[str, Any]) -> None:
        self.facts = TextFacts(**facts)
        self.max_seq = self.facts.max_seq
        self.tokens = Tokens(self.facts.tokenizer, self.facts.max_seq, self.facts.pad_id)
        self.inputs = self.encoder_inputs()
        self.outputs = self.output_specs()

    def encoder_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the encoder itself, by its own names."""
        shape: tuple[Dim, Dim] = ("batch", "seq")
        specs = (
            TensorSpec(
                "input_ids", "int64", shape, self.facts.pad_id, (0, self.facts.vocab_size - 1)
            ),
            TensorSpec("attention_mask", "int64", shape, limits=(0, 1)),
            TensorSpec("token_type_ids", "int64", shape, limits=(0, 1)),
        )
        return specs if self.facts.token_types else specs[:2]

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        return self.arrays(self.encode(payload))

    def encode(self, payload: Mapping[str, Any]) -> Encoding:
        """The tokens of one sample."""
        text = self.facts.prompt + payload["text"]
        return self.tokens.encode(text, payload.get("text_pair"), payload.get("truncate", False))

    def arrays(self, encoding: Encoding) -> Arrays:
        """The encoder's inputs from the tokens of one sample."""
        ids = np.asarray(encoding.ids, np.int64)
        types = np.asarray(encoding.type_ids, np.int64)
        return self._declared(ids, np.ones_like(ids), types)

    def example(self, batch: int, seq: int) -> Arrays:
        arrays = self.tokens.example(batch, seq, self.facts.vocab_size)
        ids = arrays["input_ids"]
        return self._declared(ids, arrays["attention_mask"], np.zeros_like(ids))

    def _declared(self, *arrays: np.ndarray[Any, Any]) -> Arrays:
        names = (spec.name for spec in self.encoder_inputs())
        return dict(zip(names, arrays, strict=False))


def _tokenizer(snapshot: hub.Snapshot, source: ModelSource) -> str | None:
    path = snapshot.file("tokenizer.json")
    if path is None and source.weights != "random":
        raise ModelError(
            f"{source.reference}: no tokenizer.json in {snapshot.directory}; write one with "
            "AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
        )
    return str(path) if path else None


def _limit(snapshot: hub.Snapshot, model: Any, source: ModelSource) -> int:
    claims = (
        snapshot.read("sentence_bert_config.json").get("max_seq_length"),
        snapshot.read("tokenizer_config.json").get("model_max_length"),
        pretrained.positions(model) or getattr(model.config, "max_position_embeddings", None),
    )
    known = (int(claim) for claim in claims if claim and claim < NO_LIMIT)
    own = min(known, default=source.max_seq)
    if own is None:
        raise ModelError(f"{source.reference}: its files set no limit of length; set `max_seq`")
    if source.max_seq is not None and source.max_seq > own:
        raise ModelError(f"max_seq = {source.max_seq}: {source.reference} takes up to {own}")
    return source.max_seq or own
