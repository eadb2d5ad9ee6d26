"""Configuration of the documentation: `sphinx-build -W -n -b html docs OUT`."""

import pathlib
import sys

import gswinrmt_jax

sys.path.insert(0, str(pathlib.Path(__file__).parent / '_ext'))

project = 'gswinrmt_jax'
author = 'The gswinrmt_jax developers'
copyright = author
release = version = gswinrmt_jax.__version__

extensions = [
    'myst_parser',
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
    'sphinx_copybutton',
    'reference',
]
exclude_patterns = ['_build']

# MyST: links to headings as GitHub makes them.
myst_heading_anchors = 4
myst_enable_extensions = ['colon_fence', 'attrs_inline']

# Docstrings are plain English with `code` in single backticks.
default_role = 'code'
highlight_language = 'none'  # Formulas, mostly.
autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
autodoc_typehints_format = 'short'
python_use_unqualified_type_names = True
maximum_signature_line_length = 72
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
# The build needs no network, so only names of this package are looked up.
nitpick_ignore_regex = [('py:.*', r'(?!gswinrmt_jax\.).*|.*\._[A-Z]\w*')]

html_theme = 'sphinx_book_theme'
html_title = 'gswinrmt_jax'
html_theme_options = {
    'show_toc_level': 2,
    'home_page_in_toc': False,
    'use_download_button': False,
    'navbar_persistent': [],
}
html_static_path = ['_static']
html_css_files = ['site.css']
html_show_sourcelink = False
html_copy_source = False
copybutton_exclude = '.linenos, .gp, .go'
