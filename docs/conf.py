"""How Sphinx builds the documentation: `python -m sphinx -W docs build/docs`."""

import lox

project = "lox"
release = lox.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
nitpicky = True
# What other projects document: their inventories would have to be fetched.
nitpick_ignore_regex = [("py:.*", r"(collections|jax|lox\.loggers\._\w+|mlflow|numpy|pathlib|rich)\b.*")]
exclude_patterns = ["examples"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"
default_role = "code"
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [("When the returned function runs", "params_style")]

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["lox.css"]
pygments_dark_style = "github-dark"
html_title = f"lox {release}"
html_show_copyright = False
html_logo = html_favicon = "images/logo.svg"  # One file: its colors are for light and for dark pages.
