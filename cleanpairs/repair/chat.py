"""Captions by a vision-language model behind OpenAI's chat completions: by files of its batch form, or from a server.

A request's ``custom_id`` has three digests: of the image with its old caption, of the prompt with the parameters, and
of the model. By the first an answer in a file is found again, whatever else has changed. A server gets a request again
unless all are as they were.
"""

import base64
import hashlib
import io
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from cleanpairs.core import ConfigError, DataError, plural
from cleanpairs.core.parameters import check_settings, number, whole
from cleanpairs.core.regular import open_regular, read_text, reading, writing
from cleanpairs.data.atomic import append_lines, opened_for_lines

if TYPE_CHECKING:
    from cleanpairs.repair.endpoint import Endpoint


@dataclass(frozen=True)
class ChatSettings:
    """Settings of the requests to a vision-language model. ConfigError where a setting is out of its range.

    - ``model``: its name there
    - ``prompt``: a text file with {caption} and {words}, the words in doubt. A line with {words}, and without
      {caption}, is left out where there are none. Ours when None
    - ``image_size``: pixels of the longer side. A smaller image is not enlarged
    - ``body``: the other fields of each request
    - ``max_words``: an answer of more words is not used
    - ``concurrency``, ``attempts``, ``timeout``, ``backoff``: of :class:`cleanpairs.repair.endpoint.Endpoint`
    """

    model: str = ""
    prompt: str | None = None
    image_size: int = whole(512, 16)
    body: Mapping[str, Any] = field(default_factory=lambda: {"max_tokens": 200, "temperature": 0})
    max_words: int = whole(80, 1)
    concurrency: int = whole(8, 1, most=256)
    attempts: int = whole(6, 1)
    timeout: float = number(120.0, above=0)
    backoff: float = number(1.0, least=0)

    def __post_init__(self) -> None:
        check_settings("recaption", self)
        try:
            json.dumps({**self.body}, allow_nan=False)
        except (TypeError, ValueError) as error:
            message = f"body of recaption must be fields of JSON as {{max_tokens: 200}}, found {self.body!r}"
            raise ConfigError(message) from error

    def template(self, default: str) -> str:
        """Return the text of the prompt. Raises DataError: it cannot be read. ConfigError: it has an unknown field."""
        if self.prompt is None:
            return default
        with reading(self.prompt, "read as a prompt", UnicodeDecodeError):
            text = read_text(self.prompt).strip()
        odd = [name for name in re.findall(r"\{(\w+)\}", text) if name not in ("caption", "words")]
        if odd or not text:
            raise ConfigError(f"the prompt {self.prompt} must be text with {{caption}} and {{words}}, found {odd}")
        return text


Question = tuple[Image.Image, str, str]  # the image, the prompt, the old caption


@dataclass(frozen=True)
class Answer:
    """What was answered, and where that stands: a ``caption``, or ``problem``: the kind of what is there instead."""

    key: str
    caption: str
    problem: str
    model: str
    where: str


def _model_of(body: Any) -> str:
    """Return the model that a chat completion names."""
    return str(body.get("model") or "") if isinstance(body, dict) else ""


def _digest(*parts: object, digits: int) -> str:
    """Return a digest of some values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:digits]


class ChatWriter:
    """Writes captions by what a vision-language model has answered. For :func:`cleanpairs.repair.recaption.recaption`.

    Parameters
    ----------
    settings : ChatSettings
        What the requests hold.

    answers : sequence of str or Path
        Files of answers in OpenAI's batch form. A usable answer counts before one that is not.

    requests : str or Path, optional
        File for the requests that have no answer.

    url : str, optional
        Address of the server that answers instead. See :class:`cleanpairs.repair.endpoint.Endpoint`.

    cache : str or Path, optional
        File for the server's answers, in the same form. They are not requested again.

    tell : callable, optional
        Takes a line with the estimate, before it starts.

    Raises
    ------
    DataError
        A file cannot be read.
    ConfigError
        There are requests, and ``settings`` names no model, or the address or the key cannot be used.
    """

    prompt = (
        "The caption below may be wrong for this picture. Edit it so that it describes the picture.\n"
        "Change as little as possible. Keep its language and its style.\n"
        "These words are in doubt: {words}.\n"
        "Answer with the edited caption alone, in one line.\n"
        "\n"
        "Caption: {caption}"
    )

    def __init__(
        self, settings: ChatSettings, answers: Sequence[str | Path] = (), requests: str | Path | None = None, *,
        url: str | None = None, cache: str | Path | None = None, tell: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        if (requests or url) and not settings.model:
            raise ConfigError("requests name the model that is to answer: give its name by --recaption-model")
        self.settings, self.template, self.tell = settings, settings.template(self.prompt), tell
        self.problems = defaultdict[str, list[str]](list)  # kind -> where each of them is
        self.models: Counter[str] = Counter()
        self.counted, self.unanswered = set[str](), set[str]()
        self.other_prompts = self.failed = 0  # answers to another prompt, and failed requests in a row
        self.requests = requests
        self.file_answers: dict[str, Answer] = {}  # by the first digest
        self.server_answers: dict[str, Answer] = {}  # what the server has answered, by all three
        for path in answers:
            self._read(path)
        self.endpoint, self.cache = None, None if cache is None else Path(cache)
        if url is not None:
            from cleanpairs.repair.endpoint import Endpoint

            how = ("concurrency", "attempts", "timeout", "backoff")
            self.endpoint = Endpoint(url, **{name: getattr(settings, name) for name in how})
            if self.cache is not None and self.cache.exists():
                stored = answers_in(self.cache, self.read)
                self.server_answers = {a.key: a for a in stored if a.problem != "errors"}

    @property
    def name(self) -> str:
        """The models that answered, else the one that is to."""
        return ", ".join(sorted(self.models)) or self.settings.model or "unknown"

    def noted(self) -> dict[str, Any]:
        """Return what a plan keeps: model, prompt and parameters, as far as they are known."""
        settings = {name: getattr(self.settings, name) for name in ("image_size", "body", "max_words")}
        prompt = {"asked_otherwise": n} if (n := self.other_prompts) else {"prompt": self.template, **settings}
        return {"model": self.name, **prompt}

    def begin(self, captions: Sequence[str], images: int) -> None:
        """Tell how much there is to ask about pairs with these old captions."""
        if self.tell is not None:
            n, text = len(captions), sum(len(self.template) + len(c) for c in captions) // 4
            seen = n * (self.settings.image_size // 28) ** 2  # a token for 28 x 28 pixels, as in Qwen2.5-VL
            self.tell(
                f"recaption: {plural(n, 'pair')} with {plural(images, 'image')}. Without those that are answered "
                f"already, requests take about {text + seen:,} tokens at most, and answers {n * 25:,}"
            )

    def caption(
        self, images: Sequence[Image.Image], captions: Sequence[str], words: Sequence[Sequence[str]]
    ) -> list[str]:
        """Return a caption for each of n images with its old caption and words in doubt. Empty if there is none."""
        pairs: list[tuple[str, Question]] = []
        for image, old, doubted in zip(images, captions, words, strict=True):
            prompt = self._prompt(old, doubted)
            pairs.append((self._key(image, old, prompt), (image, prompt, old)))
        asked = self.unanswered if self.endpoint is None else self.server_answers.keys()
        waiting = {k: q for k, q in pairs if k not in asked and ((a := self._answer_to(k)) is None or a.problem)}
        if self.endpoint is not None:
            self._ask(waiting)
        elif self.requests is not None:
            with open(self.requests, "a", encoding="utf-8") as file:
                for key, (image, prompt, _) in waiting.items():
                    request = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions"}
                    file.write(json.dumps({**request, "body": self._body(image, prompt)}) + "\n")
        return [self._counted_caption(key) for key, _ in pairs]

    def read(self, body: Any) -> tuple[str, str]:
        """Return the caption in the body of a chat completion, and else the kind of problem."""
        sorry = r"(i['’]?m|i am) (sorry|unable|not able)|sorry[,.]|i (can['’]?t|cannot|won['’]?t) |as an ai\b"
        around = r"```|[^\n]*:\s*\n|(sure|certainly|of course|here(['’]s| is))\b.*:"
        match body:
            case {"choices": [{"message": {"refusal": str(refusal)}}, *_]} if refusal:
                return "", "refusals"
            case {"choices": [{"finish_reason": "content_filter"}, *_]}:
                return "", "refusals"
            case {"choices": [{"message": {"content": str(text)}, **choice}, *_]}:
                text = text.rpartition("</think>")[2].encode(errors="ignore").decode().replace("\0", "").strip()
                if re.match(around, text, re.IGNORECASE):
                    return "", "captions in other text"
                text = re.sub(r'^["“]([^"“”]*)["”]$', r"\1", " ".join(text.split())).strip()
                if choice.get("finish_reason") == "length" or len(text.split()) > self.settings.max_words:
                    return "", "overlong answers"
                if re.match(sorry, text, re.IGNORECASE):
                    return "", "refusals"
                return text, "" if text else "empty answers"
            case {"choices": [{"message": {"content": None}}, *_]}:
                return "", "empty answers"
        return "", "answers of another form"

    def report(self) -> str:
        """Lines on what was answered, and what was not."""
        if unknown := [answer.where for short, answer in self.file_answers.items() if short not in self.counted]:
            self.problems["unknown ids"] += unknown
        usable, without = plural(sum(self.models.values()), "caption"), plural(len(self.unanswered), "pair")
        lines = [f"recaption: {usable} answered, {without} without a usable answer"]
        lines += [f"  {kind} ({len(places):,}), such as {places[0]}" for kind, places in self.problems.items()]
        if self.other_prompts:
            lines.append(f"  {plural(self.other_prompts, 'answer')} to another prompt than is given here")
        if self.requests is not None:
            lines[0] += ", which are requested"
        return "\n".join(lines)

    def _answer_to(self, key: str) -> Answer | None:
        answer = self.server_answers.get(key)
        return answer if answer and not answer.problem else self.file_answers.get(key.partition("-")[0], answer)

    def _counted_caption(self, key: str) -> str:
        """Return the caption that is known of a pair, counted."""
        answer, (short, prompt, _) = self._answer_to(key), key.split("-")
        if answer is None or answer.problem:
            self.unanswered.add(key)
        if answer is None or short in self.counted:
            return "" if answer is None else answer.caption
        self.counted.add(short)
        if answer.problem:
            self.problems[answer.problem].append(answer.where)
        else:
            self.models[answer.model or self.settings.model] += 1
            self.other_prompts += answer.key.split("-")[1:2] != [prompt]
        return answer.caption

    def _ask(self, waiting: Mapping[str, Question]) -> None:
        """Have the server answer, and keep what it does."""
        endpoint, file = self.endpoint, None
        assert endpoint is not None
        with ExitStack() as closing:
            if self.cache is not None:
                with writing(self.cache):
                    file = opened_for_lines(self.cache)
                closing.callback(os.close, file)
            executor = ThreadPoolExecutor(self.settings.concurrency, "recaption")
            closing.callback(executor.shutdown, cancel_futures=True)
            closing.enter_context(endpoint)  # closed first: those that still ask end
            for answer in executor.map(partial(self._answer, endpoint, file), waiting, waiting.values()):
                self.server_answers[answer.key] = answer

    def _answer(self, endpoint: "Endpoint", file: int | None, key: str, question: Question) -> Answer:
        """Send one request, and return the answer. Raises DataError: too many in a row have failed."""
        image, prompt, old = question
        where, most = f"the pair captioned {old[:60]!r}", 10
        body, why = endpoint.ask(self._body(image, prompt))
        caption, problem = self.read(body)
        if failed := bool(why) or problem == "answers of another form":
            problem, where = ("errors", f"{where}: {why}") if why else (problem, where)
        elif file is not None and self.cache is not None:
            response = {"status_code": 200, "body": body}
            append_lines(file, self.cache, {"custom_id": key, "response": response, "error": None})
        self.failed = self.failed + 1 if failed else 0
        if self.failed >= most:
            raise endpoint.ended(
                f"{most} requests in a row have failed, the last of {where} ({problem}); what was answered is kept"
                + ("" if self.cache is None else f" in {self.cache}: the same command resumes"),
                DataError,
            )
        return Answer(key, caption, problem, _model_of(body), where)

    def _prompt(self, caption: str, words: Sequence[str]) -> str:
        lines = self.template.splitlines()
        lines = [line for line in lines if words or "{words}" not in line or "{caption}" in line]
        values = {"{caption}": caption, "{words}": ", ".join(words)}
        return re.sub(r"\{(?:caption|words)\}", lambda found: values[found[0]], "\n".join(lines))

    def _key(self, image: Image.Image, caption: str, prompt: str) -> str:
        s, pixels = self.settings, hashlib.sha256(image.tobytes()).hexdigest()
        about = _digest(prompt, s.image_size, dict(s.body), digits=12)
        return f"{_digest(pixels, image.size, caption, digits=24)}-{about}-{_digest(s.model, digits=8)}"

    def _body(self, image: Image.Image, prompt: str) -> dict[str, Any]:
        small, out = image.convert("RGB"), io.BytesIO()
        small.thumbnail((self.settings.image_size,) * 2)
        small.save(out, "JPEG", quality=90)
        url = f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
        return {**self.settings.body, "model": self.settings.model, "messages": [{"role": "user", "content": content}]}

    def _read(self, path: str | Path) -> None:
        """Take the answers of a file."""
        for answer in answers_in(path, self.read):
            short = answer.key.partition("-")[0]
            request = self.file_answers.get(short)
            if not answer.key:
                self.problems[answer.problem].append(answer.where)
            elif request is None or (request.problem and not answer.problem):
                self.file_answers[short] = answer
            elif not answer.problem:
                self.problems["doubled ids"].append(answer.where)


class ChatJudge(ChatWriter):
    """Says how probable it is that a caption describes an image, by the log probabilities of yes and no.

    Parameters
    ----------
    model : str
        Its name on the server.
    url, cache
        See :class:`ChatWriter`.
    **how
        Of :class:`ChatSettings`.
    """

    prompt = "Does this caption describe this picture? Answer with yes or no.\n\nCaption: {caption}"

    def __init__(self, model: str, url: str, *, cache: str | Path | None = None, **how: Any) -> None:
        body = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 20}
        super().__init__(ChatSettings(**{"model": model, "body": body, **how}), url=url, cache=cache)

    def predict(self, inputs: Sequence[tuple[Image.Image, str]]) -> list[float]:
        """Return P(belongs) of n pairs of an image and a caption. NaN where there is no answer."""
        answers = self.caption([image for image, _ in inputs], [text for _, text in inputs], [()] * len(inputs))
        return [float(text or "nan") for text in answers]

    def read(self, body: Any) -> tuple[str, str]:
        """Return P(yes) as text, by the first token's log probabilities, else by the first word."""
        share = {"yes": 0.0, "no": 0.0}
        match body:
            case {"choices": [{"logprobs": {"content": [{"top_logprobs": [_, *_] as top}, *_]}}, *_]}:
                for one in top:
                    match one:
                        case {"token": str(token), "logprob": int(log) | float(log)}:
                            word = token.strip(' .▁Ġ"').lower()
                            share[word] = share.get(word, 0.0) + math.exp(max(min(log, 0.0), -1e4))
            case {"choices": [{"message": {"content": str(text)}}, *_]}:
                if first := re.match(r"\W*(yes|no)\b", text, re.IGNORECASE):
                    share[first[1].lower()] = 1.0
        total = share["yes"] + share["no"]
        return (str(share["yes"] / total), "") if total else ("", "answers of another form")


def answers_in(path: str | Path, read: Callable[[Any], tuple[str, str]]) -> Iterator[Answer]:
    """The answers in a file. One without a key is a line of another form. Raises DataError: it cannot be read."""
    with reading(path, "read as answers"), open_regular(path) as lines:
        for k, line in enumerate(lines, 1):
            where = f"line {k} of {path}"
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            match record:
                case {"custom_id": str(key), "error": error} if error:
                    message = error.get("message") if isinstance(error, dict) else error
                    yield Answer(key, "", "errors", "", f"{where}: {' '.join(str(message).split())[:200]}")
                case {"custom_id": str(key), "response": {"status_code": int(status), "body": body}} if status != 200:
                    shown = " ".join(str(body).split())[:200]
                    yield Answer(key, "", "errors", "", f"{where}: status {status}, {shown}")
                case {"custom_id": str(key), "response": {"body": body}}:
                    caption, problem = read(body)
                    yield Answer(key, caption, problem, _model_of(body), where)
                case {"custom_id": _, "method": _, "body": _}:
                    raise DataError(f"{where} is a request, no answer: have them answered, such as by vllm run-batch")
                case _:
                    yield Answer("", "", "lines of another form", "", where)
