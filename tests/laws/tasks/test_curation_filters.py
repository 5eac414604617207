"""Filters of a curation: what each throws away and why, what it must leave alone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.records import Unrated
from rollbook.records.sandbox import Answer, Attempted, NoAnswer
from rollbook.tasks import TaskError
from rollbook.tasks.curation import Candidate, Helpers
from rollbook.tasks.curation.consensus import CodeConsensus
from rollbook.tasks.curation.filters import (
    Completeness,
    Decontaminate,
    ExactDuplicates,
    NearDuplicates,
    NgramDuplicates,
    Verifiability,
    alike,
)
from rollbook.tasks.curation.grading import (
    Grade,
    MajorityDisagrees,
    PassRate,
    ScoreVariance,
    TraceCaps,
    TwoPass,
    UpsampleHard,
)
from rollbook.tasks.curation.rewriting import ChoiceToStatement, CodeLanguages, MixGeneral
from rollbook.tasks.curation.rows import candidate_of
from rollbook.tasks.curation.units import SemanticClusters, Split, crossings, units
from rollbook.tasks.curation.words import corpus, signatures, skeleton


def equal(pairs):
    return ["unparsable_reference" if other == "(((" else one.replace("1/2", "0.5") == other.replace("1/2", "0.5")
            for one, other in pairs]


HELP = Helpers(folder=Path("."), equal=equal)


def row(problem="What is 4 + 3?", number=1, reference="7", kind="math", **more):
    known = {name: more.pop(name) for name in ("lineage", "grades", "family") if name in more}
    return Candidate(number=number, problem=problem, reference=reference, kind=kind, more=more, **known)


def rows(*problems):
    return [row(problem, number) for number, problem in enumerate(problems, 1)]


def kept(stage, given, helpers=HELP):
    return [one.number for one in stage.apply(given, helpers).kept]


@pytest.mark.parametrize(("broken", "why"), [
    (row(" "), "empty problem"), (row(reference=None), "missing reference"), (row(reference=" "), "missing reference"),
    (row("Prove that 2 is even."), "proof only"), (row("(a) Find x. (b) Find y."), "several parts"),
    (row("A train has a speed of"), "cut off"), (row("Find $x"), "cut off"),
    (row("Find the angle shown in the figure."), "refers to a figure"),
    (row("Say something", kind="text"), "too short"), (row(kind="code", reference=None), "neither tests nor solutions"),
    (row(kind="choice", options=["a"]), "fewer than two options")])
def test_an_incomplete_task_is_rejected_for_its_reason_and_kept_where_the_reason_is_allowed(broken, why):
    assert Completeness().apply([broken], HELP).rejected == {1: why}
    assert kept(Completeness(allow=(why,)), [broken]) == [1]


@pytest.mark.parametrize("sound", [
    row(), row("Prove that x = 2 solves it, and find y."), row("Show that it is even. What is its half?"),
    row("It costs \\$5. How much are two?"), row("What is (a) in this formula?"),
    row(kind="code", reference=None, tests=[{"input": ""}])])
def test_a_complete_task_is_kept(sound):
    assert kept(Completeness(), [sound]) == [1]


def test_a_reference_that_the_verifier_cannot_read_is_no_reference():
    given = [row(), row(number=2, reference="((("), row(number=3, reference="B", kind="choice", options=["x", "y"]),
             row(number=4, reference="C", kind="choice", options=["x", "y"]), row(number=5, kind="code", tests=[{"output": 1}])]
    assert Verifiability().apply(given, HELP).rejected == {
        2: "reference: unparsable_reference", 4: "reference: no option", 5: "tests: no input that a program can be given"}


def test_equal_words_are_one_task_and_another_operator_or_number_is_another_task():
    given = rows("What is 3 + 4?", "WHAT is  3 + 4?", "What is 3 - 4?", "What is 3 + 5?", "What is -3 + 4?")
    assert kept(ExactDuplicates(), given) == [1, 3, 4, 5]
    other = [row("What is 1?", 1, "1"), row("what is 1?", 2, "2")]
    assert ExactDuplicates().apply(other, HELP).rejected == {2: "duplicate with another reference"}


LONG = "A farmer has {} hens and sells them all at the market for twelve coins each before noon on Monday"


def test_a_shared_run_of_words_is_a_duplicate_at_the_same_numbers_only():
    given = rows(LONG.format(30) + ". How much is that?", "Listen. " + LONG.format(30) + "!",
                 LONG.format(31) + ". How much is that?")
    assert kept(NgramDuplicates(), given) == [1, 3]
    assert kept(NgramDuplicates(words=60), given) == [1, 2, 3]


def test_a_word_exchanged_is_a_near_duplicate_and_a_number_exchanged_is_not():
    long = LONG.format(30) + " while his sister counts every single coin twice and writes the sum into her small red book"
    given = rows(long, long.replace("sister", "brother"), long.replace("30", "31"), "Something else entirely, with 30 hens")
    assert kept(NearDuplicates(), given) == [1, 3, 4]


def test_a_leak_is_found_as_it_is_inside_a_longer_task_and_slightly_changed(tmp_path):
    item = LONG.format(30) + " and what does he earn?"
    (tmp_path / "eval.jsonl").write_text(json.dumps({"problem": item}) + "\n")
    given = rows(item.upper(), "Think of 2 things. " + item + " Write 3 lines.", item.replace("farmer", "peasant"),
                 LONG.format(31) + " and what does he earn?", "What is 4 + 3?")
    done = Decontaminate(protocols={"held": "eval.jsonl"}).apply(given, Helpers(folder=tmp_path))
    assert set(done.rejected) == {1, 2, 3} and all(why.startswith("held: ") for why in done.rejected.values())
    (tmp_path / "empty.jsonl").write_text("")
    registered = Helpers(folder=tmp_path, registered={"heldout": [item]})
    assert set(Decontaminate().apply(given, registered).rejected) == {1, 2, 3}
    with pytest.raises(TaskError, match="protects nothing"):
        Decontaminate(registered=False).apply(given, registered)
    with pytest.raises(TaskError, match="no readable item"):
        Decontaminate(protocols={"held": "empty.jsonl"}).apply(given, Helpers(folder=tmp_path))


def graded(passed, number=1, of=8, **more):
    return row(number=number, grades={"g": {"passed": [True] * passed + [False] * (of - passed)}}, **more)


def test_two_to_five_of_eight_keeps_exactly_those():
    done = PassRate(grader="g", rule="two_to_five_of_eight").apply([graded(n, n + 1) for n in range(9)], HELP)
    assert [one.number - 1 for one in done.kept] == [2, 3, 4, 5]
    assert Counter(done.rejected.values()) == {"too hard": 2, "too easy": 3}


def test_a_task_without_all_its_verdicts_has_no_pass_rate():
    given = [row(), row(number=2, grades={"g": {"passed": [True, None] + [False] * 6}}), graded(2, 3, of=4),
             row(number=4, grades={"g": {"passed": 3, "of": 8}}), row(number=5, grades={"g": {"passed": "many"}})]
    done = PassRate(grader="g", low=1, high=7, of=8).apply(given, HELP)
    assert [one.number for one in done.kept] == [4]
    assert done.rejected == {1: "ungraded", 2: "unscored sample", 3: "graded by another number of samples", 5: "ungraded"}


@pytest.mark.parametrize("wrong", [{"low": 3, "high": 2, "of": 8}, {"low": 1, "high": 9, "of": 8}, {}, {"rule": "some"},
                                   {"rule": "two_to_five_of_eight", "low": 1}])
def test_bounds_that_mean_nothing_are_refused(wrong):
    with pytest.raises(TaskError):
        PassRate(grader="g", **wrong).apply([graded(1)], HELP)


def test_the_second_grader_decides_and_what_the_first_could_not_solve_is_not_lost():
    def both(first, second, number):
        return row(number=number, grades={name: {"passed": [True] * n + [False] * (4 - n)}
                                          for name, n in (("one", first), ("two", second))})
    done = TwoPass(first="one", second="two", low=1, high=3, of=4).apply([both(0, 2, 1), both(2, 4, 2), both(0, 0, 3)], HELP)
    assert [one.number for one in done.kept] == [1] and done.rejected == {2: "too easy", 3: "too hard"}
    assert done.notes == {"rescued by the second grader": 1, "too easy for the second alone": 1}


def answered(*answers, number=1, reference="7"):
    return row(number=number, reference=reference, grades={"g": {"answers": list(answers)}})


def test_a_majority_against_the_reference_condemns_it_and_scattered_mistakes_do_not():
    given = [answered(*["8"] * 5, "7", "7", "7"), answered("1", "2", "3", "4", "5", "6", "8", "7", number=2),
             answered(*["7"] * 8, number=3), answered("8", "8", "8", number=4),
             answered(*["1/2"] * 3, *["0.5"] * 3, "9", "9", number=5), answered(None, None, "8", "8", "8", "8", number=6)]
    assert set(MajorityDisagrees(grader="g").apply(given, HELP).rejected) == {1, 5, 6}


def test_rows_are_ordered_by_the_variance_of_their_scores():
    given = [row(number=1, scores=[1, 1, 1]), row(number=2, scores=[0, 2]), row(number=3, scores=[0, 1]),
             row(number=4, scores=[5])]
    done = ScoreVariance(keep=2).apply(given, HELP)
    assert [one.number for one in done.kept] == [2, 3]
    assert done.rejected == {4: "fewer than two scores", 1: "low score variance"}


def test_traces_are_capped_per_problem_the_latest_first_and_early_or_failed_ones_left_out():
    traces = [{"text": str(step), "step": step, "passed": step != 5} for step in range(1, 8)]
    done = TraceCaps(most=2, least_step=3).apply([row(traces=traces), row(number=2, traces=traces[:2])], HELP)
    assert [one["step"] for one in done.kept[0].more["traces"]] == [7, 6] and done.rejected == {2: "no trace left"}
    assert done.changed == {"traces of early steps or failed": 5, "traces beyond the cap": 2}


def test_a_trace_whose_step_is_no_number_is_counted_and_the_others_are_kept():
    done = TraceCaps(most=2).apply([row(traces=[{"step": "early"}, 7, {"step": 2}, {"step": 1.5}])], HELP)
    assert [one["step"] for one in done.kept[0].more["traces"]] == [2] and done.changed["traces that cannot be read"] == 3


def test_hard_problems_weigh_more_than_easy_ones():
    done = UpsampleHard(grader="g", most=4).apply([graded(8), graded(0, 2), graded(4, 3), row(number=4)], HELP)
    assert [one.more["weight"] for one in done.kept] == [1, 4, 3] and done.rejected == {4: "ungraded"}
    for most in (0, -3, 101):
        with pytest.raises(TaskError, match="how often the hardest row is drawn"):
            UpsampleHard(grader="g", most=most).apply([graded(8)], HELP)


@pytest.mark.parametrize("weight", ["0", "-1", "101", "1.5", "true", "null", '"2"', "[2]"])
def test_a_row_whose_weight_is_no_number_of_draws_is_counted_and_not_read(weight):
    line = b'{"problem": "What is 4 + 3?", "reference": "7", "weight": %s}' % weight.encode()
    assert candidate_of(line, 1) == "a weight that is no whole number from 1 to 100"


def test_a_grader_answers_rows_that_it_has_not_answered_yet():
    asked = []

    def solve(grader, given, samples):
        asked.append((grader, [one.number for one in given], samples))
        return [{"answers": ["7"] * samples, "passed": [True] * samples} for _ in given]
    done = Grade(grader="g", samples=2).apply([graded(1), row(number=2)], Helpers(folder=Path("."), solve=solve))
    assert asked == [("g", [2], 2)] and done.kept[1].grades["g"]["passed"] == [True, True]
    with pytest.raises(TaskError, match="solve"):
        Grade(grader="g", samples=2).apply([row()], HELP)


class Runner:
    """Solutions are Python expressions over x; `None` gives no answer."""

    def attempt(self, solution, inputs):
        return tuple(Attempted(answer=NoAnswer(code="limit", detail="wall") if solution.source == "None" else
                               Answer(value=f"{eval(solution.source, {'x': int(given)})}\n"), execution=None) for given in inputs)


RUN = Helpers(folder=Path("."), runner=Runner())


def code(tests, solutions=("2*x", "x+x", "x*2")):
    return row(kind="code", reference=None, tests=tests, solutions=list(solutions))


def checks_of(done):
    return [(one["input"], one["output"]) for one in done.kept[0].more["tests"]]


def test_a_test_that_all_solutions_contradict_alike_is_corrected_and_a_missing_output_filled():
    done = CodeConsensus().apply([code([{"input": "1", "output": "2\n"}, {"input": "3", "output": "7\n"}, {"input": "4"}])], RUN)
    assert checks_of(done) == [("1", "2\n"), ("3", "6\n"), ("4", "8\n")]
    assert done.changed == {"corrected": 1, "output filled": 1}


def test_a_test_on_which_solutions_disagree_is_dropped_and_a_bad_solution_is_no_witness():
    odd = ("2*x", "x+x", "2*x if x < 9 else 0", "x-x if x > 8 else x*2")
    done = CodeConsensus().apply([code([{"input": "1", "output": "2"}, {"input": "2", "output": "4"},
                                        {"input": "9", "output": "18"}],
                                       odd)], RUN)
    assert [given for given, _ in checks_of(done)] == ["1", "2"]
    done = CodeConsensus().apply([code([{"input": "1", "output": "2"}], ("2*x", "x+x", "x*2", "None"))], RUN)
    assert checks_of(done) == [("1", "2")]


def test_tests_are_made_from_given_inputs_and_validated_like_the_others():
    done = CodeConsensus(make_up_to=4).apply([code([{"input": "10", "output": "20\n"}])], RUN)
    made = checks_of(done)
    assert len(made) == 4 and all(int(out) == 2 * int(given) for given, out in made)
    assert checks_of(CodeConsensus(make_up_to=4).apply([code([{"input": "10", "output": "20\n"}])], RUN)) == made


def test_without_enough_solutions_given_tests_stay_and_missing_ones_cannot_be_made():
    sound, bare = code([{"input": "1", "output": "5"}], ("2*x",)), code([{"input": "1"}], ("2*x",))
    assert kept(CodeConsensus(), [sound], RUN) == [1]
    assert CodeConsensus().apply([bare], RUN).rejected == {1: "too few solutions to make tests"}


class Writer:
    name = digest = "w"

    def __init__(self, version, opinion="yes"):
        self.version, self.opinion = version, opinion

    def answer(self, questions, *, max_tokens):
        return [self.opinion if "Reply yes or no" in one.messages[0].content else self.version for one in questions]


CHOICE = {"kind": "choice", "reference": "B", "options": ["6", "7", "8"]}


@pytest.mark.parametrize(("version", "opinion", "why"), [
    ("What is 4 + 3?", "Yes.", None), (" ", "yes", "rewriting said nothing"),
    ("What is 4 plus three?", "yes", "rewriting lost a number"),
    ("What is 4 + 3?\nA. 6", "yes", "rewriting kept the options"),
    ("What is 4 + 3?", "no", "the judge refused the statement"),
    ("What is 4 + 3?", "banana", "the judge answered nonsense"),
    ("What is 4 + 3?", Unrated(code="malformed", detail=""), "judging: malformed"),
    (Unrated(code="malformed", detail=""), "yes", "rewriting: malformed")])
def test_a_choice_becomes_a_statement_when_a_judge_accepts_it(version, opinion, why):
    helpers = Helpers(folder=Path("."), chat=Writer(version, opinion))
    done = ChoiceToStatement().apply([row("4 + 3 = ?", **CHOICE)], helpers)
    assert done.rejected == ({} if why is None else {1: why})
    if why is None:
        [made] = done.kept
        assert (made.kind, made.reference, made.problem, "options" in made.more) == ("math", "7", "What is 4 + 3?", False)


def test_a_chat_model_that_cannot_be_reached_rejects_one_row_but_not_all_of_them():
    gone = Unrated(code="unavailable", detail="")
    given = [row("4 + 3 = ?", **CHOICE), row("5 + 2 = ?", 2, **CHOICE)]

    class Unsteady(Writer):
        def answer(self, questions, *, max_tokens):
            return [gone if "5 + 2" in one.messages[0].content else said
                    for one, said in zip(questions, super().answer(questions, max_tokens=max_tokens), strict=True)]
    done = ChoiceToStatement().apply(given, Helpers(folder=Path("."), chat=Unsteady("What is 4 + 3?")))
    assert done.rejected == {2: "rewriting: unavailable"}
    for writer in (Writer(gone), Unsteady("What is 4 + 3?", gone)):
        with pytest.raises(TaskError, match="the chat model answered none of"):
            ChoiceToStatement().apply(given, Helpers(folder=Path("."), chat=writer))


def test_an_option_that_means_something_only_beside_others_is_no_statement():
    helpers = Helpers(folder=Path("."), chat=Writer("x"))
    given = [row("Q?", kind="choice", reference="C", options=["1", "2", "All of the above"]),
             row("Which of the following is prime?", 2, **{**CHOICE, "reference": "B"}),
             row("Q?", 3, "Z", "choice", options=["1", "2"])]
    assert ChoiceToStatement().apply(given, helpers).rejected == {
        1: "the right option refers to others", 2: "asks which of the options", 3: "no right option"}


def test_general_data_is_mixed_in_up_to_its_share(tmp_path):
    (tmp_path / "general.jsonl").write_text("".join(json.dumps({"problem": f"Tell me about {n}"}) + "\n" for n in range(5)))
    done = MixGeneral(file="general.jsonl", share=0.25, seed=1).apply(rows(*"abcdefghi"), Helpers(folder=tmp_path))
    assert done.added == 3 and len(done.kept) == 12 and {one.kind for one in done.kept[9:]} == {"general"}
    assert len({one.number for one in done.kept}) == 12
    with pytest.raises(TaskError, match="too few"):
        MixGeneral(file="general.jsonl", share=0.9, seed=1).apply(rows(*"abcdefghi"), Helpers(folder=tmp_path))


def by_first_letter(texts):
    """An embedding in which texts that begin with the same letter are one."""
    vectors = np.zeros((len(texts), 128), dtype=np.float32)
    for place, text in enumerate(texts):
        vectors[place, ord(text[0]) % 128] = 1.0
    return vectors


def test_one_text_per_template_is_embedded_and_clusters_join_through_others():
    seen = []

    def embed(texts):
        seen.extend(texts)
        return by_first_letter(texts)
    done = SemanticClusters().apply(rows("a 1 x", "a 2 x", "abc", "b 3"), Helpers(folder=Path("."), embed=embed))
    assert len(seen) == 3
    assert [one.more["cluster"] for one in done.kept] == ["c0", "c0", "c0", "c2"]
    assert done.notes["texts embedded"] == 3
    capped = SemanticClusters(per_cluster=1).apply(rows("a 1 x", "a 2 x", "b"), Helpers(folder=Path("."), embed=by_first_letter))
    assert capped.rejected == {2: "cluster is full"}
    with pytest.raises(TaskError, match="embed_at_most"):
        SemanticClusters(embed_at_most=1).apply(rows("a", "b"), Helpers(folder=Path("."), embed=by_first_letter))


NAMES = st.sampled_from(["p", "q", "r", "s", ""])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=8, max_size=40), st.integers(0, 3))
def test_a_split_never_cuts_a_cluster_a_family_or_a_lineage(keys, seed):
    given_rows = [row(f"{chr(65 + n % 26) * (n // 26 + 3)} unlike {chr(97 + n % 26)}", n + 1, family=family,
                      lineage={"parent": parent} if parent else {}, cluster=cluster) for n,
                      (family, parent, cluster) in enumerate(keys)]
    try:
        done = Split(heldout=3, seed=seed, families=True).apply(given_rows, HELP)
    except TaskError:
        return
    side = {one.number: one.more["side"] for one in done.kept}
    for place in range(3):
        for name in {key[place] for key in keys if key[place]}:
            assert len({side[n + 1] for n, key in enumerate(keys) if key[place] == name}) == 1
    assert not crossings(done.kept, families=True)


def test_siblings_on_both_sides_are_found_from_the_rows_alone():
    given_rows = [row("Tom has 3 apples.", 1, side="train"), row("Tom has 4 apples.", 2, side="heldout"),
                  row("Alone here", 3, side="heldout", lineage={"parent": "x"}),
                  row("Else there", 4, side="train", lineage={"parent": "x"}),
                  row("Nothing like it at all", 5, side="heldout")]
    assert crossings(given_rows) == [2, 3]
    assert len(set(units(given_rows))) == 3


@pytest.mark.parametrize(("line", "why"), [
    (b"\xff\xfe", "not UTF-8"), (b"{", "not JSON"), (b"[1]", "not an object"), (b'{"reference": "1"}', "no problem"),
    (b'{"problem": "a", "kind": "poem"}', "unknown kind"), (b'{"problem": "a", "reference": [1]}', "reference of another type"),
    (b'{"problem": "a", "tests": "many"}', "tests of another type"),
    (b'{"problem": "a", "grades": {"g": 1}}', "grades of another type"),
    (b'{"problem": "\\ud800"}', "half a surrogate pair"), (b'{"problem": "' + b"a" * 300_000 + b'"}', "too long"),
    (b'{"problem": "x", "tests": [{"input": "\\uDC00"}]}', "half a surrogate pair"),
    (b'{"problem": "x", "scores": [1, NaN]}', "a number that is not finite"),
    (b'{"problem": "x", "reference": 1e999}', "a number that is not finite"), (b"[" * 100_000, "not JSON")])
def test_a_row_that_cannot_be_read_is_counted_for_its_reason(line, why):
    assert candidate_of(line, 1) == why


def test_signatures_estimate_the_likeness_of_sets():
    one, other = (np.unique(np.random.default_rng(seed).integers(0, 2**32, 400, dtype=np.uint64)).astype(np.uint32)
                  for seed in (1, 2))
    half = np.unique(np.concatenate([one[:200], other[:200]]))
    found = signatures([one, half])
    assert abs((found[0] == found[1]).mean() - alike(one, half)) < 0.12


def test_numbers_are_masked_in_a_template_and_words_are_folded():
    assert skeleton("Tom HAS 1,200 apples, 3.5 kg") == "tom has # apples, # kg"
    assert len(corpus(["a b", "", "c"])) == 3 and len(corpus(["a b", "", "c"]).words(1)) == 0


def test_a_test_that_no_program_can_be_given_is_dropped_and_another_language_is_not_run():
    done = CodeConsensus().apply([code([{"input": {"a": 1}}, 5, {"input": "1", "output": "2\n"}])], RUN)
    assert checks_of(done) == [("1", "2\n")] and done.changed == {"dropped: no input that a program can be given": 2}
    other = replace(code([{"input": "1", "output": "2\n"}]), more={**code([{"input": "1"}]).more, "language": "cpp"})
    assert CodeConsensus().apply([other], RUN).rejected == {other.number: "in a language that is not run here"}
    assert not CodeConsensus(languages=("python", "cpp")).apply([other], RUN).rejected


def test_code_rows_are_asked_for_in_each_language_and_stay_together():
    rows = [code([{"input": "1", "output": "2\n"}]), replace(code([]), number=2, more={"function": "f", "tests": [],
                                                                                       "solutions": []})]
    done = CodeLanguages(ask={"python": "In Python.", "cpp": "In C++."}).apply(rows, HELP)
    first, second, whole = done.kept
    assert (first.more["language"], second.more["language"], done.added) == ("python", "cpp", 1) and whole is rows[1]
    assert "solutions" in first.more and "solutions" not in second.more and first.lineage["parent"] == second.lineage["parent"]
    assert second.problem.endswith("\n\nIn C++.") and len({row.number for row in done.kept}) == 3
