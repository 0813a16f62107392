"""What scikit-learn asks of an estimator, without importing it: that takes as long as half of torch.

``clone``, pipelines and searches take such an estimator: it has parameters, tags, and a picture for notebooks.
"""

from __future__ import annotations

import inspect
from typing import Any, Self

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.registry import nearest


class Estimator:
    """Parameters by the names of the constructor, which only stores."""

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {name: p.default for name, p in sorted(inspect.signature(cls).parameters.items())}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Name -> value of every parameter, by name; ``deep`` is scikit-learn's, and there is nothing below."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: Any) -> Self:
        """Set some of the parameters; ConfigError for one that is none."""
        known = self._defaults()
        for name, value in params.items():
            if name not in known:
                raise ConfigError(f"{type(self).__name__} has no parameter {name!r}{nearest(name, list(known))}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The parameters that are not the defaults."""
        own = self.get_params()
        changed = [f"{k}={own[k]!r}" for k, default in self._defaults().items() if repr(own[k]) != repr(default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """As scikit-learn's base class has them."""
        from sklearn.base import BaseEstimator

        return BaseEstimator.__sklearn_tags__(self)

    def _repr_html_(self) -> str | None:
        """The diagram of a notebook; None, for the text, after ``sklearn.set_config(display="text")``."""
        from sklearn import get_config
        from sklearn.utils import estimator_html_repr

        return str(estimator_html_repr(self)) if get_config()["display"] == "diagram" else None
