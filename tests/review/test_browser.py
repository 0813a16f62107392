"""The page in a real browser: by keyboard, narrow and dark, for a screen reader, and captions run nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanpairs.review.log import DecisionLog

from .conftest import REPAIRED, Case, N, served

pytestmark = pytest.mark.slow

MESSAGE, PLACE, RATE = (f"document.getElementById('{name}').textContent" for name in ("message", "place", "rate"))


def shown(tab: Any) -> int:
    return int(tab.run(f"+{PLACE}.match(/pair (\\d+)/)[1]"))


def press(tab: Any, key: str) -> int:
    """A key, and what follows from it. Returns the pair that is shown then."""
    before = tab.run(MESSAGE + " + " + PLACE)
    tab.key(key)
    tab.until(f"!busy && {MESSAGE} + {PLACE} !== {before!r}")
    return shown(tab)


@pytest.fixture
def tab(chromium: Any, case: Case, tmp_path: Path, request: Any) -> Iterator[Any]:
    with served(case.open(tmp_path, blind=getattr(request, "param", False)), tmp_path) as address:
        tab = chromium.open(address, tmp_path)
        tab.until(f"!busy && {PLACE} !== ''")
        yield tab
        assert tab.errors() == [] and tab.run("window.hacked") is None
        tab.close()


def test_by_keyboard_and_where_it_is_left_it_goes_on(tab: Any, case: Case, tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl", case.pairs.source.fingerprint, N)
    assert (first := shown(tab)) == REPAIRED
    assert "Plan: repair (displaced: by a row)." in tab.run("document.getElementById('evidence').textContent")
    second, rate = press(tab, "N"), tab.run(RATE)  # as with Caps Lock
    third = press(tab, "y")
    assert tab.run(RATE) != rate
    assert press(tab, "ArrowRight") != third == press(tab, "ArrowLeft") and len({first, second, third}) == 3
    tab.until("image.naturalWidth > 0")
    assert tab.run("picture(77, image, ''), image.naturalWidth") == 0  # no other image stands there meanwhile
    tab.key("e")
    tab.until("document.activeElement.id === 'typed' && document.activeElement.value !== ''")
    tab.key("y")  # a letter of the caption, and no answer
    tab.fill("typed", "typed by hand")
    tab.run("document.getElementById('editor').requestSubmit()")
    tab.until(f"!busy && !{PLACE}.includes('pair {third},')")
    log.refresh()
    held = {i: (made.action, made.caption) for i, made in log.decided().items()}
    assert held == {first: ("drop", None), second: ("keep", None), third: ("recaption", "typed by hand")}
    assert press(tab, "Z") == third
    press(tab, "1")  # the nearest caption of another pair
    log.refresh()
    assert log.decided()[third].action == "rematch_text"
    tab.go(tab.run("location.href"))
    tab.until(f"!busy && {PLACE} !== ''")
    assert tab.run("document.getElementById('progress').textContent").startswith("3 of ")
    assert shown(tab) not in (first, second, third)


def test_searches_batches_and_the_plan(tab: Any) -> None:
    tab.run("busy = true, document.getElementById('show').value = 'all'")  # an answer is on its way
    tab.fill("words", "click")
    tab.run("new Promise(done => setTimeout(() => done(busy = false), 400))")
    tab.until("!busy && document.getElementById('progress').textContent === '0 of 6 answered'")
    assert tab.run("document.getElementById('drop-alike').textContent") == "Drop all 6 pairs with this caption"
    tab.run("document.getElementById('drop-alike').click()")
    tab.until(f"!busy && {MESSAGE}.startsWith('6 pairs: does not belong.')")
    tab.run("document.activeElement.blur()")
    press(tab, "z")
    assert tab.run(MESSAGE) == "Undone: 6 answers."
    tab.run("document.getElementById('finish').click()")
    tab.until("document.getElementById('result').textContent.endsWith('plan.parquet')")
    tab.fill("words", "onerror")
    tab.until("!busy && document.getElementById('progress').textContent === '0 of 1 answered'")
    assert tab.run(MESSAGE) == ""  # which was about other pairs
    tab.fill("words", "no such words")
    tab.until("!busy && document.body.innerText.includes('No pair is listed.')")
    tab.run("words.value = 'click', document.getElementById('drop-all').click()")  # which are not listed yet
    tab.until(f"!busy && {MESSAGE}.startsWith('0 pairs: does not belong.')")


@pytest.mark.parametrize("tab", [True], indirect=True)
def test_an_audit_shows_no_score(tab: Any) -> None:
    text = tab.run("document.body.innerText")
    assert "hidden" in text and not any(word in text for word in ("Score and", "flagged", "planned", "drop the pair"))
    for done in range(12):
        assert tab.run("document.getElementById('progress').textContent") == f"{done} of 12 answered"
        press(tab, "ync"[done % 3])
    press(tab, "y")  # a key too much, which is no answer
    assert tab.run("!!document.querySelector('[aria-pressed=true][data-key=c]')") and "To change" in tab.run(MESSAGE)


def test_narrow_and_dark(tab: Any) -> None:
    light = np.asarray(tab.screenshot()).mean()
    tab.look(420, 800, "dark")
    dark = np.asarray(tab.screenshot())
    assert dark.shape == (800, 420, 3) and dark.mean() < 90 < 180 < light
    named = "[...document.querySelectorAll('button, input, select, textarea')].filter(e => e.checkVisibility())"
    outside = f"{named}.filter(e => e.getBoundingClientRect().right > 420 || e.getBoundingClientRect().left < 0).length"
    assert tab.run("document.documentElement.scrollWidth") <= 420 and tab.run(outside) == 0
    press(tab, "n")


def test_for_a_screen_reader(tab: Any) -> None:
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    found = {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree if not n["ignored"]}
    roles = {role for role, _ in found}
    assert {"main", "search", "combobox", "searchbox", "status", "button", "image", "progressbar", "group"} <= roles
    assert all(name.strip() for r, name in found if r in ("button", "combobox", "searchbox", "image"))
    assert found >= {("button", n) for n in ("Belongs y keep the pair", "Cannot say c as planned: repair", "Undo z")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(tab: Any, scheme: str) -> None:
    tab.look(1200, 900, scheme)
    colours = [(text, back) for text in ("--ink", "--faint", "--accent") for back in ("--page", "--paper", "--soft")]
    for text, back in [*colours, ("--on", "--good"), ("--on", "--bad"), ("--ink", "--mark")]:
        assert tab.contrast(text, back) >= 4.5, (text, back)


def test_a_caption_from_right_to_left_ends_at_the_left(tab: Any) -> None:
    tab.run("document.getElementById('caption').textContent = 'قميص ABC'")
    tab.run("window.part = document.createRange(), window.text = document.getElementById('caption').firstChild, 0")
    left = "part.setStart(text, {}), part.setEnd(text, {}), part.getBoundingClientRect().left"
    assert tab.run(left.format(5, 8)) < tab.run(left.format(0, 4))
