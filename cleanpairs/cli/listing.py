"""What there is to see: ``cleanpairs inspect``, ``methods``, ``recipes``, ``demo`` and ``doctor``."""

import resource
import shutil
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.options import (
    PathsCommand,
    Reads,
    Writes,
    complete,
    data_options,
    data_settings,
    group,
    limit_option,
    option,
)
from cleanpairs.cli.terminal import Progress, cut, echo, flag, print_result, safe, say
from cleanpairs.core import METHODS, READERS, CleanpairsError, plural, reported_to
from cleanpairs.core.plain import displaced_in_words
from cleanpairs.core.recipe import path_of, section_of
from cleanpairs.core.regular import read_text


@click.command(cls=PathsCommand)
@click.argument("method", metavar="[METHOD]...", nargs=-1, shell_complete=complete)
@option("--settings", "List every setting with its default, too.")
def methods(method: tuple[str, ...], settings: bool) -> None:
    """List the methods that `fit --method` takes, or only those given: cleanpairs methods auto --settings."""
    listed, lines = list[dict[str, Any]](), list[str]()
    for entry in (METHODS[name] for name in method or METHODS):
        about: dict[str, Any] = {key: getattr(entry, key) for key in ("name", "summary", "source", "needs")}
        if settings:
            from cleanpairs.estimators import PairCleaner

            loaded = METHODS.load(entry.name)
            parameters = signature(loaded).parameters
            about["settings"] = {setting: value.default for setting, value in parameters.items()}
            own = set(parameters) - set(signature(PairCleaner).parameters)
            about["sections"] = {s: "own" if s in own else section_of(loaded, s) for s in about["settings"]}
        listed.append(about)
        lines.append(f"{about['name']:<10} {about['summary']}  ({about['source']})")
        lines += [f"{'':<10} needs {parameter}: {what}" for parameter, what in about["needs"].items()]
        for section in ("own", "method", "backbone", "train"):
            some = [s for s, title in about.get("sections", {}).items() if title == section]
            lines += [f"    {'' if k else section:<9} {s} = {about['settings'][s]!r}" for k, s in enumerate(some)]
    print_result(listed, "\n".join(lines))


@click.group(invoke_without_command=True, params=[flag("json", "Print JSON, and nothing else.")])
@click.pass_context
def recipes(ctx: click.Context) -> None:
    """List the names that `fit --recipe` takes, each with its expected result."""
    from cleanpairs.core.recipe import find_recipes, recipe_header

    if ctx.invoked_subcommand is None:
        listed = [{"name": name, **recipe_header(path)} for name, path in find_recipes().items()]
        print_result(listed, "\n".join(f"{r['name']:<20} {r.get('expected', '')}" for r in listed))


@recipes.command(short_help="Print a recipe, which you can save and edit.")
@click.argument("name", shell_complete=complete)
def show(name: str) -> None:
    """Print the recipe NAME as a YAML file: `cleanpairs recipes show crcl-coco > mine.yaml`."""
    echo(read_text(path_of(name)).rstrip())


@click.command(cls=PathsCommand, flags=[flag("quiet", "No progress bar.")])
@option("--out=DIR", "The directory of all outputs.", Writes(), default="demo")
def demo(out: str) -> None:
    """Mismatch 30 % of the clip art's pairs, find them, repair some, and measure retrieval before and after."""
    from cleanpairs.commands.demo import run_demo

    with reported_to(Progress()):
        result = run_demo(out, say=say)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = f"\n{result['seconds']:.0f} s, {peak:,.0f} MB at the peak"
    print_result({**result, "peak_mb": round(peak), "out": out}, text)


@click.command(cls=PathsCommand)
def doctor() -> None:
    """Check the installation and the machine: versions, extras, GPU, threads, FAISS.

    The output has the commands that fix problems. The exit code is 1 only if cleanpairs cannot run.
    """
    from cleanpairs.commands.doctor import diagnose

    checks = diagnose()
    ok = all(check.state != "broken" for check in checks)
    print_result({"ok": ok, "checks": checks}, "\n".join(map(str, checks)))
    if not ok:
        sys.exit(CleanpairsError.exit_code)


@click.command(cls=PathsCommand)
@click.argument("data", type=Reads())
@data_options
@group(
    "Shown",
    option("--rows=N", "Pairs to show.", click.IntRange(min=0), default=5),
    limit_option,
    option("--filters", "Count the pairs that each filter of `fit --drop` would quarantine."),
    option("--decode", "Images to decode. A sample is 1,000 images.", ["all", "sample", "none"], default="sample"),
)
def inspect(data: str, rows: int, decode: str, filters: bool, limit: int | None, **options: Any) -> None:
    """Show how DATA is read: its format, columns, counts and first pairs, and the rows that cannot be used.

    `cleanpairs fit --help` lists the formats of DATA.
    """
    from cleanpairs.data import load_pairs
    from cleanpairs.data.inspection import inspect_pairs
    from cleanpairs.data.readers import fitting
    from cleanpairs.estimators.frozen import displaced_in_vectors

    pairs = load_pairs(data, limit=limit, **data_settings(options))
    facts = inspect_pairs(pairs, rows=rows, decode=decode, filters=filters)
    others = [name for name in fitting(data) if name != facts["reader"] and (name != "parquet" or Path(data).is_dir())]
    facts |= {"other_readers": others, "displaced": displaced_in_vectors(pairs)}
    width = max(shutil.get_terminal_size((100, 24)).columns, 60)
    print_result(facts, "\n".join(_lines(facts, decode, width)))


def _lines(summary: dict[str, Any], decode: str, width: int) -> Iterator[str]:
    yield from _files(summary, width)
    yield f"\nrows         {summary['rows']:,}"
    again = plural(summary["duplicate_pairs"], "duplicate")
    yield f"pairs        {summary['pairs']:,}  ({summary['quarantined']:,} quarantined before filters, {again})"
    unusable = f", {summary['unusable_images']:,} unusable" if summary["unusable_images"] else ""
    yield f"images       {summary['images']:,}  ({summary['distinct_images']:,} distinct{unusable})"
    yield f"captions     {summary['pairs']:,}  ({summary['distinct_captions']:,} distinct)"
    if summary["vectors"] is not None:
        yield f"vectors      {summary['vectors']} an image"
    if summary["text_vectors"] is not None:
        yield f"             {summary['text_vectors']} a caption"
    if summary["corrupted"] is not None:
        yield f"truth        {plural(summary['corrupted'], 'pair')} wrong, by the column true_mismatch"
    if summary["displaced"]:
        yield f"displaced    {displaced_in_words(summary['displaced'])}"
    for name, score in summary["precomputed_scores"].items():
        yield cut(f"precomputed score  {safe(name)}", f"  ({score['known']:,} known)", width)
        if score["known"]:
            names = ("least", "5 %", "25 %", "median", "75 %", "95 %", "most")
            quantiles = zip(names, score["quantiles"].values(), strict=True)
            yield "             " + "  ".join(f"{label} {value:.3f}" for label, value in quantiles)
    if summary["first"]:
        yield "\nfirst pairs"
    for row in summary["first"]:
        yield cut(f"  {safe(row['key'])}", f"  ({safe(row['image'])})", width)
        yield cut(f"    {safe(row['caption']) or '(no caption)'}", "", width)
        if row["reason"] is not None:
            yield f"    quarantined: {safe(row['reason'])}"
    if summary["reasons"]:
        yield f"\nquarantined  {summary['quarantined']:,} of {plural(summary['pairs'], 'pair')}"
        yield from _reasons(summary["reasons"])
    if summary["filters"] is not None:
        yield "\nfilters      what `fit --drop NAME,...` quarantines (several may find a pair; * is always on)"
    for f in summary["filters"] or ():
        example = "" if f["key"] is None else f"  (pair {f['pair_id']}, key {safe(f['key'])[:40]})"
        many = ", more than half of the pairs, so not quarantined" if f["too_many"] else ""
        yield f"  {f['filter'] + ('*' if f['always'] else ''):<18}{f['pairs']:>9,}  {f['reason']}{many}{example}"
    yield ""
    yield from _decoding(summary, decode)


def _files(summary: dict[str, Any], width: int) -> Iterator[str]:
    yield f"reader       {summary['reader']}: {READERS[summary['reader']].summary}"
    if summary["other_readers"]:
        yield f"             or as {' or '.join(summary['other_readers'])}, by --set reader=NAME"
    yield f"files        {plural(len(summary['files']), 'file')}, {_bytes(summary['bytes'])}"
    for path in summary["files"][:3]:
        yield cut(f"             {safe(path)}", "", width)
    if len(summary["files"]) > 3:
        yield f"             ... and {len(summary['files']) - 3:,} more"
    if summary["image_root"] is not None:
        yield cut(f"images in    {safe(summary['image_root'])}", "", width)
    for name, value in summary["options"].items():
        if name not in ("files", "json"):  # numbers of arrays, fields of .json: for the reader, not for eyes
            yield cut(f"{name:<13}{safe(value)}", "", width)
    yield "\ncolumns"
    wide = max([len(safe(c["name"])) for c in summary["columns"]] + [1])
    roles = {"text": "captions", "image": "images", "key": "keys", "features": "vectors"}
    roles["text_features"] = "captions' vectors"
    for column in summary["columns"]:
        role = f"  <- {roles.get(column['role'], column['role'])}" if column["role"] else ""
        yield cut(f"  {safe(column['name']):<{min(wide, 40)}}  {safe(column['type'])}", role, width)


def _reasons(reasons: list[dict[str, Any]], most: int = 10) -> Iterator[str]:
    for reason in reasons[:most]:
        first = f"(first pair {reason['pair_id']}, key {safe(reason['key'])[:40]})"
        yield f"  {reason['pairs']:>7,} x  {safe(reason['reason'])}  {first}"
    if len(reasons) > most:
        yield f"  ... and {plural(len(reasons) - most, 'more kind')}"


def _decoding(summary: dict[str, Any], decode: str) -> Iterator[str]:
    done = summary["decoded"]
    if done is None:
        also = [f"  (--image-root DIR: those of {safe(c['name'])})" for c in summary["columns"] if c["role"] == "image"]
        why = "not asked for" if decode == "none" else "".join(["there are no encoded images to decode", *also])
        yield f"decoded      none: {why}"
        return
    of, failed = plural(done["of"], "image"), sum(reason["pairs"] for reason in done["failures"])
    which = "all" if done["images"] == done["of"] else "a sample; --decode all takes every one"
    yield f"decoded      {done['images']:,} of {of} ({which}): {plural(failed, 'failure')}"
    if done["width"] is not None:
        sides = ((name, *done[name]) for name in ("width", "height"))
        texts = [f"{name} {low:,} to {high:,} (median {mid:,})" for name, low, mid, high in sides]
        yield f"             {', '.join(texts)}"
    yield from _reasons(done["failures"])


def _bytes(n: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:,.{unit != 'bytes':d}f} {unit}"
        n /= 1000
    return f"{n:,.1f} TB"
