"""The result of a check, and how it looks in a notebook and in a terminal."""

from dataclasses import dataclass

from . import page

STATES = ("not started", "failed", "passed", "not verified here")
# words and a sign, so that nothing hangs on the colour
_LOOKS = {
    "not started": ("○", "Not started", "plain"),
    "failed": ("✗", "Not right yet", "bad"),
    "passed": ("✓", "Passed", "good"),
    "not verified here": ("?", "Not verified here", "warn"),
}
_shown = []  # the verdicts that the running cell has shown already


@dataclass(frozen=True)
class Verdict:
    """What a check found: `state` is one of STATES, `diagnosis` a slug, `message` for the learner."""

    id: str
    state: str
    diagnosis: str
    message: str
    title: str = ""
    output: str = ""
    output_total: int = 0
    hints_left: int = 0

    def show(self):
        """Show it now, and not a second time where it is also the last expression of the cell."""
        page.show(str(self), self._repr_html_())
        shell = page.shell()
        if shell is None:
            return
        if not _shown:
            shell.events.register("post_execute", _forget)
        _shown.append(self)

    def _ipython_display_(self):
        if not any(verdict is self for verdict in _shown):
            page.show(str(self), self._repr_html_())

    def __repr__(self):
        return f"<{self.id}: {self.state}>"

    def __str__(self):
        sign, words, _ = _LOOKS[self.state]
        lines = [f"{sign} {self._heading}: {words}. {self.message}".rstrip()]
        if self.output:
            lines += [f"{self._summary}:"] + ["  | " + line for line in self.output.splitlines()]
        if self._more:
            lines.append(self._more)
        return "\n".join(lines)

    def _repr_html_(self):
        sign, words, tone = _LOOKS[self.state]
        body = f"<strong>{sign} {page.markup(self._heading)}: {words}.</strong> {page.markup(self.message)}"
        if self.output:
            body += page.fold(self._summary, self.output)
        if self._more:
            body += f"<br><small>{page.markup(self._more)}</small>"
        return page.box(body, tone)

    @property
    def _heading(self):
        return f"{self.id} {self.title}".strip()

    @property
    def _summary(self):
        if self.output_total <= len(self.output):
            return "What your code printed"
        return f"What your code printed (the first {len(self.output):,} of {self.output_total:,} characters)"

    @property
    def _more(self):
        """What to do next: hints while there are some, then the solution."""
        if self.state not in ("not started", "failed") or not self.title:
            return ""
        if self.hints_left:
            return f'`hint("{self.id}")` gives a hint ({self.hints_left} left).'
        return f'All hints are given; `solution("{self.id}")` shows one way to do it.'


def _forget():
    """The cell is over: evaluating a verdict in a later cell shows it again."""
    _shown.clear()
    shell = page.shell()
    if shell is not None:
        shell.events.unregister("post_execute", _forget)
