"""What all tests share: nothing is written into the learner's progress, nothing opens a window."""

import os
from pathlib import Path

import pytest

os.environ["COURSE_PROGRESS"] = "off"
os.environ["MPLBACKEND"] = "agg"
os.environ.pop("COURSE_STRICT", None)


@pytest.fixture(scope="session")
def root():
    """The folder of the repository."""
    return Path(__file__).resolve().parents[1]
