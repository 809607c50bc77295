"""The text tasks: which head each one loads, and what its answers look like.

Knows nothing of files or tokenizers beyond what `text_model` hands it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from models import hub, pretrained
from models.base import Arrays, BadSample, Dim, ModelError, TensorSpec
from models.scores import SCORES, labels_of, ranked, scores_of, softmax
from models.text import PairSample
from models.text_model import TextFacts, TextModel

TOP_K = 5
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
SPANS: tuple[Dim, ...] = ("batch", "seq", 3)
"""Id, start and end of each token; -1 for special ones."""


class Embedding(TextModel):
    """One vector of each text, as sentence-transformers makes it."""

    auto_class = "AutoModel"

    def select(self, snapshot: hub.Snapshot) -> pretrained.Select:
        return pretrained.pooled(*_pooling(snapshot))

    def examine(self, snapshot: hub.Snapshot, tokenizer: str | None, model: Any) -> TextFacts:
        config = snapshot.read("config_sentence_transformers.json")
        prompt = config.get("prompts", {}).get(config.get("default_prompt_name"), "")
        return replace(super().examine(snapshot, tokenizer, model), prompt=prompt)

    def output_specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("embedding", "float32", ("batch", self.facts.hidden_size)),)

    def postprocess(self, outputs: Arrays) -> Any:
        return {"embedding": outputs["embedding"]}


def _pooling(snapshot: hub.Snapshot) -> tuple[str, bool]:
    """How token vectors become one, and whether its length is made 1."""
    modules = {entry["type"].rsplit(".", 1)[-1]: entry for entry in snapshot.read("modules.json")}
    if not modules:
        return "mean", True
    modes = _modes(snapshot.read(f"{modules.get('Pooling', {}).get('path')}/config.json"))
    unknown = modules.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or modes not in (["mean"], ["cls"]):
        raise ModelError(
            f"{snapshot.directory}: modules.json asks for {', '.join(modules)} with pooling "
            f"{', '.join(modes) or 'none'}; served are Transformer, Pooling (mean or cls) and "
            "Normalize"
        )
    return modes[0], "Normalize" in modules


def _modes(config: Mapping[str, Any]) -> list[str]:
    if mode := config.get("pooling_mode"):
        return [mode] if isinstance(mode, str) else list(mode)
    flags = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
    return [POOLINGS.get(flag, flag) for flag in flags]


class SequenceClassification(TextModel):
    """The labels of a text or a pair of texts, most likely first."""

    auto_class = "AutoModelForSequenceClassification"
    sample = PairSample

    def select(self, snapshot: hub.Snapshot) -> pretrained.Select:
        return pretrained.logits

    def examine(self, snapshot: hub.Snapshot, tokenizer: str | None, model: Any) -> TextFacts:
        facts = super().examine(snapshot, tokenizer, model)
        labels = labels_of(model.config)
        scores = scores_of(model.config.problem_type, len(labels))
        return replace(facts, labels=labels, scores=scores)

    def output_specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("logits", "float32", ("batch", len(self.facts.labels))),)

    def postprocess(self, outputs: Arrays) -> Any:
        return {"labels": ranked(self.facts.labels, SCORES[self.facts.scores](outputs["logits"]))}


class TokenClassification(TextModel):
    """The most likely label of each token, and where in the text the token is."""

    auto_class = "AutoModelForTokenClassification"

    def select(self, snapshot: hub.Snapshot) -> pretrained.Select:
        return pretrained.logits_and_last_input

    def examine(self, snapshot: hub.Snapshot, tokenizer: str | None, model: Any) -> TextFacts:
        facts = super().examine(snapshot, tokenizer, model)
        return replace(facts, labels=labels_of(model.config))

    def configure(self, facts: Mapping[str, Any]) -> None:
        super().configure(facts)
        # An answer is made from outputs alone, so what names a token travels with it.
        self.inputs = (*self.encoder_inputs(), TensorSpec("spans", "int64", SPANS, -1))

    def output_specs(self) -> tuple[TensorSpec, ...]:
        logits = TensorSpec("logits", "float32", ("batch", "seq", len(self.facts.labels)))
        return (logits, TensorSpec("spans", "int64", SPANS))

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        encoding = self.encode(payload)
        spans = np.column_stack([encoding.ids, encoding.offsets]).astype(np.int64)
        spans[np.asarray(encoding.special_tokens_mask, bool)] = -1
        return {**self.arrays(encoding), "spans": spans}

    def postprocess(self, outputs: Arrays) -> Any:
        rows = zip(softmax(outputs["logits"]), outputs["spans"].tolist(), strict=True)
        return {"tokens": [self._token(scores, *span) for scores, span in rows if span[0] >= 0]}

    def _token(
        self, scores: np.ndarray[Any, Any], token_id: int, start: int, end: int
    ) -> dict[str, Any]:
        best = int(scores.argmax())
        return {
            "word": self.tokens.word(token_id),
            "label": self.facts.labels[best],
            "score": float(scores[best]),
            "start": start,
            "end": end,
        }

    def example(self, batch: int, seq: int) -> Arrays:
        arrays = super().example(batch, seq)
        return {**arrays, "spans": np.zeros((batch, seq, 3), np.int64)}


class FillMask(TextModel):
    """The likeliest tokens for each mask in a text."""

    auto_class = "AutoModelForMaskedLM"

    def select(self, snapshot: hub.Snapshot) -> pretrained.Select:
        return pretrained.best_at(self._mask[1], self._count)

    @property
    def _mask(self) -> tuple[str, int]:
        if self.tokens.mask is None:
            raise ModelError(f"{self.facts.tokenizer}: has no mask token; serve another `task`")
        return self.tokens.mask

    @property
    def _count(self) -> int:
        return min(TOP_K, self.facts.vocab_size)

    def output_specs(self) -> tuple[TensorSpec, ...]:
        shape: tuple[Dim, ...] = ("batch", "seq", self._count)
        return (TensorSpec("scores", "float32", shape), TensorSpec("tokens", "int64", shape))

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        arrays = super().preprocess(payload)
        token, token_id = self._mask
        if token_id not in arrays["input_ids"]:
            raise BadSample(f"text: no {token} in it; expected one where a word is to be found")
        return arrays

    def postprocess(self, outputs: Arrays) -> Any:
        masks = outputs["scores"][:, 0] > 0
        found = zip(
            outputs["scores"][masks].tolist(), outputs["tokens"][masks].tolist(), strict=True
        )
        return {"masks": [self._candidates(scores, ids) for scores, ids in found]}

    def _candidates(self, scores: list[float], ids: list[int]) -> list[dict[str, Any]]:
        return [
            {"token": self.tokens.word(token_id), "score": score}
            for score, token_id in zip(scores, ids, strict=True)
        ]

    def example(self, batch: int, seq: int) -> Arrays:
        arrays = super().example(batch, seq)
        arrays["input_ids"][:, seq // 4] = self._mask[1]
        return arrays
