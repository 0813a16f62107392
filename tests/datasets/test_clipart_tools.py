"""The tools that made the clip art: caption cleaning and reading Debian packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
SVG = """<svg xmlns:rdf="r" xmlns:dc="d" xmlns:cc="c"><metadata><rdf:RDF><cc:Work>
<dc:title>{title}</dc:title><dc:description>{description}</dc:description>
<dc:subject><rdf:Bag>{keywords}</rdf:Bag></dc:subject>
<dc:creator><cc:Agent><dc:title>{author}</dc:title></cc:Agent></dc:creator>
</cc:Work></rdf:RDF></metadata></svg>"""


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def captions() -> ModuleType:
    return tool("clipart_captions")


def svg(title: str, description: str = "", keywords: str = "", author: str = "") -> bytes:
    items = "".join(f"<rdf:li>{k}</rdf:li>" for k in keywords.split(";"))
    return SVG.format(title=title, description=description, keywords=items, author=author).encode()


def caption(captions: ModuleType, path: str, *args: str) -> str | None:
    found = captions.captions_of([captions.read_metadata(path, svg(*args))]).get(path)
    return None if found is None else found.text


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("food/pie_01", ("Apple Pie", "", "food;dessert"), "apple pie, dessert, food"),
        ("food/pie_02", ("Apple Pie (B and W)", "", "food"), "apple pie black and white, food"),
        ("tools/bucket", ("Bucket", "Bucket with green water", "tool"), "bucket with green water, tool"),
        ("a/cat", ("GattoNero02", "Made with Inkscape", "mammal;cat;unsorted;0x87fadcc"), "gatto nero, cat, mammal"),
        ("a/x", ("Red hen by Ann Smith", "ann@example.org", "bird;http://x.org/", "Ann Smith"), None),
        ("farm/red_hen_ann_smi_01", ("Red hen by Ann Smith", "", "bird", "Ann Smith"), "red hen, bird, farm"),
        ("games/simple_c_k", ("012", "", "card;simple"), "king of clubs playing card, simple, games"),
        ("unsorted/thing", ("Thing", "", ""), None),
        ("signs/t", ("Tom &amp;amp; Jerry", "", "sign;signs"), "tom jerry, sign"),
    ],
)
def test_captions(captions: ModuleType, path: str, fields: tuple[str, ...], expected: str | None) -> None:
    assert caption(captions, path, *fields) == expected


def test_a_title_that_many_files_share_gives_way_to_the_file_name(captions: ModuleType) -> None:
    names = ["give_way", "no_entry", "bus_lane", "falling_rocks", "wild_horses", "tram_crossing", "slippery_road"]
    metadata = [captions.read_metadata(f"roadsigns/{n}", svg("SVG Road Signs", "", "transport")) for n in names]
    found = captions.captions_of(metadata)
    assert found["roadsigns/bus_lane"].text == "bus lane, transport, roadsigns"
    assert len({c.text for c in found.values()}) == len(found) == len(names)
