"""What is done with a fitted run: ``cleanpairs score``, ``rematch``, ``export`` and ``push``."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import click
from click.core import ParameterSource

from cleanpairs.cli.options import (
    Decorator,
    PathsCommand,
    Reads,
    Writes,
    column_options,
    data_options,
    existing_run,
    group,
    ledger_option,
    option,
    reading_as_in_the_fit,
    run_and_data,
    run_argument,
    set_option,
    set_values,
)
from cleanpairs.cli.terminal import Progress, echo, has_flag, print_result, say
from cleanpairs.core import check_number, percent, plural, reported_to
from cleanpairs.core.recipe import override_values

engine_options = (
    option("--workers", "Parallel processes.", click.IntRange(1), default=1),
    option("--engine=NAME", "Engine of the processes: local, ray (started here), or ray=ADDRESS.", default="local"),
)


def chosen_engine(options: dict[str, Any]) -> Any:
    """Return the :class:`cleanpairs.engine.Engine` of :data:`engine_options`."""
    from cleanpairs.engine import make_engine

    name, _, address = options["engine"].partition("=")
    return make_engine(name, workers=options["workers"], address=address or None)


def warn_of_flags(run: Any, flagged: int, pairs: int, threshold: float) -> None:
    """Say so where many more of other data are below the threshold of the fit: a model of few pairs knows them best."""
    of_fit = run.info.get("result", {})
    if not (pairs and of_fit.get("pairs") and "flagged" in of_fit and of_fit.get("threshold", threshold) == threshold):
        return
    share, usual = flagged / pairs, of_fit["flagged"] / of_fit["pairs"]
    if share > usual + 0.1 + 2 * (usual * (1 - usual) / pairs) ** 0.5:
        here, there = percent(share, 0), percent(usual, 0)
        message = f"{here} of these pairs are below the threshold of the fit, and {there} of its own"
        remedy = "Go by the order of their scores, unless the model has hardly learned, or of other kinds of pairs"
        echo(f"warning: {message}. {remedy}", err=True)


def _number_or_auto(context: click.Context, parameter: click.Parameter, value: str | None) -> float | str | None:
    try:
        return value if value in (None, "auto") else float(str(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither a number nor 'auto'") from error


OPTIONS = "repairs", "n_donors", "dedup"  # settings of repairs that have an option of their own, under their name


def repair_options(more: str = "") -> tuple[Decorator, ...]:
    """Return the options of ``rematch`` and ``export``. The help of ``--set`` ends with ``more``."""
    return (
        option("--threshold=P|auto", "Repair or drop pairs below it.  [default: the run's]", callback=_number_or_auto),
        option("--max-wrong=P", "Keep as many pairs as this expected share of mismatched ones allows.", float),
        option("--keep=P", "Keep this share of the pairs, those with the best scores.", float),
        option(
            "--repairs",
            "probable: make repairs that are more likely right than wrong, where that is known. plausible: take the "
            "best candidate of each pair, right or near. none: drop all pairs below the threshold.",
            ["probable", "plausible", "none"],
            default="probable",
        ),
        option(
            "--donors=N n_donors",
            "With --repairs plausible: give a pair up to N captions, with weights, for `export --captions all`.",
            click.IntRange(1),
            default=1,
        ),
        option("--dedup", "Of near duplicates keep the best row, and drop the others."),
        set_option(
            "Other settings: strategy, displaced, targets, take_from, max_reuse, min_repair_score, "
            f"min_confidence, candidates, repeats (see RepairSettings in docs/api.md).{more}"
        ),
    )


def repair_settings(options: dict[str, Any], run: Any, given: dict[str, Any]) -> tuple[Any, str | None]:
    """The :class:`cleanpairs.repair.settings.RepairSettings` of the options, and what to tell of their threshold.

    ``given``: those of ``--set``.
    """
    from cleanpairs.commands.rematch import chosen_threshold
    from cleanpairs.repair.settings import RepairSettings

    threshold, expected = chosen_threshold(options["threshold"], options["max_wrong"], options["keep"], run)
    chosen = {name: options[name] for name in OPTIONS}
    return RepairSettings(threshold=threshold, **chosen, **given), expected


def repair_keys() -> list[str]:
    """Return the keys of ``--set repair.KEY=VALUE``: those that have no option of their own."""
    from cleanpairs.repair.settings import RepairSettings

    return [name for name in vars(RepairSettings()) if name not in ("threshold", *OPTIONS)]


@contextmanager
def caption_writer(out: str, options: dict[str, Any], chosen: dict[str, Any]) -> Iterator[Any]:
    """Yield what writes captions, by the options of ``rematch`` and the settings ``chosen`` by ``--set``.

    None, a name, or a :class:`cleanpairs.repair.chat.ChatWriter`, whose report is printed at the end.
    """
    requests, answers, url = options["recaption_requests"], options["captions"], options["recaption_url"]
    if requests and url:
        raise click.UsageError("--recaption-requests and --recaption-url exclude each other: a server is asked at once")
    if not (requests or answers or url):
        if chosen:
            raise click.UsageError(f"--set {min(chosen)} needs --recaption-requests, --captions or --recaption-url")
        yield options["recaption"]
        return
    from cleanpairs.data import staged_file
    from cleanpairs.repair.chat import ChatSettings, ChatWriter

    settings = ChatSettings(model=options["recaption"] or "", **chosen)
    with ExitStack() as outputs:
        if requests:
            requests = outputs.enter_context(staged_file(requests, overwrite=options["overwrite"], inputs=answers))
            requests.touch()  # there may be nothing to ask
        server = {"url": url, "cache": f"{out}.answers.jsonl" if url else None}
        writer = ChatWriter(settings, answers, requests, **server, tell=lambda text: echo(text, err=True))
        yield writer
        say(f"{writer.report()}\n")


@click.command(cls=PathsCommand)
@click.argument("paths", nargs=-1, metavar="[RUN] DATA", type=Reads())
@data_options
@group(
    "Output",
    option("--out=FILE", "The scores table to write (Parquet).", Writes(".parquet", extra=(".parts",)), required=True),
    option("--overwrite", "Replace --out."),
    *engine_options,
)
def score(paths: tuple[str, ...], out: str, **options: Any) -> None:
    """Score every pair of DATA by the model of RUN (or runs/latest). The score is the correspondence, from 0 to 1.

    The command stops if the model does not know half of the words. `--set max_unknown=1` allows more.

    Data that RUN was not fitted on gets a new threshold. It is the score at which a pair is as likely mismatched as
    matched, by random pairs of the same images and captions.

    The threshold of the fit is used for fewer than 80 new pairs, by methods that train nothing, and if the fit was
    given a threshold. It is also used for pairs that score no higher than random ones. Probabilities of vectors of one
    space assume the noise rate of the fit.

    Parquet with a column of image vectors is scored in partitions, in bounded memory, by --workers processes. If it is
    interrupted, the same command resumes. Finished parts are in OUT.parts until all are there. Filters are not applied.
    After a fit with --drop all rows are read at once, and filtered. Displaced rows are not looked for.
    """
    from cleanpairs.commands.score import score_stream

    run_path, data = run_and_data(paths)
    if data is None:
        raise click.UsageError("give the DATA to score; the scores of the pairs of a fit are in RUN/scores.parquet")
    run = existing_run(run_path)
    chosen = set_values(options, score=["max_unknown"])
    if (most := chosen["score"].get("max_unknown")) is not None:
        check_number("score", "max_unknown", most, least=0, most=1)
    columns = reading_as_in_the_fit(run, data, chosen["data"])
    how = {"columns": columns, "engine": chosen_engine(options), **chosen["score"]}
    with reported_to(Progress()):
        result = score_stream(run.model_folder, data, out, overwrite=options["overwrite"], **how)
    if (unknown := result.unknown_words or 0) > 0.2:
        message = f"the model does not know {percent(unknown, 0)} of the words of {data}: its scores are less reliable"
        echo(f"warning: {message}", err=True)
    warn_of_flags(run, result.flagged, result.pairs, result.threshold)
    text = (
        f"{plural(result.pairs - result.quarantined, 'pair')} scored, {result.flagged:,} below {result.threshold:.3g}, "
        f"{result.quarantined:,} quarantined -> {out}"
    )
    if result.quarantined:
        text += f"\nwhy pairs are quarantined: the column reason of {out}"
    if result.noise_rate is None:
        text += "\nthreshold: that of the fit"
    else:
        rate = "undetermined" if math.isnan(result.noise_rate.value) else result.noise_rate
        text += f"\nthreshold: by random pairs of this data; share mismatched: {rate}"
    print_result(result, text)


@click.command(cls=PathsCommand)
@click.argument("paths", nargs=-1, metavar="[RUN] [DATA]", type=Reads())
@group("Data", *column_options)
@group(
    "Repair",
    *repair_options(
        " For --recaption-requests and --recaption-url: prompt, image_size, body, max_words, concurrency, attempts, "
        "timeout, backoff. For DATA: reader, encoding."
    ),
    option(
        "--recaption=MODEL --recaption-model",
        "Captioning model (BLIP, GIT, ViT with a text decoder): a directory or a hub name. It writes captions for "
        "pairs that would be dropped. Only captions that score better than the old ones are used.",
        Reads(),
    ),
    option(
        "--recaption-requests=FILE",
        "Write requests for --recaption-model, in OpenAI's batch format: one for each pair that would be dropped.",
        Writes(".jsonl"),
    ),
    option(
        "--recaption-url=URL",
        "Ask --recaption-model on this server (OpenAI's chat completions), such as http://localhost:8000/v1. The key "
        "is in OPENAI_API_KEY. Answers are stored in OUT.answers.jsonl, and used again.",
        str,
    ),
    option("--captions=FILE", "Answers to such requests. May be repeated.", Reads(), multiple=True),
)
@group(
    "Output",
    option(
        "--out=FILE",
        "The plan to write: Parquet, or CSV where it ends in .csv.",
        Writes(".parquet", ".csv", extra=(".parts",), in_run=("plan.parquet",)),
        required=True,
    ),
    option("--overwrite", "Replace --out."),
    *engine_options,
)
def rematch(paths: tuple[str, ...], out: str, **options: Any) -> None:
    """Plan which pair gets which caption or image from which other pair. Nothing is changed.

    Without DATA the plan is for the data that RUN (or runs/latest) was fitted on. Read the plan, and edit its actions
    and donors. For a caption of your own write the action recaption. Then apply the plan: cleanpairs export --plan FILE
    --out OUT.

    With --workers several processes search for candidates. If they are interrupted, the same command resumes. Results
    are in OUT.parts until the plan is complete.
    """
    from cleanpairs.commands.rematch import rematch_run
    from cleanpairs.repair.actions import COUNTED, DUPLICATE, REASONS
    from cleanpairs.repair.chat import ChatSettings

    run, data = run_and_data(paths)
    by_scores = [f"--{name.replace('_', '-')}" for name in ("max_wrong", "keep") if options[name] is not None]
    by_scores += ["--threshold auto"] if options["threshold"] == "auto" else []
    if data is not None and by_scores:
        raise click.UsageError(f"{by_scores[0]} goes by the scores of the data that RUN was fitted on: leave DATA out")
    opened = existing_run(run)
    asking = [name for name in vars(ChatSettings()) if name != "model"]
    chosen = set_values(options, repair=repair_keys(), recaption=asking)
    settings, expected = repair_settings(options, opened, chosen["repair"])
    columns = chosen["data"] if data is None else reading_as_in_the_fit(opened, data, chosen["data"])
    how = {"overwrite": options["overwrite"], "engine": chosen_engine(options), **columns}
    with reported_to(Progress()), caption_writer(out, options, chosen["recaption"]) as writer:
        plan, summary = rematch_run(opened, out, settings, data, recaption=writer, **how)
    if data is not None and settings.threshold is None:
        duplicates = summary.reasons.get(REASONS[DUPLICATE], 0)
        flagged = summary.pairs - summary.kept - summary.quarantined - duplicates
        warn_of_flags(opened, flagged, summary.pairs, summary.threshold)
    if expected is not None:
        say(f"{expected}\n")
    if recall := [note["recall"] for note in plan.settings.get("searches", ()) if note["index"] != "flat"]:
        say(f"search: approximate; on a sample it found {percent(min(recall))} of the ten nearest")
    text = f"{summary}\n\nplan: {out}\nnext: cleanpairs export --plan {quote(out)} --out FILE"
    print_result({name: getattr(summary, name) for name in ("pairs", *COUNTED)}, text)


@click.command(cls=PathsCommand)
@run_argument
@group(
    "Repair",
    option("--plan=FILE", "Apply this plan of `cleanpairs rematch`. No RUN is needed.", Reads()),
    *repair_options(),
)
@group(
    "Output",
    option(
        "--out=OUT --repaired out",
        "The cleaned data to write: a file or directory.",
        Writes(extra=(".manifest.json", ".ledger.parquet", ".card.md", ".parts", ".search")),
        required=True,
    ),
    option("--overwrite", "Replace the outputs."),
    option(
        "--format",
        "webdataset: tars in img2dataset's layout. csv: names the image files. uids: DataComp's .npy of those kept.  "
        "[default: by its suffix: .parquet, DIR/{00000..}.tar, .lance, .csv, .npy]",
        ["parquet", "webdataset", "datasets", "lance", "csv", "uids"],
    ),
    option("--dropped=FILE", "The pairs that were dropped or quarantined: Parquet, or a .csv.", Writes()),
    option("--ledger=FILE", "Parquet with the outcome of every pair.  [default: OUT.ledger.parquet]", Writes()),
    option("--card=FILE", "Dataset card, or Croissant metadata (*.json). Directories have README.md.", Writes()),
    option("--license=ID", "Licence of the data, for the card, such as cc-by-4.0.  [default: unknown]"),
    option(
        "--captions=HOW",
        "split: write one row for each caption of a list. all: add a column all_captions with the old and the new "
        "captions of a row, each with its source and its probability.",
        ["split", "all"],
    ),
    option("--shard-size=N", "Samples in each tar of a webdataset.  [default: 10000]", int),
    *engine_options,
)
@click.pass_context
def export(ctx: click.Context, run: str | None, out: str, **options: Any) -> None:
    """Write the cleaned data of RUN (or runs/latest). Pairs at or above the threshold are kept. The others are
    repaired or dropped.

    With --workers or --engine ray several processes write partitions. If they are interrupted, the same command
    resumes. Finished parts are in OUT.parts until all are there.
    """
    from cleanpairs.commands.export import export_plan, export_run
    from cleanpairs.repair.actions import COUNTED

    names = ("dropped", "ledger", "card", "format", "shard_size", "license", "overwrite")
    written = {name: options[name] for name in names} | {"engine": chosen_engine(options)}
    written |= {"explode": options["captions"] == "split", "all_captions": options["captions"] == "all"}
    if options["plan"] is not None:
        typed = [p for p in ctx.command.params if ctx.get_parameter_source(p.name or "") is ParameterSource.COMMANDLINE]
        if run is not None:
            raise click.UsageError("RUN and --plan exclude each other: leave RUN out, since the plan names its data")
        of_plans = ("threshold", "max_wrong", "keep", *OPTIONS, "overrides")
        decided = [p.opts[0] for p in typed if p.name in of_plans]
        if decided:
            raise click.UsageError(f"{', '.join(decided)}: --plan has decided that; make another by rematch")
        with reported_to(Progress()):
            summary = export_plan(options["plan"], out, trusted=has_flag("trust-stored-paths"), **written)
    else:
        opened = existing_run(run)
        given = override_values(options["overrides"], repair=repair_keys())["repair"]
        settings, expected = repair_settings(options, opened, given)
        if expected is not None:
            say(f"{expected}\n")
        with reported_to(Progress()):
            summary = export_run(opened, out, settings, **written)
    print_result({name: getattr(summary, name) for name in ("pairs", *COUNTED, "rows")}, summary)
    if not summary.rows:
        name = "RUN" if options["plan"] is not None else quote(str(opened.path))
        answers = f"forty answers to `cleanpairs review {name} --calibrate` help"
        unusable = summary.quarantined == summary.pairs
        remedy = "`cleanpairs inspect DATA` shows why none can be used" if unusable else answers
        echo(f"warning: no pair is kept; {remedy}", err=True)


@click.command(cls=PathsCommand)
@click.argument("what", metavar="RUN|OUT", type=Reads())
@click.argument("repo", metavar="OWNER/NAME")
@option("--public", "Make a new repository public. It is private otherwise.")
@option("--license=ID", "Licence of a model, for its card, such as apache-2.0.  [default: unknown]")
@option("--card=FILE", "Dataset card of an export.  [default: OUT/README.md or OUT.card.md]", Reads())
@ledger_option
def push(what: str, repo: str, public: bool, license: str | None, card: str | None, ledger: str | None) -> None:
    """Upload the model of a run, or the cleaned data OUT of an export, in one commit.

    A new repository is private, unless you give --public. An existing one keeps its visibility. The token is that of
    huggingface_hub: HF_TOKEN, or `hf auth login`.
    """
    from cleanpairs.commands.export import push_run
    from cleanpairs.export import push_export

    if (Path(what) / "run.json").exists():
        if card is not None or ledger is not None:
            raise click.UsageError("--card and --ledger are for an export, and this is a run: its card is made from it")
        print_result(push_run(what, repo, license=license, private=not public))
    else:
        if license is not None:
            raise click.UsageError("--license is for a model: an export has its licence in its card already")
        print_result(push_export(what, repo, card=card, ledger=ledger, private=not public))
