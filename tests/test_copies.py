"""The learner's copies in work/: what a learner changed is never overwritten, and never in the way."""

import json
import os

import pytest

from course_lib.bootstrap import copies
from course_lib.bootstrap.environment import SetupError

NAME = "01_x.ipynb"


@pytest.fixture
def course(tmp_path):
    """A course of one notebook, copied once."""
    (tmp_path / "notebooks").mkdir()
    publish(tmp_path, "first")
    assert refresh(tmp_path) == []
    return tmp_path


def publish(course, text):
    (course / "notebooks" / NAME).write_text(text)


def refresh(course):
    return copies.refresh(course / "notebooks", course / "work")


def mine(course, name=NAME):
    return (course / "work" / name).read_text()


def edit(course, text, name=NAME):
    (course / "work" / name).write_text(text)


def listing(course):
    return sorted(path.name for path in (course / "work").iterdir() if path.name != copies.RECORD)


def test_the_notebooks_are_copied(course):
    assert mine(course) == "first" and listing(course) == [NAME]


def test_an_untouched_copy_follows_the_new_version(course):
    publish(course, "second")
    assert "brought up to date" in refresh(course)[0]
    assert mine(course) == "second" and refresh(course) == []


def test_a_changed_copy_stays_and_nothing_is_said_while_the_course_stays_the_same(course):
    edit(course, "my work")
    assert refresh(course) == [] and mine(course) == "my work" and listing(course) == [NAME]


def test_a_changed_copy_stays_and_the_new_version_is_put_beside_it(course):
    edit(course, "my work")
    publish(course, "second")
    (sentence,) = refresh(course)
    assert "yours is kept" in sentence and "01_x.new.ipynb" in sentence
    assert mine(course) == "my work" and mine(course, "01_x.new.ipynb") == "second"
    # said once, also where the learner has deleted the new version
    (course / "work" / "01_x.new.ipynb").unlink()
    assert refresh(course) == [] and listing(course) == [NAME]


def test_the_next_new_version_replaces_an_untouched_one_but_not_one_that_the_learner_took_up(course):
    edit(course, "my work")
    publish(course, "second")
    refresh(course)
    publish(course, "third")
    refresh(course)
    assert mine(course, "01_x.new.ipynb") == "third" and len(listing(course)) == 2
    edit(course, "my work in the new one", "01_x.new.ipynb")
    publish(course, "fourth")
    assert "01_x.new2.ipynb" in refresh(course)[0]
    assert mine(course, "01_x.new.ipynb") == "my work in the new one" and mine(course) == "my work"
    assert mine(course, "01_x.new2.ipynb") == "fourth"


def test_a_copy_that_was_deleted_comes_back(course):
    (course / "work" / NAME).unlink()
    refresh(course)
    assert mine(course) == "first"


def test_a_learner_who_took_over_the_new_version_gets_the_next_one(course):
    edit(course, "my work")
    publish(course, "second")
    refresh(course)
    edit(course, "second")
    refresh(course)
    publish(course, "third")
    refresh(course)
    assert mine(course) == "third"


@pytest.mark.parametrize("damage", ["{", "[]", "", '{"01_x.ipynb": 5}'])
def test_a_damaged_record_counts_every_copy_as_the_learners_own(course, damage):
    (course / "work" / copies.RECORD).write_text(damage)
    publish(course, "second")
    assert "yours is kept" in refresh(course)[0] and mine(course) == "first"
    assert json.loads((course / "work" / copies.RECORD).read_text())


def test_what_the_learner_made_is_not_touched(course):
    edit(course, "notes", "notes.ipynb")
    refresh(course)
    assert mine(course, "notes.ipynb") == "notes"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX rights")
def test_a_folder_that_cannot_be_made_gets_one_sentence(course):
    (course / "file").write_text("")
    with pytest.raises(SetupError, match="write access"):
        copies.refresh(course / "notebooks", course / "file" / "work")
