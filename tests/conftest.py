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


# Files are handed to the processes in this order: the long ones first, so that none is left over at the end.
LONG = ("test_doctor_reports", "test_lab", "test_bootstrap", "test_doctor_cases", "test_checkpoint", "test_environment")


def pytest_collection_modifyitems(items):
    """Long files first; within a file the order stays."""
    rank = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONG)))
