"""Bad inputs: what a disk, a download or a stranger leaves. Each is refused, by its exit code, and the file named."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from faults.cases import edit_note, leftovers
from faults.forked import in_child, run_command

__all__ = ["BAD", "BadInput", "try_bad"]

DATA = 3


@dataclass(frozen=True)
class BadInput:
    """One bad input: ``make`` leaves it in the prepared folder, ``argv`` meets it.

    ``names``: texts that the message has to hold, the file above all; ``code``: the exit code.
    """

    name: str
    argv: str
    make: Callable[[Path], None]
    names: tuple[str, ...]
    code: int = DATA
    kind: ClassVar = "bad inputs: exit code, and a message that names the file"


def try_bad(bad: BadInput, base: Path, work: Path) -> list[str]:
    """Run the command on the bad input: what was wrong with how it ended."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work, symlinks=True)
    in_child(_made, bad, str(work))
    outcome = run_command(bad.argv.split(), work)
    last_line = outcome.err.strip().splitlines()[-1] if outcome.err.strip() else outcome.out.strip()[-300:]
    problems = []
    if outcome.code != bad.code:
        problems.append(f"exit code {outcome.code}, not {bad.code}")
    if not outcome.clean:
        problems.append("a traceback")
    whole = outcome.err + (outcome.out if bad.argv.startswith("verify") else "")
    problems += [f"the message does not name {name}" for name in bad.names if name not in whole]
    if [p for p in leftovers(work) if not p.startswith(".tmp")]:
        problems.append("something is left behind")
    if (work / "new").exists() or (work / "new.parquet").exists():
        problems.append("an output was written")
    return [f"{problem} ({last_line[:300]})" for problem in problems]


def _made(bad: BadInput, work: str) -> None:
    bad.make(Path(work))


# -- how things are damaged -------------------------------------------------------------------------------------------


def text(name: str, content: str) -> Callable[[Path], None]:
    """A file of other contents."""
    return lambda work: _write(work / name, content.encode())


def cut(name: str, share: float) -> Callable[[Path], None]:
    """A file that ends too early."""

    def make(work: Path) -> None:
        data = (work / name).read_bytes()
        (work / name).write_bytes(data[: int(len(data) * share)])

    return make


def flip(name: str, share: float) -> Callable[[Path], None]:
    """A byte that is another one."""

    def make(work: Path) -> None:
        data = bytearray((work / name).read_bytes())
        data[int(len(data) * share)] ^= 0xFF
        (work / name).write_bytes(data)

    return make


def table(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A Parquet file with other contents."""

    def make(work: Path) -> None:
        import pyarrow.parquet as pq

        found = change(pq.read_table(work / "data.parquet"))
        (work / name).parent.mkdir(exist_ok=True)
        pq.write_table(found, work / name)

    return make


def both(*makes: Callable[[Path], None]) -> Callable[[Path], None]:
    """One after the other."""

    def make(work: Path) -> None:
        for one in makes:
            one(work)

    return make


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(data)


def _without(*names: str) -> Callable[[Any], Any]:
    return lambda t: t.drop_columns(list(names))


def _twice(t: Any) -> Any:
    return t.append_column("caption", t["caption"])


def _numbers(t: Any) -> Any:
    import pyarrow as pa

    return t.set_column(t.column_names.index("caption"), "caption", pa.array(range(len(t))))


def _bad_images(t: Any) -> Any:
    """Every image is a web page, and there are no vectors."""
    import pyarrow as pa

    return t.drop_columns(["image", "image_features"]).append_column("image", pa.array([b"<html>"] * len(t)))


def _nan(t: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    flat = pa.array(np.full(16 * len(t), np.nan, np.float32))
    at = t.column_names.index("image_features")
    return t.set_column(at, "image_features", pa.FixedSizeListArray.from_arrays(flat, 16))


def _pickled(name: str) -> Callable[[Path], None]:
    def make(work: Path) -> None:
        import numpy as np

        stream = io.BytesIO()
        np.save(stream, np.array([{"a": 1}] * 4, dtype=object), allow_pickle=True)
        _write(work / name, stream.getvalue())
        _write(work / Path(name).parent / "train_caps.txt", b"a\nb\nc\nd\n")

    return make


def _research(images: int, captions: int) -> Callable[[Path], None]:
    def make(work: Path) -> None:
        import numpy as np

        (work / "precomp").mkdir()
        np.save(work / "precomp" / "train_ims.npy", np.ones((images, 3, 4), np.float32), allow_pickle=False)
        (work / "precomp" / "train_caps.txt").write_text("a caption\n" * captions)

    return make


def _config(key: str, value: Any) -> Callable[[Path], None]:
    def make(work: Path) -> None:
        file = work / "run" / "model" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))

    return make


def _stated(name: str, value: Any) -> Callable[[Path], None]:
    def make(work: Path) -> None:
        file = work / "run" / "model" / "config.json"
        config = json.loads(file.read_text())
        config["state"][name] = value
        file.write_text(json.dumps(config))

    return make


def _threshold(name: str, value: Any) -> Callable[[Path], None]:
    def make(work: Path) -> None:
        if name.endswith(".csv"):
            edit_note(work / name, lambda noted: noted.update(threshold=value))
            return
        noted = json.loads((work / name).read_text())
        at = noted.get("result", noted)
        if "threshold" not in at:
            raise RuntimeError(f"{name} has no threshold: {noted}")
        at["threshold"] = value
        (work / name).write_text(json.dumps(noted))

    return make


def _without_note(work: Path) -> None:
    head, _, rows = (work / "plan.csv").read_text(encoding="utf-8-sig").partition("\n")
    (work / "plan.csv").write_text(head.partition(',"{')[0] + ',"other"\n' + rows)


def _changed(work: Path) -> None:
    import pyarrow.parquet as pq

    found = pq.read_table(work / "data.parquet")
    pq.write_table(found.slice(1), work / "data.parquet")
    info = json.loads((work / "run" / "run.json").read_text())
    info["input"]["data"] = str(work / "data.parquet")
    (work / "run" / "run.json").write_text(json.dumps(info))


FIT = "fit {} --method infonce --epochs 1 --device cpu --quiet --out new"


def _fit(data: str, more: str = "") -> str:
    return f"{FIT.format(data)} {more}".strip()


BAD: tuple[BadInput, ...] = (
    BadInput("no such file", _fit("nowhere.parquet"), lambda w: None, ("nowhere.parquet",)),
    BadInput("no file matches a glob", _fit("no*.parquet"), lambda w: None, ("no*.parquet",)),
    BadInput("a directory without data", _fit("empty"), lambda w: (w / "empty").mkdir(), ("empty",)),
    BadInput("Parquet: empty file", _fit("e.parquet"), text("e.parquet", ""), ("e.parquet",)),
    BadInput("Parquet: a web page", _fit("e.parquet"), text("e.parquet", "<html>404</html>"), ("e.parquet",)),
    BadInput("Parquet: CSV named so", _fit("e.parquet"), text("e.parquet", "a,b\n1,2\n" * 50), ("e.parquet",)),
    BadInput("Parquet: cut in half", _fit("data.parquet"), cut("data.parquet", 0.5), ("data.parquet",)),
    BadInput("Parquet: last byte missing", _fit("data.parquet"), cut("data.parquet", 0.9999), ("data.parquet",)),
    BadInput("Parquet: a flipped byte, checksums", "verify kept.parquet", flip("kept.parquet", 0.3), ("kept.parquet",)),
    BadInput("Parquet: no captions", _fit("n.parquet"), table("n.parquet", _without("caption")),
             ("caption", "n.parquet")),
    BadInput("Parquet: no images", _fit("n.parquet"),
             table("n.parquet", _without("image", "image_features")), ("image", "n.parquet")),
    BadInput("Parquet: a column twice", _fit("n.parquet"), table("n.parquet", _twice), ("caption", "n.parquet")),
    BadInput("Parquet: captions are numbers", _fit("n.parquet"), table("n.parquet", _numbers), ("caption",)),
    BadInput("Parquet: no rows", _fit("n.parquet"), table("n.parquet", lambda t: t.slice(0, 0)), ("no pair",)),
    BadInput("Parquet: one row", _fit("n.parquet"), table("n.parquet", lambda t: t.slice(0, 1)), ("at least 2",), 7),
    BadInput("Parquet: files differ in a column", _fit("many"),
             both(table("many/a.parquet", lambda t: t), table("many/b.parquet", _numbers)), ("caption", "b.parquet")),
    BadInput("Parquet: one file lacks a column", _fit("many"),
             both(table("many/a.parquet", lambda t: t), table("many/b.parquet", _without("key"))),
             ("key", "b.parquet")),
    BadInput("images that are web pages", _fit("n.parquet", "--set image_size=32"), table("n.parquet", _bad_images),
             ("pair 0",)),
    BadInput("vectors that are not finite", _fit("n.parquet"), table("n.parquet", _nan), ("pair 0",)),
    BadInput("npy: pickled objects", _fit("p"), _pickled("p/train_ims.npy"), ("train_ims.npy",)),
    BadInput("npy: cut", _fit("precomp"), both(_research(6, 6), cut("precomp/train_ims.npy", 0.7)), ("train_ims.npy",)),
    BadInput("research layout: captions do not fit", _fit("precomp"), _research(6, 7), ("precomp",)),
    BadInput("Arrow: cut", _fit("f.arrow"), text("f.arrow", "\xff\xff"), ("f.arrow",)),
    BadInput("tar: a web page", _fit("00000.tar"), text("00000.tar", "<html>" * 200), ("00000.tar",)),
    BadInput("run: no run.json", "report run --out new", lambda w: (w / "run/run.json").unlink(), ("run.json",)),
    BadInput("run: run.json is cut", "report run --out new", cut("run/run.json", 0.5), ("run.json",)),
    BadInput("run: scores are cut", "report run --out new", cut("run/scores.parquet", 0.5), ("scores.parquet",)),
    BadInput("run: scores are another table", "report run --out new",
             lambda w: shutil.copy(w / "data.parquet", w / "run/scores.parquet"), ("scores.parquet",)),
    BadInput("run: the data has changed", "export run --repaired new.parquet", _changed, ("data.parquet",)),
    BadInput("model: weights are cut", "score run data.parquet --out new.parquet",
             cut("run/model/model.safetensors", 0.6), ("model.safetensors",)),
    BadInput("model: weights are a pickle", "score run data.parquet --out new.parquet",
             text("run/model/model.safetensors", "\x80\x04\x95builtins"), ("model.safetensors",)),
    BadInput("model: bank is cut", "score run data.parquet --out new.parquet",
             cut("run/model/bank.safetensors", 0.6), ("bank.safetensors",)),
    BadInput("model: config is no JSON", "score run data.parquet --out new.parquet",
             text("run/model/config.json", "{"), ("config.json",)),
    BadInput("model: config of another format", "score run data.parquet --out new.parquet", _config("format", 99),
             ("config.json", "99")),
    BadInput("model: config names no method", "score run data.parquet --out new.parquet", _config("method", "evil"),
             ("evil",)),
    *(BadInput(f"model: {name} {value}", command, _stated(name, value), ("config.json",))
      for name in ("threshold_", "noise_rate_") for value in (math.nan, math.inf, -0.5, 2, "0.5", [0.5], True)
      for command in ("score run data.parquet --out new.parquet", "verify run/model")),
    *(BadInput(f"{file}: a threshold {value}", command, _threshold(file, value), (file,))
      for value in (math.nan, math.inf, -0.5, 2, "x", [0.5])
      for file, command in (("plan.csv", "export --plan plan.csv --repaired new.parquet"),
                            ("run/run.json", "report run --out new"),
                            ("run/run.json", "export run --repaired new.parquet"),
                            ("run/run.json", "verify run"))),
    BadInput("model: vocabulary is missing", "score run data.parquet --out new.parquet",
             lambda w: (w / "run/model/vocabulary.json").unlink(), ("vocabulary.json",)),
    BadInput("plan: no table", "export --plan plan.csv --repaired new.parquet", text("plan.csv", "\n"), ("plan.csv",)),
    BadInput("plan: cut", "export --plan plan.csv --repaired new.parquet", cut("plan.csv", 0.5), ("plan.csv",)),
    BadInput("plan: its note is missing", "export --plan plan.csv --repaired new.parquet",
             _without_note, ("plan.csv",)),
    BadInput("export: the ledger is missing", "restore kept.parquet --out new.parquet",
             lambda w: (w / "kept.parquet.ledger.parquet").unlink(), ("kept.parquet.ledger.parquet",)),
    BadInput("export: the ledger was edited", "restore kept.parquet --out new.parquet",
             flip("kept.parquet.ledger.parquet", 0.5), ("kept.parquet.ledger.parquet",)),
    BadInput("export: the manifest is missing", "restore kept.parquet --out new.parquet",
             lambda w: (w / "kept.parquet.manifest.json").unlink(), ("manifest",)),
    BadInput("export: the manifest is no JSON", "verify kept.parquet", text("kept.parquet.manifest.json", "["),
             ("kept.parquet.manifest.json",)),
    BadInput("noise file: no array", "corrupt clean.parquet --noise-file n.npy --out new.parquet",
             text("n.npy", "1 2 3"), ("n.npy",)),
    BadInput("recipe: no YAML", "fit data.parquet --recipe r.yaml --out new", text("r.yaml", "a: [1"), ("r.yaml",), 2),
    BadInput("recipe: a tag that makes objects", "fit data.parquet --recipe r.yaml --out new",
             text("r.yaml", "method: !!python/object/apply:os.system [true]"), ("r.yaml",), 2),
    BadInput("output: a folder that is a file", "score run data.parquet --out plan.csv/new.parquet",
             lambda w: None, ("plan.csv/new.parquet",), 4),
    BadInput("output: the input", "corrupt clean.parquet --noise 0.4 --out clean.parquet --overwrite", lambda w: None,
             ("clean.parquet",), 5),
    BadInput("output: exists", "score run data.parquet --out scored.parquet", text("scored.parquet", "x"),
             ("scored.parquet",), 5),
    BadInput("output: a link", "score run data.parquet --out link.parquet --overwrite",
             lambda w: (w / "link.parquet").symlink_to(w / "data.parquet"), ("link.parquet",), 5),
)  # fmt: skip
