"""The worked example of CONTRIBUTING.md is a method: it trains, finds, repairs, is saved and read."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cleanpairs import PairCleaner
from cleanpairs.core import METHODS, DataError
from cleanpairs.core.registry import Registry
from tests.helpers import assert_raises, corpus, reloaded


def test_a_method_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    ((name, target, *about),) = re.findall(r'^    "(\w+)": \("([\w.:]+)", "(.+)", "(.+)"\),$', text, re.MULTILINE)
    (tmp_path / "example_gce.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(METHODS, name, Registry("method", {name: (f"example_{target}", *about)})[name])
    method = METHODS.load(name)
    assert method is importlib.import_module("example_gce").GCE
    pairs = corpus(120, 30)
    small = {"backbone": "mlp", "dim": 32, "dim_word": 16, "batch_size": 16, "eval_group_size": 32, "lr": 5e-3,
             "tau": 0.1, "epochs": 8, "image_drop": 0.0, "text_drop": 0.1}  # fmt: skip
    model = method(**small, device="cpu", q=0.5).fit(pairs)
    assert roc_auc_score(np.arange(120) >= 30, model.correspondence_) > 0.8
    assert len(model.rematch(pairs).to_pandas()) == 120
    assert reloaded(model, tmp_path, pairs).q == 0.5
    assert type(PairCleaner.from_pretrained(tmp_path / "model")) is method
    monkeypatch.delitem(METHODS, name)  # in a file of one's own, without the line
    assert type(method.from_pretrained(tmp_path / "model")) is method
    with pytest.raises(DataError, match="method 'gce' is not registered; load it by its own class"):
        PairCleaner.from_pretrained(tmp_path / "model")
    assert_raises(Exception, "q of gce must be", method(q=2).fit, pairs)
