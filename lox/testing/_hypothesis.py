"""The names of Hypothesis that lox uses. An extra of lox installs it."""

from lox._extras import extra

with extra("testing", "lox.testing"):
    from hypothesis import HealthCheck as HealthCheck
    from hypothesis import given as given
    from hypothesis import seed as seed
    from hypothesis import settings as settings
    from hypothesis import strategies as strategies
