"""From a plan, or a finished run, to the cleaned dataset. A plan is carried out without importing PyTorch and SciPy."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from cleanpairs.commands.run import PLAN, Run
from cleanpairs.core import DataError, OutputError
from cleanpairs.core.plain import rate_in_words
from cleanpairs.data import load_source, open_recorded
from cleanpairs.data.atomic import StagedSet, scratch_directory
from cleanpairs.engine import Engine
from cleanpairs.export import CardFacts, ExportSummary, Pushed
from cleanpairs.export.decisions import Decisions, PlanFile
from cleanpairs.export.pushing import push_model
from cleanpairs.export.writing import Export, ExportSettings
from cleanpairs.repair.plan import RepairPlan, check_data, refuse_edited, write_plan
from cleanpairs.repair.settings import RepairSettings


def card_facts(run: Run, license: str | None = None) -> CardFacts:
    """Return what the dataset card of an export tells of the run."""
    info, result = run.info, run.result
    return CardFacts(
        license=license,
        method=info.get("method"),
        flagged=result.get("flagged"),
        fitted=result.get("pairs"),
        noise=rate_in_words(result),
        versions=info.get("versions", {}),
    )


def export_plan(
    path: str | Path,
    out: str | Path,
    *,
    license: str | None = None,
    engine: Engine | None = None,
    trusted: bool = False,
    **written: Any,
) -> ExportSummary:
    """Carry out a plan that was saved, and perhaps edited, on the data that it names.

    Memory does not grow with the rows, where the plan is Parquet that nobody has edited and the export streams.

    - ``license``: for the dataset card, an identifier of the hub
    - ``engine``: what does the work. By default this process
    - ``trusted``: follow whatever path or URL the plan names. See :func:`cleanpairs.data.open_recorded`
    - ``**written``: as of :func:`cleanpairs.export.export_pairs`

    Raises DataError: the file holds no plan, or its data has changed, else as reading, exporting and the engine do.
    """
    plan = PlanFile.open(path)
    head = RepairPlan.load(path) if plan is None else plan.head
    settings = head.settings
    if "data" not in settings:
        raise DataError(f"{path} does not name its data: apply it in Python, by cleanpairs.export.export_pairs")
    source = open_recorded(settings["data"], settings.get("columns", {}), head.fingerprint, path, trusted=trusted)
    about = settings.get("about") or {}
    facts = CardFacts(license=license, method=about.get("method"), noise=about.get("noise"))
    export = Export(source, out, ExportSettings(**written, about=facts))
    decisions = _decisions(export, plan) if plan is not None else export.decisions(head, load_source(source))
    return export.run(lambda _: decisions, engine)


def _decisions(export: Export, plan: PlanFile) -> Decisions:
    """Return the decisions of a plan in a file. They are read with the rows if these stream, else at once."""
    if not export.streams:
        return export.decisions(RepairPlan.load(plan.path), load_source(export.source))
    check_data(plan.head, plan.pairs, export.source.fingerprint, export.source.n_rows)
    return plan


def export_run(
    run: Run,
    out: str | Path,
    settings: RepairSettings,
    *,
    license: str | None = None,
    engine: Engine | None = None,
    streamed_from: int = RepairSettings.streamed_from,
    **written: Any,
) -> ExportSummary:
    """Plan the repairs of a run's input and carry the plan out. Parameters and errors as of :func:`export_plan`.

    The plan is kept in the run, as ``plan.parquet``, unless that cannot be written. One that was edited is an error. It
    is in memory. That of ``streamed_from`` rows and more is read from the file again, where the rows can be streamed.
    For a list of uids nothing is repaired, and no plan is kept.
    """
    from cleanpairs.commands.rematch import Planning, plan_selection

    plan_file, source = run.path / PLAN, run.open_input()
    refuse_edited(plan_file)  # before the planning, which takes its time
    export = Export(source, out, ExportSettings(**written, about=card_facts(run, license)))

    def unkept() -> Path:
        return resources.enter_context(scratch_directory("plan")) / PLAN

    def decide(outputs: StagedSet) -> Decisions:
        selects = export.format.selection and export.one_row_a_pair
        if selects and not settings.dedup:
            staged, threshold = unkept(), float(run.result["threshold"])
            head = plan_selection(run.scores(), source, settings.resolved(threshold), staged)
            return PlanFile(str(staged), source.n_rows, head)
        unrepaired = replace(settings, repairs="none", n_donors=1, displaced=False)
        search = Path(out).absolute().with_name(Path(out).name + ".search")
        planning = Planning(run, source, unrepaired if selects else settings, search, engine)
        try:
            saved = unkept() if selects else outputs.add(plan_file, overwrite=True)
        except OutputError:  # the run can be read only
            saved = unkept()
        if source.n_rows >= streamed_from and (scorer := planning.row_scorer()) is not None:
            head, _ = planning.streamed(scorer, saved)
            decisions = _decisions(export, PlanFile(str(saved), source.n_rows, head))
        else:
            plan, pairs = planning.in_memory(explode=export.settings.explode)
            write_plan(saved, plan, [plan.table])
            decisions = export.decisions(plan, pairs)
        refuse_edited(plan_file)
        return decisions

    with ExitStack() as resources:
        return export.run(decide, engine)


def push_run(path: str | Path, repo: str, *, license: str | None = None, private: bool = True) -> Pushed:
    """Upload the model of a run to the hub's ``repo`` (OWNER/NAME), with a model card that names the ``license``.

    Raises DataError: there is no such run, or it has no model, else as :func:`cleanpairs.export.pushing.push_files`.
    """
    run = Run.open(path)
    return push_model(run.model_folder, repo, about=card_facts(run, license), private=private)
