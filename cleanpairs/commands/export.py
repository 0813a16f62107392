"""From a plan, or a finished run, to the cleaned dataset; a plan is carried out without importing PyTorch and SciPy."""

from pathlib import Path
from typing import Any

from cleanpairs.commands.run import PLAN, Run
from cleanpairs.core.errors import DataError
from cleanpairs.data import load_source, open_recorded, staged_file
from cleanpairs.engine import Engine
from cleanpairs.export import CardFacts, ExportSummary, Pushed, export_pairs
from cleanpairs.export.decisions import PlanFile
from cleanpairs.export.formats import choose_format
from cleanpairs.export.pushing import push_model
from cleanpairs.export.writing import ExportSettings, check_export, export_file, streams
from cleanpairs.repair.plan import RepairPlan, refuse_edited
from cleanpairs.repair.settings import RepairSettings


def card_facts(run: Run, license: str | None = None) -> CardFacts:
    """What the dataset card of an export tells of the run."""
    info = run.info
    result = info.get("result", {})
    return CardFacts(
        license=license,
        method=info.get("method"),
        flagged=result.get("flagged"),
        fitted=result.get("pairs"),
        noise_rate=result.get("noise_rate"),
        versions=info.get("versions", {}),
    )


def export_plan(
    path: str | Path,
    out: str | Path,
    *,
    license: str | None = None,
    about: CardFacts | None = None,
    engine: Engine | None = None,
    trusted: bool = False,
    **written: Any,
) -> ExportSummary:
    """Carry out a plan that was saved, and perhaps edited, on the data that it names; in memory that does not grow with
    the rows, where it is Parquet that nobody has edited, and :func:`cleanpairs.export.writing.streams` says so.

    - ``license``: for the dataset card, an identifier of the hub; ``about`` CardFacts: all that it tells
    - ``engine``: who does the work; this process when None
    - ``trusted``: follow whatever path or URL the plan names; see :func:`cleanpairs.data.open_recorded`
    - ``**written``: as of :func:`cleanpairs.export.export_pairs`

    Raises DataError: the file holds no plan, or its data has changed; else as reading, exporting and the engine do.
    """
    about = about or CardFacts(license=license)
    plan = PlanFile.open(path)
    head = RepairPlan.load(path) if plan is None else plan.head
    settings = head.settings
    if "data" not in settings:
        raise DataError(f"{path} does not name its data: apply it in Python, by cleanpairs.export.export_pairs")
    source = open_recorded(settings["data"], settings.get("columns", {}), path, trusted=trusted)
    if source.fingerprint != head.fingerprint:
        raise DataError("the plan was made for other data (its fingerprint differs): make it from this data")
    if plan is not None and streams(source, choose_format(out, written.get("format"))[0]):
        return export_file(plan, source, out, ExportSettings(**written, about=about), engine)
    whole = head if plan is None else RepairPlan.load(path)
    return export_pairs(load_source(source), whole, out, about=about, engine=engine, **written)


def export_run(
    run: Run,
    out: str | Path,
    settings: RepairSettings,
    *,
    license: str | None = None,
    engine: Engine | None = None,
    **written: Any,
) -> ExportSummary:
    """Plan the repairs of a run's input and carry the plan out; parameters and errors as of :func:`export_plan`.

    The plan is kept in the run, as ``plan.parquet``, if one that is there has not been edited.
    """
    from cleanpairs.commands.rematch import rematch_run

    refuse_edited(run.path / PLAN)  # before the planning, which takes its time
    check_export(run.open_input(), out, ExportSettings(**written))
    near, explode = Path(out).with_name(Path(out).name + ".search"), bool(written.get("explode"))
    with staged_file(run.path / PLAN, overwrite=True) as saved:  # there when the export is
        rematch_run(run, saved, settings, explode=explode, parts=near, overwrite=True, engine=engine)
        refuse_edited(run.path / PLAN)
        about = card_facts(run, license)
        return export_plan(saved, out, about=about, engine=engine, trusted=run.trusted, **written)


def push_run(path: str | Path, repo: str, *, license: str | None = None, private: bool = True) -> Pushed:
    """Upload the model of a run to the hub's ``repo`` (OWNER/NAME), with a model card that names the ``license``.

    Raises DataError: there is no such run, or it has no model; else as :func:`cleanpairs.export.pushing.push_files`.
    """
    run = Run.open(path)
    return push_model(run.model_folder, repo, about=card_facts(run, license), private=private)
