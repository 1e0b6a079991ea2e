"""Show a sentence where the learner is: HTML in a notebook, plain text in a terminal."""

import html
import re
import sys

from course_lib.sandbox.words import plain

__all__ = ["box", "fold", "markup", "note", "plain", "shell", "show"]

# Only JupyterLab's own colours, for light and dark; outside of JupyterLab the page's own. The theme's green,
# orange and red are too pale for text: they colour the edge, and the words stay in the font's colour.
_EDGES = {
    "good": "--jp-success-color1",
    "bad": "--jp-error-color1",
    "warn": "--jp-warn-color1",
    "plain": "--jp-border-color2",
}


def markup(text):
    """Escaped HTML in which `backticks` became code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)).replace("\n", "<br>")


def box(body, tone="plain"):
    """A result with a coloured edge that screen readers announce. `body` is HTML."""
    return (
        f'<div role="status" style="border: 1px solid var(--jp-border-color2, currentColor); '
        f"border-left: 6px solid var({_EDGES[tone]}, currentColor); padding: 0.5em 0.9em; max-width: 60em; "
        f'color: var(--jp-ui-font-color1, inherit)">{body}</div>'
    )


def fold(summary, text, open=False):
    """A part that opens with a click or the Enter key. `summary` and `text` are plain text."""
    return (
        f"<details{' open' if open else ''}><summary>{html.escape(summary)}</summary>"
        '<pre style="white-space: pre-wrap; color: var(--jp-ui-font-color1, inherit)">'
        f"{html.escape(text)}</pre></details>"
    )


def shell():
    """The running IPython shell, or None in plain Python."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def show(text, html):
    """Show HTML in a notebook and text elsewhere."""
    if shell() is None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding))  # a console may not know the sign ✓
        return
    from IPython.display import display

    display({"text/plain": text, "text/html": html}, raw=True)


def note(text, tone="plain"):
    """Show one sentence."""
    show(text, box(markup(text), tone))
