"""Whether an answer is the right one: as the reference says, but for rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def is_right(answer: Any, reference: Any, tolerance: float) -> bool:
    """Both are parsed JSON; `tolerance` is relative to the reference's largest number."""
    largest = max(map(abs, _numbers(reference)), default=0.0)
    return _is_like(answer, reference, tolerance * largest)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    for part in _parts(value):
        yield from _numbers(part)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_like(answer: Any, reference: Any, gap: float) -> bool:
    if isinstance(reference, float):
        return isinstance(answer, int | float) and abs(answer - reference) <= gap
    if isinstance(reference, dict):
        return (
            isinstance(answer, dict)
            and answer.keys() == reference.keys()
            and all(_is_like(answer[key], reference[key], gap) for key in reference)
        )
    if isinstance(reference, list):
        if _is_ranking(reference) and _is_ranking(answer):
            return _ranks_alike(answer, reference, gap)
        return (
            isinstance(answer, list)
            and len(answer) == len(reference)
            and all(_is_like(*pair, gap) for pair in zip(answer, reference, strict=True))
        )
    return bool(answer == reference)


def _is_ranking(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(entry, dict) and "score" in entry for entry in value)
    )


def _ranks_alike(answer: list[dict[str, Any]], reference: list[dict[str, Any]], gap: float) -> bool:
    """The same scores in the same order; who holds a place may differ where scores are as close as
    rounding is."""
    ours, scores = ([entry["score"] for entry in ranking] for ranking in (answer, reference))
    if not _is_like(ours, scores, gap):
        return False
    lowest = min(scores)
    theirs = {_who(entry): entry["score"] for entry in reference}
    return all(abs(entry["score"] - theirs.get(_who(entry), lowest)) <= gap for entry in answer)


def _who(entry: dict[str, Any]) -> str:
    return repr(sorted((key, value) for key, value in entry.items() if key != "score"))
