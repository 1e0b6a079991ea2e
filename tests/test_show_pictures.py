"""Pictures: well-formed, with words, readable in both themes, the same every time, without pyplot."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.lines import Line2D

from course_lib.measure.trace import CATEGORIES, PHASES, Record, Trace
from course_lib.show import plots, style
from course_lib.show.scale import nice_limit, spread, ticks
from course_lib.show.stack import GradientState, gradient_stack, paint_stack, stack_scene
from course_lib.show.svg import LiveSvg, Scene

DARK_PAPER, LIGHT_PAPER = "#111111", "#ffffff"


def trace(scale=1, n=600):
    """A made-up trace: parameters, activations that rise and fall, gradients that come in backward."""
    records, peak = [], 0
    for i in range(n):
        phase = (
            "forward"
            if i < n // 3
            else "recompute"
            if n // 3 <= i < n // 2
            else "backward"
            if i < n - 5
            else "optimizer"
        )
        rise = min(i, n - i) * 1000 * scale + (200_000 * scale if i == 251 else 0)
        parts = {"parameters": 100_000, "activations": rise}
        if phase == "backward":
            parts["gradients"] = 50_000
        live = sum(parts.values())
        peak = max(peak, live)
        records.append(Record(i / n, phase, "aten.add", live, peak, parts))
    return Trace("cpu", "live tensor bytes", 100_000, peak, tuple(records))


def state(added=3, **change):
    fields = {
        "micro": ((1.0, 0.5), (2.0, -1.0), (0.0, 1.5)),
        "sizes": (2, 2, 2),
        "big": (1.0, 1 / 3),
        "added": added,
    }
    return GradientState(**(fields | change))


def every_picture():
    bytes_of = dict.fromkeys(CATEGORIES, 3_000_000)
    return {
        "timeline": plots.memory_timeline(trace(), trace(2)),
        "timeline in seconds": plots.memory_timeline(trace(), x="seconds"),
        "bars": plots.stacked_bars([("a < b & c", bytes_of), ("empty", {})], "Bars"),
        "lines": plots.lines(
            [("measured", [1, 2], [3, 4]), ("predicted", [1, 2], [3, 5])], "x", "y", "T"
        ),
        "log lines": plots.lines(
            [("a", [1, 2, 4], [1e3, 1e6, 1e9])], "K", "peak", "T", unit="bytes", yscale="log"
        ),
        "stack": gradient_stack(state()),
    }


@pytest.fixture(scope="module")
def pictures():
    return every_picture()


def test_every_picture_is_well_formed_svg_with_a_name_and_a_title(pictures):
    for name, figure in pictures.items():
        root = ET.fromstring(style.picture(figure).svg())
        title = root.find("{http://www.w3.org/2000/svg}title")
        assert root.get("role") == "img", name
        assert root.get("aria-label") == title.text == figure.alt, name
        assert len(figure.alt) > 30, name


def test_a_picture_without_words_is_refused():
    with pytest.raises(ValueError, match="one sentence"):
        style.picture(style.new_figure(), "  ")


def test_a_notebook_gets_svg_png_and_the_sentence(pictures):
    bundle = pictures["bars"]._repr_mimebundle_()
    assert bundle["text/plain"] == pictures["bars"].alt
    assert bundle["text/html"].startswith("<svg") and bundle["image/png"].startswith("iVBOR")


def test_two_pictures_on_a_page_share_no_id(pictures):
    first, second = (style.picture(pictures["timeline"]).svg() for _ in range(2))
    ids = [re.findall(r'\bid="([^"]+)"', text) for text in (first, second)]
    assert not set(ids[0]) & set(ids[1])
    for text in (first, second):
        used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
        assert used <= set(re.findall(r'\bid="([^"]+)"', text))
        assert (
            "> *{" not in text and "\n*{" not in text
        )  # matplotlib's own style rule must not reach the page


def test_the_same_data_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        style.picture(every_picture()["timeline"]).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert b"var(" not in (tmp_path / "a").read_bytes()  # a file is shown where no theme can reach it


def test_no_colour_escapes_the_theme(pictures):
    for name, figure in pictures.items():
        text = style.picture(figure).svg()
        outside = re.sub(r"var\([^)]*\)|<style>.*?</style>", "", text)
        assert not re.findall(r"#[0-9a-f]{6}\b", outside), name


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_parts_stand_out_and_words_can_be_read_in_both_themes():
    for look in (*style.SERIES.values(), *style.CATEGORY.values()):
        assert contrast(look.light, LIGHT_PAPER) >= 3, look
        assert contrast(look.dark, DARK_PAPER) >= 3, look
    for band in style.PHASE.values():  # words stand on these
        assert contrast(band.light, style.TEXT) >= 4.5 and contrast(band.dark, "#ffffff") >= 4.5
    assert (
        contrast(style.MUTED, LIGHT_PAPER) >= 4.5
        and contrast(style._DARK[style.MUTED], DARK_PAPER) >= 4.5
    )


def test_colour_is_never_the_only_cue():
    assert set(style.CATEGORY) == set(CATEGORIES) and set(style.PHASE) == set(PHASES)
    assert len({look.hatch for look in style.CATEGORY.values()}) == len(CATEGORIES)
    cues = {(str(look.dash), look.marker) for look in style.SERIES.values()}
    assert len(cues) == len(style.SERIES)


def test_a_learners_matplotlib_settings_stay_and_do_not_reach_our_pictures(pictures):
    import matplotlib
    import matplotlib.style

    plain = style.to_svg(gradient_stack(state()), "x", uid="u")
    with matplotlib.rc_context():
        matplotlib.style.use("dark_background")
        matplotlib.rcParams["font.size"] = 22
        before = dict(matplotlib.rcParams)
        ours = style.to_svg(gradient_stack(state()), "x", uid="u")
        assert dict(matplotlib.rcParams) == before
    assert ours == plain


def test_pictures_do_not_import_pyplot():
    code = (
        "import sys, course_lib.show.plots, course_lib.show.figures, course_lib.show.widgets.timeline as t;"
        "import course_lib.show.widgets.gradients; sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_time_line_keeps_the_peak_and_says_it():
    made = trace()
    figure = plots.memory_timeline(made, trace(2))
    peak = next(line for line in figure.axes[0].lines if line.get_gid() == "peak")
    assert peak.get_ydata()[0] * 2**10 == pytest.approx(made.peak_bytes)
    assert "peaks at 538.1 KiB in the recompute phase" in figure.alt and "less" in figure.alt
    areas = [patch for patch in figure.axes[0].patches if str(patch.get_gid()).startswith("area")]
    top = max(area.get_path().vertices[:, 1].max() for area in areas)
    assert top * 2**10 == pytest.approx(made.peak_bytes)


def test_a_cpu_number_is_never_called_vram():
    allocator = Trace(**{**trace().__dict__, "source": "allocator", "device": "cuda:0"})
    assert "VRAM" not in plots.memory_timeline(trace()).alt
    assert "VRAM" in plots.memory_timeline(allocator).alt


def test_pictures_of_nothing_are_refused_with_a_sentence():
    for call, words in (
        (lambda: plots.stacked_bars([], "T"), "at least one row"),
        (lambda: plots.stacked_bars([("a", {"weights": 3})], "T"), "Unknown categories"),
        (lambda: plots.lines([], "x", "y", "T"), "at least one series"),
        (lambda: plots.lines([("a", [1, 2], [1])], "x", "y", "T"), "2 x values and 1 y values"),
        (lambda: plots.memory_timeline(trace(), x="days"), "progress"),
        (lambda: state(added=4), "between 0 and 3"),
        (lambda: state(divide="by two"), "one of"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


# -- live pictures --


def numbers(text, gid):
    outline = re.search(rf'-{gid}">\s*<path d="([^"]*)"', text).group(1)
    return np.array([float(part) for part in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", outline)])


def test_a_swap_gives_the_numbers_of_a_full_redraw():
    live = LiveSvg(paint_stack)
    live.show(stack_scene(state(added=0)))
    for added in (1, 2, 3, 2):
        swapped = live.show(stack_scene(state(added=added)))
        fresh = LiveSvg(paint_stack).show(stack_scene(state(added=added)))
        for gid in stack_scene(state(added=added)).paths:
            np.testing.assert_allclose(numbers(swapped, gid), numbers(fresh, gid), atol=0.02)
        words = [
            re.sub(r"p[0-9a-f]+-\d+", "", re.sub(r"<[^>]*>", "", text)).split()
            for text in (swapped, fresh)
        ]
        places = [
            np.array([float(v) for v in re.findall(r'<text [^>]*x="([\d.]+)"', text)])
            for text in (swapped, fresh)
        ]
        assert words[0] == words[1]
        np.testing.assert_allclose(*places, atol=0.02)
        assert f"{added} of 3" in ET.fromstring(swapped).get("aria-label")
    assert (live.redraws, live.swaps) == (1, 4)


def test_new_limits_are_drawn_in_full():
    live = LiveSvg(paint_stack)
    live.show(stack_scene(state()))
    live.show(stack_scene(state(divide="by nothing")))
    assert live.redraws == 2


def test_five_hundred_updates_of_a_line_stay_flat_and_exact():
    import gc

    def paint(scene):
        with style.house():
            figure = style.new_figure()
            axes = style.new_axes(figure, (0.1, 0.1, 0.8, 0.8))
            axes.set(xlim=(0, 1), ylim=(-1, 1))
            axes.add_line(Line2D(*np.transpose(scene.paths["line"]), gid="line", color=style.TEXT))
            return figure

    x = np.linspace(0, 1, 500)
    live = LiveSvg(paint)

    def update(i):
        return live.show(Scene((), "a line", {"line": np.column_stack([x, np.sin(9 * x + i)])}))

    lengths = [len(update(i)) for i in range(20)]
    gc.collect()
    before = len(gc.get_objects())
    lengths += [len(update(i)) for i in range(500)]
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert max(lengths[1:]) < 1.1 * min(lengths[1:])
    fresh = LiveSvg(paint).show(Scene((), "a line", {"line": np.column_stack([x, np.sin(9 * x + 499)])}))
    np.testing.assert_allclose(numbers(update(499), "line"), numbers(fresh, "line"), atol=0.02)


# -- gradients --


def test_the_sum_meets_the_big_batch_only_with_the_right_weights():
    whole = state()
    assert whole.gap < 1e-12 and "meets" in gradient_stack(whole).alt
    assert state(divide="by nothing").gap == pytest.approx(2.0)
    assert "3.00 times as long" in gradient_stack(state(divide="by nothing")).alt
    assert "divided twice" in gradient_stack(state(divide="twice")).alt
    uneven = {"sizes": (1, 2, 5), "big": (0.625, 0.75)}
    assert state(**uneven).gap > 0.1 and state(**uneven, divide="by share").gap < 1e-12
    assert "share" in gradient_stack(state(**uneven)).alt
    assert "not complete" in gradient_stack(state(added=2)).alt


# -- small numbers --


def test_limits_stand_on_a_ladder_above_the_data():
    for value in [0.001, 0.9, 1, 1.01, 7.3, 8.1, 99.9, 1e9]:
        limit = nice_limit(value)
        assert value <= limit * (1 + 1e-9) <= 1.3 * value
        assert 3 <= len(ticks(limit)) <= 7 and ticks(limit)[-1] <= limit * (1 + 1e-9)
    assert nice_limit(0) == nice_limit(float("nan")) == 1.0


def test_labels_are_pushed_apart_but_stay_in_order_and_inside():
    placed = spread([0.1, 0.11, 0.12, 0.9], 0.1, 0.0, 1.0)
    assert all(b - a >= 0.1 - 1e-12 for a, b in zip(placed, placed[1:])) and placed[-1] <= 1.0


# -- figures and recordings --


def test_figures_are_drawn_from_their_data_alone(root):
    from course_lib.show.figures import DRAW, draw

    recordings = sorted((root / "figures" / "data").glob("*.json"))
    assert {path.stem.rsplit("_", 1)[0] for path in recordings if path.stem.endswith("_cpu")} == set(
        DRAW
    )
    for path in recordings:
        name, picture = draw(path)
        committed = (root / "figures" / name).read_text(encoding="utf-8")
        assert ET.fromstring(committed).get("aria-label") == picture.alt
        shown = re.findall(r"<text [^>]*>([^<]*)<", committed)
        assert shown == re.findall(r"<text [^>]*>([^<]*)<", picture.svg())


def test_a_broken_recording_gets_a_sentence(tmp_path, capsys):
    from course_lib.show.figures import main

    data = tmp_path / "data"
    data.mkdir()
    assert main([], data) == 1 and "record" in capsys.readouterr().err
    (data / "gpt_step_cpu.json").write_text("{", encoding="utf-8")
    (data / "other_cpu.json").write_text(
        json.dumps(
            {"origin": dict.fromkeys(("device", "torch", "date", "commit"), "x") | {"kind": "cpu"}}
        )
    )
    assert main([], data) == 1
    said = capsys.readouterr().err
    assert "is no recording" in said and "no drawing called 'other'" in said
    assert main(["--help"], data) == 2


def test_memory_against_k_is_measured_and_falls():
    from course_lib.experiments.record import memory_against_k, origin

    rows = memory_against_k(samples=512, splits=(1, 4))["rows"]
    assert rows[0]["by_category"]["activations"] > 2 * rows[1]["by_category"]["activations"]
    assert all(sum(row["by_category"].values()) == row["peak_bytes"] for row in rows)
    assert {"device", "kind", "torch", "date", "commit"} == set(origin())
