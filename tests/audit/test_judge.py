"""Second opinions: their errors are measured, and they count by them."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cleanpairs import Pairs
from cleanpairs.audit import Answered, Opinions, second_opinions
from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.repair.chat import ChatJudge
from tests.helpers import assert_raises, picture
from tests.repair.test_chat import completion
from tests.repair.test_endpoint import serving

N, WRONG = 600, 150
Corpus = tuple[Pairs, np.ndarray, np.ndarray]


class Looker:
    """Compares the colour of a picture with the number in a caption, and is wrong now and then. It gives logits."""

    def __init__(self, wrong_matched: float = 0.0, wrong_mismatched: float = 0.0) -> None:
        self.wrong, self.rng = (wrong_matched, wrong_mismatched), np.random.default_rng(5)

    def predict(self, inputs: Sequence[tuple[Image.Image, str]]) -> np.ndarray:
        numbers = [int(text.split()[-1]) for _, text in inputs]
        colours = [(k * 37 % 256, k * 91 % 256, k // 256) for k in numbers]
        fits = np.array([image.getpixel((0, 0)) == c for (image, _), c in zip(inputs, colours, strict=True)])
        judged = fits ^ (self.rng.random(len(fits)) < np.where(fits, *self.wrong))
        return np.where(judged, 3.0, 1.5) + 0.1 * self.rng.normal(size=len(fits))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Pairs, scores that know little, and which pairs are matched."""
    rng, matched = np.random.default_rng(1), np.arange(N) >= WRONG
    number = np.arange(N)
    number[:WRONG] = np.roll(number[:WRONG], 1)
    pairs = Pairs.from_arrays([f"picture {k}" for k in number], images=[picture(k) for k in range(N)])
    return pairs, rng.normal(np.where(matched, 1.5, 0), 1).astype(np.float32), matched


def answered(scores: np.ndarray, matched: np.ndarray, count: int = 40) -> dict[int, bool]:
    rows = np.argsort(scores)[np.linspace(0, N - 1, count).astype(int)]
    return {int(i): bool(matched[i]) for i in rows}


@pytest.mark.parametrize(("wrong", "known"), [((0.0, 0.0), 0), ((0.1, 0.2), 0), ((0.1, 0.2), 120), ((0.3, 0.05), 120)])
def test_opinions_count_by_their_errors(wrong: tuple[float, float], known: int, corpus: Corpus) -> None:
    pairs, scores, matched = corpus
    answers = answered(scores, matched, known) if known else {}
    threshold = float(np.sort(scores)[WRONG])
    found = second_opinions(pairs, scores, Looker(*wrong), threshold=threshold, answers=answers, count=300)
    assert len(found.values) == 300 and not found.values.keys() & answers.keys() and 1.5 < found.cut < 3
    measured = np.array([found.wrong_matched, found.wrong_mismatched])
    expected = np.array(wrong) + (0 if known else [0.06, 0])  # some of the highest scores are of mismatched pairs
    counted = np.array([found.known_matched, found.known_mismatched])
    assert np.all(np.abs(measured - expected) < 0.05 + 2 * np.sqrt(expected * (1 - expected) / counted))
    without, given = (Answered.of(scores, answered(scores, matched), opinions) for opinions in (None, found))
    asked = list(found.values)
    before, after = (np.mean((a.correspondence[asked] - matched[asked]) ** 2) for a in (without, given))
    assert after < 0.8 * before and given.noise_rate.low <= WRONG / N <= given.noise_rate.high
    assert given.noise_rate.high - given.noise_rate.low < without.noise_rate.high - without.noise_rate.low
    human = answered(scores, matched)
    assert all(given.correspondence[i] == label for i, label in human.items()) and "second opinions" in str(given)
    both = Answered.of(scores, {}, found)  # nobody has answered
    assert both.answers == 0 and both.figures()["opinions"] == len(asked)


def test_a_judge_that_cannot_tell_is_refused(corpus: Corpus) -> None:
    pairs, scores, _ = corpus
    told = {"threshold": 0.5, "count": 40}
    for answer, error in ((0, RefusedError), (np.nan, RefusedError), ([0, 0], DataError)):
        odd = SimpleNamespace(predict=lambda inputs, answer=answer: np.array([answer] * len(inputs)))
        assert_raises(error, "the judge", second_opinions, pairs, scores, odd, **told)
    vectors = Pairs.from_arrays(["a", "b"] * 30, features=np.eye(60, 8, dtype=np.float32))
    assert_raises(ConfigError, "vectors only", second_opinions, vectors, np.linspace(0, 1, 60), Looker(), **told)


KNOWN = Opinions({3: 0.25, 4: 0.75}, 0.5, 0.1, 0.2, 30, 40)
NEGATIVE = (json.dumps(vars(KNOWN) | {name: -0.05}) for name in ("wrong_matched", "known_mismatched"))


@pytest.mark.parametrize("text", ["[]", "{", '{"values": {"a": 1}}', '{"values": {}, "cut": "x"}', *NEGATIVE])
def test_opinions_are_read_back_or_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "opinions.json"
    file.write_text(text)
    assert_raises(DataError, r"opinions\.json cannot be read", Opinions.read, file)
    file.write_text(json.dumps(vars(KNOWN)))
    assert vars(Opinions.read(file)) == vars(KNOWN) and str(Opinions.read(file)) == str(KNOWN)


def logged(**tokens: float) -> dict[str, Any]:
    top = [{"token": token, "logprob": float(np.log(p)) if p else -(10**400)} for token, p in tokens.items()]
    return completion("Yes", finish_reason="length", logprobs={"content": [{"token": "Yes", "top_logprobs": top}]})


@pytest.mark.parametrize(("body", "value"), [
    (logged(Yes=0.5, yes=0.1, No=0.2, maybe=0.2), 0.75),
    (logged(no=0.9, yes=0), 0.0),
    (completion("Yes.", finish_reason="length"), 1.0),
    (logged(), 1.0),
    (completion("Nobody knows"), None),
    (logged(maybe=0.9), None),
])  # fmt: skip
def test_a_server_is_asked_for_yes_or_no(body: dict[str, Any], value: float | None, tmp_path: Path) -> None:
    requests: list[dict[str, Any]] = []

    def reply(k: int, request: dict[str, Any]) -> Any:
        requests.append(request)
        return 200, {}, json.dumps(body).encode()

    with serving(reply) as (url, _):
        for times in (2, 1):  # the second judge knows it from the cache, unless it is no opinion
            judge = ChatJudge("tiny-vl", url, cache=tmp_path / "judge.jsonl")
            told = judge.predict([(Image.new("RGB", (8, 8)), "a dog")] * times)
            assert np.allclose(told, np.nan if value is None else value, equal_nan=True)
    assert len(requests) == 1 + (value is None) and requests[0]["logprobs"] and requests[0]["max_tokens"] == 1
    assert requests[0]["messages"][0]["content"][1]["text"].endswith("Caption: a dog")
