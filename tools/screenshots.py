"""Pictures for the docs of the report, the worst pairs and the review: python tools/screenshots.py [--run RUN].

They show clip art whose captions were permuted, light and dark, in a Chromium without a window. `demo` makes the run if
none is given. Each picture has at most 150 kB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from chromium import Tab, start
from PIL import Image

REPO = Path(__file__).resolve().parents[1]
IMAGES = REPO / "docs" / "images"
MOST = 150_000  # bytes
COLORS = 64  # of a picture
CLI = [sys.executable, "-m", "cleanpairs"]
WORST = "[...document.querySelectorAll('h2, h3, h4')].find(h => h.textContent.includes('Dropped: the worst'))"


def picture(tab: Tab, name: str, width: int, height: int) -> None:
    """The page in light and dark."""
    for scheme in ("light", "dark"):
        tab.look(width, height, scheme)
        tab.run("window.scrollTo(0, 0)")
        decoded = "i.loading = 'eager'; return i.decode().catch(() => 0);"
        tab.run(f"Promise.all([...document.images].filter(i => i.src).map(i => {{ {decoded} }}))")
        save(tab.screenshot(), f"{name}_{scheme}")


def save(shot: Image.Image, name: str) -> None:
    file = IMAGES / f"{name}.png"
    shot.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(file, optimize=True)
    assert file.stat().st_size <= MOST, f"{file} has {file.stat().st_size} bytes"
    print(file.relative_to(REPO), file.stat().st_size)


def report(run: Path, scratch: Path, pairs: int = 24) -> Path:
    """The report's page."""
    page = scratch / f"{run.name}.html"
    command = [*CLI, "report", str(run), "--out", str(page), "--pairs", str(pairs)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=scratch)
    return page


def worst(tab: Any) -> None:
    """README's picture: the cards of the worst pairs, of a report that is open."""
    tab.look(1200, 900)
    tab.run("document.querySelectorAll('.tools, .key, .card:nth-child(n + 7)').forEach(e => e.remove())")
    cards = f"{WORST}.closest('.gallery').querySelector('.cards')"
    for _ in range(2):  # a card has its height when it was seen
        tab.run(f"{cards}.scrollIntoView({{ block: 'center' }})")
        shot = tab.screenshot()
    box = f"{cards}.getBoundingClientRect()"
    left, top, right, bottom = (tab.run(f"{box}.{side}") for side in ("left", "top", "right", "bottom"))
    save(shot.crop((left - 8, top - 8, right + 8, bottom + 8)), "wrong_pairs")


def review(browser: Any, run: Path, scratch: Path) -> None:
    """The page of a review."""
    command = [*CLI, "review", str(run), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=scratch)
    assert process.stdout is not None
    address = process.stdout.readline().split()[1]
    tab = browser.open(address, scratch)
    tab.until("!busy && document.getElementById('place').textContent !== ''")
    picture(tab, "review", 1280, 820)
    tab.close()
    process.terminate()
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run on images")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch, run = Path(name), Path(name, "demo", "run") if args.run is None else args.run.resolve()
        if args.run is None:
            subprocess.run([*CLI, "demo", "--out", "demo"], check=True, cwd=scratch)
        browser = start(scratch / "profile")
        assert browser is not None, "no Chromium here"
        tab = browser.open(report(run, scratch), scratch)
        shorter = f"c.textContent = c.textContent.replaceAll('{run.parent}/', 'runs/')"
        tab.run(f"document.querySelectorAll('code').forEach(c => {{ {shorter} }})")
        picture(tab, "report", 1280, 820)
        worst(tab)
        tab.close()
        review(browser, run, scratch)
        browser.close()


if __name__ == "__main__":
    main()
