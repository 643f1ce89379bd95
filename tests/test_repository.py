"""The files that describe the project to people and to services."""

import re
import tomllib
import xml.etree.ElementTree
from pathlib import Path

import pytest

import lox

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r'^([\w-]+): "?([^">\n]+)"?$', text, re.MULTILINE))
    assert fields["cff-version"] == "1.2.0" and fields["message"] and fields["title"].startswith("lox")
    assert (fields["version"], fields["license"]) == (lox.__version__, PROJECT["license"])
    assert re.search(r"^authors:\n  - name: ", text, re.MULTILINE)


@pytest.mark.parametrize("page", ["#ffffff", "#131416"], ids=["light", "dark"])  # Those of the theme.
def test_the_logo_stands_out_on_pages(page):
    shapes = xml.etree.ElementTree.parse(ROOT / "docs/images/logo.svg").findall(".//{*}path")
    colors = {shape.get("stroke") for shape in shapes}
    assert len(colors) == 2
    for color in colors:
        darker, lighter = sorted([luminance(page), luminance(color)])
        assert (lighter + 0.05) / (darker + 0.05) >= 3, color  # As WCAG asks for graphics.


def luminance(color):
    """The relative luminance of a color, as WCAG defines it."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
