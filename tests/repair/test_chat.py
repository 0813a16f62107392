"""Captions by a vision-language model: requests are written and answered, and what is no caption is counted."""

import base64
import io
import json
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.repair.chat import ChatSettings, ChatWriter
from cleanpairs.repair.recaption import recaption
from tests.helpers import assert_raises
from tests.repair.test_recaption import Namer, by_colour, corpus


def seen_by(request: dict[str, Any]) -> str:
    """A caption by the picture of a request."""
    head, data = request["body"]["messages"][0]["content"][0]["image_url"]["url"].split(",")
    assert head == "data:image/jpeg;base64"
    return Namer().caption([Image.open(io.BytesIO(base64.b64decode(data)))], [""], [()])[0]


def completion(text: Any, **more: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    message = {"role": "assistant", "content": text, "refusal": more.pop("refusal", None)}
    return {"model": "tiny-vl", "choices": [{"index": 0, "message": message, "finish_reason": "stop", **more}]}


def answered(request: dict[str, Any], body: Any = None, **more: Any) -> str:
    """A line of a batch's output."""
    response = {"status_code": 200, "request_id": "r", "body": body or completion(seen_by(request))}
    return json.dumps({"id": "b", "custom_id": request["custom_id"], "response": response, "error": None, **more})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_a_batch_is_asked_answered_in_parts_and_completed(tmp_path: Path) -> None:
    pairs, plan = corpus()
    told: list[str] = []
    asked, rest = tmp_path / "requests.jsonl", tmp_path / "rest.jsonl"
    settings = ChatSettings(model="tiny-vl", image_size=16)
    before = recaption(pairs, plan, ChatWriter(settings, requests=asked, tell=told.append), by_colour)
    assert before.table.equals(plan.table) and "6 pairs with 6 images" in told[0] and "tokens" in told[0]
    requests = lines_of(asked)
    assert len({r["custom_id"] for r in requests}) == 6
    for request in requests:
        assert {k: request[k] for k in ("method", "url")} == {"method": "POST", "url": "/v1/chat/completions"}
        assert {**request["body"], "messages": 0} == {**settings.body, "model": "tiny-vl", "messages": 0}
        text = request["body"]["messages"][0]["content"][1]["text"]
        assert text.endswith("Caption: purple") and "in doubt" not in text
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("\n".join(answered(r) for r in requests[:4]))
    half = recaption(pairs, plan, ChatWriter(settings, [first], rest), by_colour)
    assert half.summary().recaptioned == 4 and lines_of(rest) == requests[4:]
    second.write_text("\n".join(answered(r) for r in requests[4:]))
    whole = recaption(pairs, plan, ChatWriter(ChatSettings(image_size=16), [first, second]), by_colour)
    assert whole.summary().recaptioned == 6 and whole.table["caption"][1].as_py() == "a green square of 9"
    assert whole.table["reason"][0].as_py() == "captioned by tiny-vl"
    noted = whole.settings["recaption"]
    assert noted["model"] == "tiny-vl" and "{caption}" in noted["prompt"] and noted["body"]["temperature"] == 0
    other = ChatWriter(ChatSettings(max_words=9), [first, second])  # of another size: used, and not noted as its own
    noted = recaption(pairs, plan, other, by_colour).settings["recaption"]
    assert noted == {"model": "tiny-vl", "asked_otherwise": 6} and "another prompt" in other.report()
    for text, caption in (('"a\ndog" ', "a dog"), ("“a dog”", "a dog"), *[(t, t) for t in ('a "STOP"', '"a" and "b"')]):
        assert other.read(completion(text)) == (caption, "")


@pytest.mark.parametrize(("line", "kind"), [
    (lambda r: answered(r, completion(None)), "empty answers"),
    (lambda r: answered(r, completion(None, refusal="no")), "refusals"),
    (lambda r: answered(r, completion("I'm sorry, I cannot help.")), "refusals"),
    (lambda r: answered(r, completion("a red square", finish_reason="length")), "overlong answers"),
    (lambda r: answered(r, completion("Here is the caption:\n\na red square of 0")), "captions in other text"),
    (lambda r: answered(r, {"object": "list"}), "answers of another form"),
    (lambda r: answered(r, error={"message": "picture too large"}), "errors"),
    (lambda r: json.dumps({**r, "response": {"status_code": 400, "body": "bad"}, "error": None}), "errors"),
    (lambda r: "[" * 100_000, "lines of another form"),
    (lambda r: answered(r) + "\n" + answered(r), "doubled ids"),
    (lambda r: answered({**r, "custom_id": "somebody else's"}, completion("a dog")), "unknown ids"),
])  # fmt: skip
def test_what_is_no_caption_is_counted_and_named(line: Callable[[Any], str], kind: str, tmp_path: Path) -> None:
    pairs, plan = corpus()
    asked, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    recaption(pairs, plan, ChatWriter(ChatSettings(model="m"), requests=asked), by_colour)
    first, *others = lines_of(asked)
    answers.write_text("\n".join([*map(answered, others), "", line(first)]))
    writer = ChatWriter(ChatSettings(model="m"), [answers], tmp_path / "rest.jsonl")
    new = recaption(pairs, plan, writer, by_colour)
    usable = kind == "doubled ids"
    assert new.summary().recaptioned == 5 + usable
    assert new.table["action"][0].as_py() == ("recaption" if usable else "drop")
    assert all(caption is None or caption for caption in new.table["caption"].to_pylist())
    assert f"  {kind} (1), such as line {7 + usable} of {answers}" in writer.report() and [*writer.problems] == [kind]
    assert lines_of(tmp_path / "rest.jsonl") == [first] * (not usable)  # so it can be asked again
    with answers.open("a") as file:
        file.write("\n" + answered(first))
    assert recaption(pairs, plan, ChatWriter(ChatSettings(model="m"), [answers]), by_colour).summary().recaptioned == 6


def test_the_prompt_is_the_users_file(tmp_path: Path) -> None:
    pairs, plan = corpus()
    file, asked = tmp_path / "prompt.txt", tmp_path / "requests.jsonl"
    file.write_text("Mend {caption} {words}{\nDoubt {words}!\n")  # the whole first line is no part about words
    for words, text in (((), "Mend purple {"), (("p", "{caption}"), "Mend purple p, {caption}{\nDoubt p, {caption}!")):
        asked.unlink(missing_ok=True)
        writer = ChatWriter(ChatSettings(model="m", prompt=str(file)), requests=asked)
        recaption(pairs, plan, writer, by_colour, words=lambda rows, words=words: [words] * len(rows))
        assert {r["body"]["messages"][0]["content"][1]["text"] for r in lines_of(asked)} == {text}


def test_what_cannot_be_asked_or_read(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    for text in ("Mend {captions}", " "):
        file.write_text(text)
        assert_raises(ConfigError, r"prompt\.txt must be text with", ChatWriter, ChatSettings(prompt=str(file)))
    assert_raises(ConfigError, "--recaption-model", ChatWriter, ChatSettings(), requests=file)
    for body in ([1], {"temperature": float("nan")}, {"day": date(2020, 1, 1)}):
        assert_raises(ConfigError, "body of recaption", ChatSettings, body=body)
    file.write_text(json.dumps({"custom_id": "a", "method": "POST", "body": {}}))
    for path, why in ((file, "line 1 of .* is a request"), (tmp_path / "none.jsonl", "cannot be read as answers")):
        assert_raises(DataError, why, ChatWriter, ChatSettings(), [path])


@pytest.mark.parametrize("texts", [["one"], [None] * 6])
def test_a_writer_that_gives_something_else_is_refused(texts: Sequence[Any]) -> None:
    odd = SimpleNamespace(caption=lambda images, captions, words: texts)
    assert_raises(ConfigError, "a text for each of 6 images", recaption, *corpus(), odd, by_colour)
