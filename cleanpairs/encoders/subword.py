"""Subwords: the pieces that byte pair encoding finds in a corpus, by the package ``tokenizers``.

Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", ACL 2016.

Words are cut as by :mod:`cleanpairs.encoders.tokenizer`, so that every kind of tokenizer agrees about normal forms,
marks and symbols; only runs of a script without spaces stay whole here, and what is frequent in them becomes a piece. A
piece that begins a word is marked by U+2581, so that ``cat`` and the end of ``tomcat`` are two; in an unspaced run
nothing is marked, for a character means the same wherever it stands.

The same captions give the same pieces, in whatever order and on however many threads: the alphabet is chosen here, and
ties between merges are broken by spelling.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Self

from cleanpairs.core.errors import DataError
from cleanpairs.encoders.tokenizer import Tokenizer, runs

__all__ = ["MAX_PIECES", "SubwordTokenizer", "pieces_of"]

MAX_PIECES = 8_000
MAX_PIECE_LENGTH = 16  # characters: without it a caption that is repeated becomes one piece, where no space ends a word
START = "\u2581"
_UNKNOWN = "\u2581\u2581"  # number 0; no caption makes it, for U+2581 begins a word only
_BATCH = 4_096  # captions that are encoded in one call


def pieces_of(caption: str) -> list[str]:
    """What is cut into pieces: words with their mark, and unspaced runs."""
    return [text if run else START + text for text, run in runs(caption)]


class SubwordTokenizer(Tokenizer):
    """A vocabulary of pieces and the merges that make them.

    Parameters
    ----------
    vocabulary : list of str
        Known pieces; piece k has number k + 1.
    merges : list of (str, str)
        Pairs of pieces that are joined, the first first.
    max_length : int
        Longer captions are cut to this many pieces.

    Raises
    ------
    DataError
        The merges are not those of the vocabulary.
    """

    def __init__(self, vocabulary: list[str], merges: Any, max_length: int = 64) -> None:
        super().__init__(vocabulary, max_length, "subword")
        if not isinstance(merges, list) or not all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
            for pair in merges
        ):
            raise DataError("a subword vocabulary needs the key 'merges': a list of pairs of its pieces")
        self.merges: list[tuple[str, str]] = [(pair[0], pair[1]) for pair in merges]
        import tokenizers as library

        try:
            model = library.models.BPE(
                vocab={_UNKNOWN: 0, **self._number}, merges=self.merges, unk_token=_UNKNOWN, fuse_unk=True
            )
        except Exception as error:  # what the library raises is a bare Exception
            raise DataError(f"the merges of a subword vocabulary do not fit its pieces: {error}") from error
        self._pieces = library.Tokenizer(model)

    @classmethod
    def learn(
        cls, captions: Iterable[str], *, min_count: int = 1, max_pieces: int = MAX_PIECES, max_length: int = 64
    ) -> Self:
        """At most ``max_pieces`` pieces that are frequent in the captions.

        Half of them at most are single characters, the most frequent ones; two pieces are joined where they meet at
        least max(2, ``min_count``) times.
        """
        import tokenizers as library

        counts = Counter(piece for caption in captions for piece in pieces_of(caption))
        letters: Counter[str] = Counter()
        for piece, count in counts.items():
            for letter in piece:
                letters[letter] += count
        alphabet = sorted(letters, key=lambda c: (-letters[c], c))[: max_pieces // 2]
        trainer = library.trainers.BpeTrainer(
            vocab_size=max_pieces + 1,
            min_frequency=max(2, min_count),
            special_tokens=[_UNKNOWN],
            initial_alphabet=alphabet,
            limit_alphabet=max(len(alphabet), 1),
            max_token_length=MAX_PIECE_LENGTH,
            show_progress=False,
        )
        learner = library.Tokenizer(library.models.BPE(unk_token=_UNKNOWN, fuse_unk=True))
        learner.train_from_iterator(_repeated(counts), trainer)
        numbers = learner.get_vocab()
        vocabulary = sorted((token for token in numbers if token != _UNKNOWN), key=numbers.__getitem__)
        return cls(vocabulary, _merges(learner), max_length)

    def _numbers(self, captions: Iterable[str]) -> Iterator[list[int]]:
        rest = iter(captions)
        while group := list(islice(rest, _BATCH)):
            split = [pieces_of(caption)[: self.max_length] for caption in group]  # a piece at least each
            for encoded in self._pieces.encode_batch(split, is_pretokenized=True):
                yield encoded.ids[: self.max_length]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**super().to_dict(), "merges": [list(pair) for pair in self.merges]}


def _repeated(counts: Counter[str]) -> Iterator[list[str]]:
    """Every piece as often as it was seen, in an order of its own: sorted, whatever the captions' was."""
    for piece in sorted(counts):
        yield [piece] * counts[piece]


def _merges(learner: Any) -> list[tuple[str, str]]:
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [(first, second) for first, second in merges]
