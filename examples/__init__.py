"""Programs to start from. Each runs by itself, `python -m examples.NAME`, and is run by the tests.

What they need beside the library: `pip install ".[examples]"`.
"""

import sys
from importlib.util import find_spec


def needs(*modules: str) -> None:
    """Ends the program where a package is missing, saying what installs it."""
    if missing := [name for name in modules if find_spec(name) is None]:
        sys.exit(f'this example needs {", ".join(missing)}: pip install ".[examples]"')
