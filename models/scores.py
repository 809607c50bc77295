"""Logits to scores, and scores to named answers. Plain numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Scores = np.ndarray[Any, Any]


def softmax(logits: Scores) -> Scores:
    """Along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Scores = powers / powers.sum(axis=-1, keepdims=True)
    return result


def sigmoid(logits: Scores) -> Scores:
    """Each one by itself; this form does not overflow."""
    result: Scores = (1 + np.tanh(logits / 2)) / 2
    return result


def unchanged(logits: Scores) -> Scores:
    """For a regression, whose logits are its answers."""
    return logits


SCORES: dict[str, Callable[[Scores], Scores]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "unchanged": unchanged,
}


def labels_of(config: Any) -> list[str]:
    """The labels of a transformers config, in order."""
    return [config.id2label[index] for index in range(config.num_labels)]


def scores_of(problem_type: str | None, labels: int) -> str:
    """Which of SCORES a transformers config means."""
    if problem_type == "regression":
        return "unchanged"
    if problem_type == "multi_label_classification" or labels == 1:
        return "sigmoid"
    return "softmax"


def ranked(labels: Sequence[str], scores: Scores) -> list[dict[str, Any]]:
    """Every label with its score, the highest first."""
    order = np.argsort(-scores, kind="stable")
    return [{"label": labels[index], "score": float(scores[index])} for index in order]
