"""What survives an interruption: named attributes as arrays and plain numbers."""

from typing import Any, ClassVar

import numpy as np


class Resumable:
    """Hands over the attributes ``kept`` and takes them back, each of the type that it has."""

    kept: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """What :meth:`load_state` goes on from: arrays and plain numbers."""
        return {name: getattr(self, name) for name in self.kept}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`; arrays are copied."""
        for name in self.kept:
            now = getattr(self, name)
            array = isinstance(now, np.ndarray)
            setattr(self, name, np.array(state[name], dtype=now.dtype) if array else type(now)(state[name]))
