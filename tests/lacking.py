"""What is not on this machine: a test that needs it skips, in one line, and fails with CI=true, where all must run."""

import os
import shutil
from typing import NoReturn

import pytest


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


def lacking(what: str) -> NoReturn:
    """End the test that cannot be run here."""
    if in_ci():
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


def program(name: str, source: str) -> str:
    """The path of a program that a test runs; `source` is where one gets it."""
    return shutil.which(name) or lacking(f"{name} is not installed ({source})")
