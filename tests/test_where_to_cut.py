"""What notebook 06 stands on: trees judged on paper, steps measured, pictures of who is alive, the panel."""

import math
import random
import re
import xml.etree.ElementTree as ET

import pytest
import torch

from course_lib.exercises import answers06b, answers06c
from course_lib.exercises.faults import Fault
from course_lib.exercises.judge import judge
from course_lib.exercises.trees06 import (
    Rules,
    all_trees,
    as_tree,
    blocks_of,
    brute_force,
    count,
    depth,
    fewest_again,
    least,
    needs,
    recompute_cost,
    want_tree,
)
from course_lib.experiments.cutting import narrowing, operators, stack, step
from course_lib.memory import checkpoint, schedule
from course_lib.memory.selective import keep_outputs_of
from course_lib.show import style
from course_lib.show.alive import alive_at, during, frame_painter, frame_scene, numbers, peak_tick, strip
from course_lib.show.alive_map import alive_map, spans
from course_lib.show.segments import segments_curve
from course_lib.show.svg import LiveSvg
from course_lib.show.widgets.alive import CHAINS, NAMES, WhoIsAlive, chain_of, least_bytes, plan

MIB = 2**20


def random_tree(draw, first, last):
    """A tree over the blocks first to last - 1 that ends with a kept block, as every sensible one does."""
    parts = []
    while first < last - 1:
        end = draw.randint(first + 1, last - 1)
        parts.append(random_tree(draw, first, end) if draw.random() < 0.6 else first)
        first = end if isinstance(parts[-1], tuple) else first + 1
    return (*parts, last - 1)


TREES = [random_tree(random.Random(seed), 0, 3 + seed % 8) for seed in range(40)]

# -- trees on paper -------------------------------------------------------------------------------------


def test_the_fewest_blocks_again_are_revolves_count_and_the_binomial_tree_has_them():
    for n in range(1, 50):
        for slots in range(1, 12):
            assert fewest_again(n, slots) == schedule.t(n, slots)
            seen = count(answers06b.binomial_closed(0, n, slots))
            assert len(seen.again) == schedule.t(n, slots) and seen.states <= slots and seen.kept == 1


def test_a_tree_on_paper_and_the_ticks_of_its_schedule_agree():
    for tree in TREES:
        n = len(blocks_of(tree))
        made = schedule.from_tree(schedule.Chain.uniform(n, 1, 4, 1), tree)
        again = [tick.block for tick in made.ticks if tick.action == "recompute"]
        assert list(count(tree).again) == again and made.recomputations == len(again)
        assert count(tree).kept == max(len(during(tick)[1]) for tick in made.ticks)


def test_bytes_on_paper_are_the_peak_of_the_schedule_where_backward_is_the_worst_moment():
    for tree in TREES:
        n = len(blocks_of(tree))
        made = schedule.from_tree(schedule.Chain.uniform(n, 1, 6, 1), tree)
        assert needs(tree, [1] * (n + 1), [6] * n) == made.peak_bytes


def random_chain(draw, n):
    state = [draw.randint(1, 6) for _ in range(n + 1)]
    saved = [state[i] + draw.randint(0, 24) for i in range(n)]
    return [draw.randint(1, 9) for _ in range(n)], state, saved


def test_the_least_cost_is_that_of_the_best_of_all_trees():
    draw = random.Random(1)
    for n in (1, 2, 3, 4, 5, 5):
        cost, state, saved = random_chain(draw, n)
        low = max(saved[i] + state[i] + state[i + 1] for i in range(n))
        for budget in (low - 1, low, low + 5, low + 20, sum(saved) + 20):
            right = brute_force(cost, state, saved, budget)
            for function in (least, answers06c.least_recompute, answers06c.least_from_the_right):
                assert function(cost, state, saved, budget) == right


def test_all_trees_are_there_once_and_hold_every_block():
    for n, number in ((1, 2), (2, 8), (3, 48), (4, 352)):
        trees = all_trees(0, n)
        assert len(set(trees)) == len(trees) == number
        assert all(blocks_of(tree) == list(range(n)) for tree in trees)


def test_the_least_cost_is_that_of_the_courses_own_planner():
    draw = random.Random(2)
    for _ in range(12):
        n = draw.randint(2, 9)
        state = [draw.randint(1, 4) for _ in range(n + 1)]
        saved = [4 * max(state[i], state[i + 1]) + draw.randint(0, 9) for i in range(n)]
        cost = [draw.randint(1, 9) for _ in range(n)]
        blocks = tuple(schedule.Block(state[i], saved[i] - state[i], state[i + 1], cost[i]) for i in range(n))
        chain = schedule.Chain(blocks, output_bytes=state[n], input_gradient_bytes=state[0])
        low = schedule.minimum(chain)
        for budget in (low, low + 7, low + 19, sum(saved)):
            if budget < low:
                continue
            made = schedule.budgeted(chain, budget)
            assert made.recompute_cost == least(cost, state, saved, budget)
            assert needs(made.tree, state, saved) <= budget
            assert recompute_cost(made.tree, cost) == made.recompute_cost


@pytest.mark.parametrize("forgotten", Rules._fields)
def test_each_rule_of_the_plan_matters(forgotten):
    draw, wrong = random.Random(3), 0
    for _ in range(60):
        cost, state, saved = random_chain(draw, draw.randint(2, 7))
        budget = draw.randint(max(saved), sum(saved))
        wrong += least(cost, state, saved, budget, Rules(**{forgotten: False})) != least(
            cost, state, saved, budget
        )
    assert wrong >= 1


@pytest.mark.parametrize(
    "value, diagnosis",
    [
        ((0, 1), "blocks missing"),
        ((0, 1, 2, 3), "wrong blocks"),
        ((0, 2, 1), "wrong order"),
        ((0, 1, 1, 2), "block twice"),
        (((0, ()), 1, 2), "empty part"),
        ((), "empty part"),
        ((0, True, 2), "wrong type"),
        ((0, 1.0, 2), "wrong type"),
        ("012", "wrong type"),
        ((i for i in range(3)), "wrong type"),
        (None, "returned nothing"),
    ],
)
def test_what_is_no_tree_is_named(value, diagnosis):
    with pytest.raises(Fault) as raised:
        want_tree(value, 0, 3, "the tree")
    assert raised.value.diagnosis == diagnosis


def test_a_tree_that_holds_itself_ends_with_a_sentence():
    loop = [0]
    loop.append(loop)
    with pytest.raises(Fault, match="nested more than"):
        want_tree(loop, 0, 2, "the tree")


def test_lists_are_trees_as_well():
    assert want_tree([[0, [1]], 2], 0, 3, "it") == as_tree([[0, [1]], 2]) == ((0, (1,)), 2)
    assert depth(((0, (1,)), 2)) == 2 and depth((0, 1)) == 0


def test_answers_of_a_strange_kind_are_named():
    assert judge("06.4", lambda first, blocks: judge).diagnosis == "wrong type"
    assert judge("06.5", lambda slots, repeats: 10**5000).diagnosis == "wrong value"
    assert judge("06.2", lambda *sizes: 10**6000).diagnosis == "wrong value"
    assert judge("06.8", lambda operators, need: ["nothing like it"]).diagnosis == "wrong names"
    assert judge("06.8", lambda operators, need: [["matmul"]]).diagnosis == "wrong names"


# -- steps on real blocks -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: stack(depth=5, width=32, batch=2, length=16), narrowing])
def test_a_step_is_measured_as_predicted_and_its_gradient_is_that_of_the_plain_model(make):
    blocks, x = make()
    chain = schedule.measure(blocks, x)
    plain = step(lambda blocks, x: blocks(x), blocks, x)
    top = schedule.none(chain).peak_bytes
    assert plain.again == () and plain.peak_bytes == top and plain.flops > 0
    made = [schedule.per_block(chain), schedule.nested(chain), schedule.binomial(chain, 2)]
    for one in [*made, schedule.budgeted(chain, top * 7 // 10)]:
        seen = step(one.run, blocks, x)
        assert seen.peak_bytes == one.peak_bytes and len(seen.again) == one.recomputations
        assert torch.equal(seen.gradient, plain.gradient) and seen.flops >= plain.flops


def test_what_waits_for_backward_is_the_kept_outputs_and_one_state_for_each_block():
    blocks, x = stack(depth=3, width=32, batch=2, length=16, fused=False)
    table = operators(blocks[0], x)
    kept = [op for op, one in table.items() if one.flops]
    assert len(kept) == 2 and all(one.bytes > 0 for one in table.values())

    def run(blocks, x):
        for block in blocks:
            x = checkpoint(block, x, context_fn=keep_outputs_of(*kept))
        return x

    state = x.numel() * x.element_size()
    waiting = 3 * sum(table[op].bytes for op in kept) + 2 * state + 4  # and the loss
    assert step(run, blocks, x).after_forward == waiting


# -- pictures -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known():
    return [plan(name) for name in NAMES] + [plan(name, "narrowing", 3, 40) for name in NAMES]


def test_every_moment_of_every_schedule_is_a_scene_of_the_same_parts(known):
    for one in known:
        scenes = [frame_scene(one, tick) for tick in range(1, len(one.ticks) + 1)]
        first = scenes[0]
        assert all(s.frame == first.frame and s.paths.keys() == first.paths.keys() for s in scenes)
        assert len({scene.alt for scene in scenes}) == len(scenes)


def test_a_swapped_picture_equals_a_picture_drawn_anew(known):
    one = known[4]
    live = LiveSvg(frame_painter(one))
    live.show(frame_scene(one, 3))
    for tick in (4, 17, len(one.ticks), 1):
        swapped = live.show(frame_scene(one, tick))
        anew = LiveSvg(frame_painter(one))
        anew._uid = live._uid
        drawn = anew.show(frame_scene(one, tick))
        for part in (r' d="([^"]*)"', r"<text [^>]*>([^<]*)<", r'aria-label="([^"]*)"'):
            assert re.findall(part, swapped) == re.findall(part, drawn)
    assert live.redraws == 1 and live.swaps == 4


def test_pictures_are_well_formed_have_a_sentence_and_follow_the_theme(known):
    pictures = [
        alive_at(known[5], 4, 16 * MIB),
        strip([(one, peak_tick(one)) for one in known[:6]], "Peaks"),
        alive_map(known[:3]),
        segments_curve([(1, 5 * MIB), (2, 3 * MIB)], [(2, 3 * MIB)], [("sqrt(n)", 1.4)], "Curve"),
    ]
    for figure in pictures:
        assert len(figure.alt) > 60 and "MiB" in figure.alt
        text = style.picture(figure).svg()
        root = ET.fromstring(text)
        assert root.get("aria-label") == figure.alt and "var(--c" in text
        drawn = re.sub(r"<style>.*?</style>", "", text, flags=re.S)
        left = set(re.findall(r"(?<!,)#[0-9a-f]{6}", drawn)) - {"#000000"}
        assert not left, left  # a colour that is no variable would stay light in the dark theme
        assert not re.search(r"\$|mathdefault", text)


def test_what_is_alive_in_a_backward_tick_includes_what_it_uses_up(known):
    for one in known:
        for tick in one.ticks:
            states, taped = during(tick)
            assert tick.block in taped or tick.action != "backward"
            assert set(tick.states) <= states and set(tick.taped) <= taped


def test_spans_cover_every_tick_at_which_something_is_alive(known):
    for one in known:
        for field in ("taped", "states"):
            seen = {(n, i) for n, first, last in spans(one, field) for i in range(first, last)}
            alive = {(n, i) for i, tick in enumerate(one.ticks) for n in during(tick)[field == "taped"]}
            assert seen == alive


def test_numbers_are_drawn_together_in_runs_of_three():
    assert numbers([3, 0, 4, 5, 9, 10]) == "0, 3 to 5, 9, 10" and numbers([]) == ""


def test_pictures_of_nothing_are_refused(known):
    with pytest.raises(ValueError, match="from 1 to"):
        frame_scene(known[0], 0)
    with pytest.raises(ValueError, match="from 1 to"):
        alive_at(known[0], len(known[0].ticks) + 1)
    for nothing in (lambda: strip([], "x"), lambda: alive_map([]), lambda: segments_curve([], [])):
        with pytest.raises(ValueError):
            nothing()


# -- the panel ------------------------------------------------------------------------------------------


@pytest.fixture
def panel():
    panel = WhoIsAlive()
    panel.wait_idle()
    yield panel
    panel.close()


def test_the_panel_shows_every_schedule_on_every_chain(panel):
    for chain in CHAINS:
        for name in NAMES:
            panel.set(chain=chain, schedule=name)
            panel.wait_idle()
            panel.check()
            assert panel._controls["tick"].max == len(panel.plan.ticks)
            assert name in panel._status.value or name == "sqrt"
            assert "<svg" in panel._picture.value


def test_a_budget_below_the_least_cannot_be_chosen_and_the_peak_keeps_it(panel):
    panel.set(chain="narrowing", schedule="budgeted")
    low = -(-least_bytes("narrowing") // MIB)
    assert panel._controls["budget"].min == low
    with pytest.raises(ValueError, match=f"from {low} to"):
        panel.set(budget=low - 1)
    for budget in (low, 40, 60):
        panel.set(budget=budget)
        assert panel.plan.peak_bytes <= budget * MIB
    assert panel._controls["slots"].disabled and not panel._controls["budget"].disabled


def test_play_runs_to_the_end_and_begins_anew_from_there(panel):
    panel.seconds_per_tick = 0.001
    panel.set(schedule="none", tick=20)
    panel.play(wait=True)
    assert panel.settings["tick"] == 24 and panel._pause.disabled and not panel._play.disabled
    panel.play(wait=True)
    assert panel.settings["tick"] == 24
    panel.check()


def test_stop_ends_playing_at_once_and_closing_ends_the_thread(panel):
    panel.set(schedule="binomial", tick=1)
    panel._play.click()
    assert panel._play.disabled and not panel._pause.disabled
    panel._pause.click()
    panel._player.join(2)
    assert not panel._player.is_alive() and panel.settings["tick"] <= 3 and panel._pause.disabled
    panel.play()
    panel.close()
    assert not panel._player.is_alive()


def test_a_shorter_schedule_moves_the_tick_to_its_end(panel):
    panel.set(schedule="binomial", tick=45)
    panel.set(schedule="none")
    panel.wait_idle()
    panel.check()
    assert panel.settings["tick"] == 24 and "tick 24 of 24" in panel.snapshot().alt


def test_the_chains_of_the_panel_need_four_times_their_input():
    for name in CHAINS:
        chain = chain_of(name)
        assert len(chain) == 12 and all(b.saved_bytes == 4 * b.state_bytes for b in chain.blocks)
        assert math.isclose(least_bytes(name) / MIB, round(least_bytes(name) / MIB))
