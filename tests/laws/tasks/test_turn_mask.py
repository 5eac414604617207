"""AgentWorld's turn mask: exact ratios, every condition at equality, and keeps that no resume changes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.tasks.errors import TaskError
from rollbook.tasks.turn_mask import KEEP_PERCENT, PROPOSED_PRECEDENCE, Overlap, TurnMask, kept, word_set

FEW = settings(max_examples=80, deadline=None)
MASK = TurnMask(precedence=PROPOSED_PRECEDENCE, short_chars=0, words="whitespace", seed=7)
TEXT = st.lists(st.sampled_from(["ls", "a.txt", "B", "b", "error", "ok", "x"]), max_size=8).map(" ".join)


def counts(action: int, observation: int, shared: int, ratio: float) -> Overlap:
    """A turn with these word counts whose observation is `ratio` times its action's 1000 characters."""
    return Overlap(action_words=action, observation_words=observation, shared=shared, action_chars=1000,
                   observation_chars=round(1000 * ratio))


@given(action=TEXT, observation=TEXT)
@FEW
def test_every_ratio_of_word_sets_lies_between_zero_and_one_and_novelty_is_what_is_not_shared(action, observation):
    s = MASK.statistics(action, observation)
    for share in (s.overlap, s.novelty, s.jaccard):
        assert share is None or 0 <= share <= 1
    if s.observation_words:
        assert s.novelty == 1 - Fraction(s.shared, s.observation_words)
    said, seen = word_set(action, "whitespace"), word_set(observation, "whitespace")
    assert (s.shared, s.action_words, s.observation_words) == (len(said & seen), len(said), len(seen))


def test_the_ratios_on_a_case_worked_by_hand():
    """Wa = {ls, dir, b}, Wo = {a, b}; 8 and 9 characters."""
    s = MASK.statistics("ls Dir B", "a a a B b")
    assert (s.overlap, s.novelty, s.jaccard, s.ratio) == (Fraction(1, 3), Fraction(1, 2), Fraction(1, 4), Fraction(9, 8))


def test_words_are_lower_cased_and_split_by_the_named_rule():
    assert word_set("LS ls,a_b", "whitespace") == {"ls", "ls,a_b"}
    assert word_set("LS ls,a_b", "alphanumeric") == {"ls", "a", "b"}


@given(text=TEXT.filter(bool))
@FEW
def test_an_observation_that_repeats_the_action_is_an_echo(text):
    s = MASK.statistics(text, text.upper())
    assert (s.overlap, s.novelty, MASK.category(s)) == (1, 0, "echo")


def test_a_disjoint_observation_is_retrieval_when_longer_and_action_when_not():
    assert MASK.category(MASK.statistics("open the door", "a long dark corridor appears")) == "retrieval"
    assert MASK.category(MASK.statistics("open the door", "done")) == "action"


@pytest.mark.parametrize(("statistics", "category"), [
    (counts(10, 10, 7, 1.0), "boilerplate"),       # novelty 30: not below 30
    (counts(100, 97, 70, 1.0), "echo"),            # overlap 70 at equality, novelty 27.8
    (counts(100, 97, 69, 1.0), "boilerplate"),     # overlap 69
    (counts(10, 9, 5, 0.5), "boilerplate"),        # overlap 50 at equality, novelty 44
    (counts(10, 10, 5, 1.0), "action"),            # novelty 50 at equality: not below 50; ratio 1
    (counts(10, 10, 5, 1.5), "other"),             # ratio 1.5 is not above 1.5, novelty 50 not 60
    (counts(10, 10, 5, 1.501), "expansion"),
    (counts(10, 10, 4, 1.001), "retrieval"),       # novelty 60 at equality
    (counts(10, 10, 4, 1.0), "action"),
    (counts(100, 7, 4, 0.999), "transform"),       # novelty 43, overlap 4, ratio below 1
    (counts(100, 7, 4, 1.0), "other"),
    (counts(100, 100, 41, 1.2), "other"),          # novelty 59, longer
])
def test_each_condition_holds_at_equality_as_printed(statistics, category):
    assert MASK.category(statistics) == category


def test_a_short_observation_is_an_action_even_when_it_is_longer_than_the_action():
    s = Overlap(action_words=10, observation_words=2, shared=1, action_chars=10, observation_chars=19)
    assert MASK.category(s) == "other"
    short = {limit: TurnMask(precedence=PROPOSED_PRECEDENCE, short_chars=limit, words="whitespace", seed=0) for limit in (19, 20)}
    assert (short[19].category(s), short[20].category(s)) == ("other", "action")


def test_the_precedence_decides_between_conditions_that_overlap():
    echo = MASK.statistics("a b c", "a b c")
    assert MASK.category(echo) == "echo"
    late = TurnMask(precedence=("boilerplate", "transform", "retrieval", "expansion", "action", "echo"), short_chars=0,
                    words="whitespace", seed=7)
    assert late.category(echo) == "boilerplate"
    overlapping = counts(4, 9, 4, 0.9)   # overlap 100, novelty 56, shorter: action only
    assert MASK.category(overlapping) == "action"
    both = counts(10, 9, 5, 0.9)         # boilerplate and transform
    assert MASK.category(both) == "boilerplate"
    assert TurnMask(precedence=("transform", *late.precedence[:1], *late.precedence[2:]), short_chars=0, words="whitespace",
                    seed=7).category(both) == "transform"


@pytest.mark.parametrize(("action", "observation", "undefined"), [
    ("", "some words", ("overlap", "ratio")), ("ls", "", ("novelty",)), ("", "", ("overlap", "novelty", "jaccard", "ratio")),
    ("   ", "some words", ("overlap",)),
])
def test_an_empty_word_set_leaves_its_ratios_undefined_and_meets_no_condition_that_reads_them(action, observation, undefined):
    s = MASK.statistics(action, observation)
    assert {name for name in ("overlap", "novelty", "jaccard", "ratio") if getattr(s, name) is None} == set(undefined)
    assert MASK.category(s) == ("retrieval" if action.isspace() and action else "other")
    (decision,) = MASK.decide("s", [(action, observation)])
    assert decision.keep


@pytest.mark.parametrize(("percent", "expected"), [(0, 0), (5, 500), (10, 1000), (50, 5000), (100, 10000)])
def test_the_share_of_kept_turns_is_the_printed_percentage(percent, expected):
    count = sum(kept(percent, seed=3, sample=f"s{i // 10}", turn=i % 10) for i in range(10_000))
    spread = 5 * (10_000 * percent / 100 * (1 - percent / 100)) ** 0.5
    assert abs(count - expected) <= spread


def test_a_keep_depends_on_seed_sample_and_turn_and_on_nothing_else():
    draws = {key: [kept(50, seed=key[0], sample=key[1], turn=t + key[2]) for t in range(64)]
             for key in ((0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1))}
    assert len({tuple(draw) for draw in draws.values()}) == 4
    assert draws[(0, "a", 0)][1:] == draws[(0, "a", 1)][:-1]
    turns = [("a b c", "a b c")] * 40
    assert MASK.decide("s", turns)[:20] == MASK.decide("s", turns[:20])


def test_every_turn_gets_a_decision_and_no_text_is_touched():
    turns = [("a b c", "a b c")] * 60 + [("open door", "a long dark corridor")]
    before = list(turns)
    decisions = MASK.decide("s", turns)
    assert turns == before and [d.turn for d in decisions] == list(range(61))
    assert {d.keep for d in decisions[:60]} == {True, False} and decisions[60].keep


def test_the_keep_rates_are_the_papers():
    assert dict(KEEP_PERCENT) == {"retrieval": 100, "expansion": 100, "action": 100, "transform": 50, "boilerplate": 10,
                                  "echo": 5, "other": 100}


@pytest.mark.parametrize("change", [{"precedence": ("echo",)}, {"precedence": (*PROPOSED_PRECEDENCE, "echo")},
                                    {"short_chars": -1}, {"words": "bytes"}, {"short_chars": float("nan")}, {"short_chars": 0.5},
                                    {"seed": None}, {"seed": float("nan")}])
def test_a_mask_that_leaves_a_case_undecided_is_refused(change):
    fields = {"precedence": PROPOSED_PRECEDENCE, "short_chars": 0, "words": "whitespace", "seed": 0}
    with pytest.raises(TaskError):
        TurnMask(**{**fields, **change})
