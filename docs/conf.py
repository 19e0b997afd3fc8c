"""The documentation site: `make docs`. Tutorials are executed; warnings are errors."""

import importlib.metadata
import os
import sys
from pathlib import Path

from phast.data.files import cache_directory

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project, author, copyright = "PHAST", "The PHAST developers", "The PHAST developers"
release = version = importlib.metadata.version("phast-physics")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "commands",
]
exclude_patterns = ["_build", "_extensions"]

# The tutorials run in the environment of the build, each in an empty folder, with the compiled programs of `phast`.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["TTY_COMPATIBLE"] = "0"  # a notebook is no terminal: plain lines of progress
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_directory() / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

smartquotes = False  # --option is no dash
html_theme = "furo"
html_title = f"PHAST {release}"
copybutton_prompt_text = "$ "
