"""The documentation as a site: it is built without a warning, and what it points at is there."""

import html.parser
import inspect
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

import lox
import lox.testing

ROOT = Path(__file__).parent.parent.parent


class Page(html.parser.HTMLParser):
    """What a page of the site points at, and what can be pointed at in it."""

    def __init__(self, path):
        super().__init__()
        self.targets, self.anchors = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs["id"]} if "id" in attrs else set()
        self.targets += [attrs[name] for name in ("href", "src") if attrs.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}, folder


def test_every_page_is_in_the_site(site):
    pages, _ = site
    written = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert written and written <= pages.keys()


def test_what_the_site_points_at_is_there(site):
    pages, folder = site
    broken = []
    for name, page in pages.items():
        for target in page.targets:
            place, _, anchor = target.partition("#")
            if urllib.parse.urlparse(target).scheme:
                continue
            file = (folder / name).parent / urllib.parse.unquote(place.partition("?")[0]) if place else folder / name
            of_site = file.resolve().relative_to(folder).as_posix()
            if not file.exists() or (anchor and of_site in pages and anchor not in pages[of_site].anchors):
                broken.append((name, target))
    assert broken == []


def test_the_site_needs_no_other_one(site):
    pages, folder = site
    for path in folder.rglob("*.html"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not ("http" in line and ("<script" in line or 'rel="stylesheet"' in line)), (path, line)


def test_the_reference_has_every_public_name(site):
    pages, _ = site
    names = {name for name in dir(lox) if name[0] != "_" and not inspect.ismodule(getattr(lox, name))}
    public = {f"lox.{name}" for name in names}
    public |= {f"lox.loggers.{name}" for name, of in vars(lox.loggers).items() if inspect.isclass(of)}
    public |= {f"lox.testing.{name}" for name, of in vars(lox.testing).items() if inspect.isclass(of)}
    assert public - pages["api.html"].anchors == set()
