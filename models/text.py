"""The text side of transformers models: what a client sends, and how it becomes token ids.

Safe in threads and without torch. Knows nothing of tasks or weights.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from models.base import Arrays, BadSample, ModelError

Ids = np.ndarray[Any, np.dtype[np.int64]]
Text = Annotated[str, Field(max_length=100_000)]

MASK_TOKENS = ("[MASK]", "<mask>")
SEED = 0


class TextSample(BaseModel):
    """One text."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    text: Text
    """The text, up to 100,000 characters whatever becomes of them."""
    truncate: bool = False
    """Cut a text that has more tokens than the model takes. Without it such a text is refused."""


class PairSample(TextSample):
    """One text, or two that are judged together."""

    text_pair: Text | None = None
    """The second text, for models trained on pairs (entailment, reranking)."""


class Tokens:
    """A tokenizer that refuses what is too long, or cuts it when asked to."""

    def __init__(self, path: str | None, max_seq: int, pad_id: int) -> None:
        self._max_seq = max_seq
        self._pad_id = pad_id
        # Two, because truncation is a state of a tokenizer and threads share it.
        self._whole, self._cut = _open(path, pad_id), _open(path, pad_id)
        self._cut.enable_truncation(max_seq)

    def encode(self, text: str, pair: str | None = None, truncate: bool = False) -> Encoding:
        """The tokens of `text`, special ones included. Raises BadSample for too many or none."""
        encoding = (self._cut if truncate else self._whole).encode(text, pair)
        if len(encoding.ids) > self._max_seq:
            raise BadSample(
                f"text: {len(encoding.ids)} tokens; this model takes up to {self._max_seq}: "
                'send less, or "truncate": true'
            )
        if not encoding.ids:
            raise BadSample("text: has no tokens; expected some")
        return encoding

    def word(self, token_id: int) -> str:
        """The text of one token; its id where the tokenizer has none."""
        return self._whole.decode([token_id], skip_special_tokens=False).strip() or str(token_id)

    @property
    def mask(self) -> tuple[str, int] | None:
        """The token that stands for a missing word, and its id; None without one."""
        ids = ((token, self._whole.token_to_id(token)) for token in MASK_TOKENS)
        return next(((token, found) for token, found in ids if found is not None), None)

    def example(self, batch: int, seq: int, vocab_size: int) -> Arrays:
        """Seeded ids between the special tokens that frame a text, the first row without padding.

        The other rows have up to half of it.
        """
        rng = np.random.default_rng(SEED)
        ordinary = np.setdiff1d(np.arange(vocab_size), self._special_ids())
        lengths = rng.integers(max(1, seq // 2), seq, batch, endpoint=True)
        lengths[0] = seq
        ids = rng.choice(ordinary, (batch, seq))
        if frame := self._whole.encode("").ids:
            ids[:, 0] = frame[0]
            ids[np.arange(batch), lengths - 1] = frame[-1]
        mask = (np.arange(seq) < lengths[:, None]).astype(np.int64)
        ids[mask == 0] = self._pad_id
        return {"input_ids": ids, "attention_mask": mask}

    def _special_ids(self) -> list[int]:
        added = self._whole.get_added_tokens_decoder()
        return [token_id for token_id, token in added.items() if token.special]


def _open(path: str | None, pad_id: int) -> Tokenizer:
    if path is None:
        return _stand_in(pad_id)
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{path}: not a tokenizer: {error}; fetch or save it again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _stand_in(pad_id: int) -> Tokenizer:
    """For random weights without a tokenizer, whose answers mean nothing: a word is a token."""
    free = [token_id for token_id in range(5) if token_id != pad_id]
    vocab = {
        "[PAD]": pad_id,
        **dict(zip(("[UNK]", "[CLS]", "[SEP]", "[MASK]"), free, strict=False)),
    }
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(vocab))
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer
