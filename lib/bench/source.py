"""Show the library's own source in a notebook, so that no step of a method is opaque."""

import inspect
import textwrap
from typing import Any

from IPython.display import display


def show_source(*objects: Any) -> None:
    """Render the source of functions or classes of the library as a code block.

    Raises:
        TypeError: an object has no Python source.
    """
    source = "\n\n".join(textwrap.dedent(inspect.getsource(item)).rstrip() for item in objects)
    display({"text/markdown": f"```python\n{source}\n```", "text/plain": source}, raw=True)
