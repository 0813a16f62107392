"""Write the descriptions of inherited parameters into the docstrings of the classes that are used most.

An editor reads the source, where a class describes its own parameters alone. After a change of a shared description:

    python tools/parameter_docs.py
"""

import ast
import inspect
import textwrap
from pathlib import Path

from cleanpairs import CRCL, L2RM, PC2, REPAIR, Auto

CLASSES = (Auto, CRCL, L2RM, PC2, REPAIR)


def main() -> None:
    """Rewrite each docstring in its file."""
    for cls in CLASSES:
        path = Path(inspect.getfile(cls))
        lines = path.read_text(encoding="utf-8").splitlines()
        classes = {n.name: n for n in ast.parse("\n".join(lines)).body if isinstance(n, ast.ClassDef)}
        doc = classes[cls.__name__].body[0]
        text = textwrap.indent((cls.__doc__ or "").strip(), "    ").splitlines()
        lines[doc.lineno - 1 : doc.end_lineno] = ['    """' + text[0].strip(), *text[1:], '    """']
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
