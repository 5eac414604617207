"""The report says what the records say, names what is absent, and lets no text in it act."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_samples import STEPS, begin, cold, complete_run, recipe, task, train

from rollbook.ledger import Ledger
from rollbook.records import LedgerError, RunEnd, Selection, StepReport, content_id
from rollbook.report.curves import training_charts
from rollbook.report.facts import read_facts
from rollbook.report.heldout import eval_points, heldout_curve
from rollbook.report.page import write_report
from rollbook.report.svg import Series, line_chart, span, ticks
from rollbook.report.tables import leaves, recipe_tables
from rollbook.report.text import clip, number, visible
from rollbook.report.transcripts import transcripts

ALLOWED_LINKS = {"data:,"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; checks that every tag is closed in order."""

    VOID = {"meta", "link", "br"}

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def titles(self) -> str:
        return " | ".join(value or "" for name, value in self.attributes if name == "title")


def written(run: Path) -> Page:
    path = write_report(run)
    assert path == run.absolute() / "report.html"
    assert path.stat().st_size < 3_000_000
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    run = tmp_path_factory.mktemp("runs") / "done"
    complete_run(run, overrides=["run.seed=7", "tasks.max_tokens=60"])
    yield run


@pytest.fixture(scope="module")
def page(done: Path) -> Page:
    return written(done)


def test_the_headline_holds_recipe_model_seed_status_time_and_memory(page: Page) -> None:
    for said in ("magistral-small, scale tiny", "llama from scratch, 4 layers of width 128", "seed 7", "status completed",
                 "1 min 33 s", "1.38 GiB"):
        assert said in page.text


def test_the_gain_is_the_recorded_comparison(page: Page, done: Path) -> None:
    assert "→ after rl (final_eval) 66.7%" in page.text
    assert "+14.5 points , after cold_start → after rl: paired 95% interval +6.5 to +21.5, 24 problems" in page.text
    assert "McNemar p 0.0213" in page.text
    assert "in-family" in page.text


def test_an_unscored_item_is_counted_and_not_averaged_in(page: Page) -> None:
    assert "52.2%" in page.text and "n = 23" in page.text
    assert "1 unscored, not averaged in" in page.text


def test_every_metric_of_every_step_stands_in_the_numbers_table_as_recorded(page: Page, done: Path) -> None:
    source = (done / "report.html").read_text()
    body = source[source.index("Metrics per step"):source.index('id="census"')]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", body)]
    columns, steps = rows[0], list(Ledger.open(done, write=False).records(StepReport))
    assert len(rows) == 1 + len(steps) == 1 + STEPS
    for row, step in zip(rows[1:], steps, strict=True):
        held = {**step.metrics, **step.observed}
        assert row[0] == f"rl/{step.step}"
        for name, cell in zip(columns[1:], row[1:], strict=True):
            assert cell == (number(held[name], 6) if name in held else "—")
        assert set(held) == {name for name, cell in zip(columns[1:], row[1:], strict=True) if cell != "—"}


def test_a_metric_that_was_not_observed_is_named_and_its_line_has_a_gap(page: Page) -> None:
    assert "policy/entropy_nats absent in 1 of 8 steps" in page.text
    assert "not drawn: policy/mismatch_k3_nats" in page.text
    series = Series(name="a", points=((1.0, 1.0), (2.0, 2.0), (3.0, None), (4.0, 3.0), (5.0, 1.0)))
    drawn = line_chart([series], label="a", x_label="x")
    assert drawn.count("<polyline") == 2


def test_every_point_of_a_chart_is_the_recorded_number(done: Path) -> None:
    facts = read_facts(done)
    steps = facts.all(StepReport)
    charts = {line.name: chart for chart in training_charts(facts)[0] for line in chart.lines}
    assert set(charts) == {name for step in steps for name in (*step.metrics, *step.observed)} - {
        "rollout/tokens", "update/learning_rate"} | {"sft/loss_nats"}
    for name in ("policy/entropy_nats", "reward/total_mean", "update/kl_to_start_nats", "policy/mismatch_abs_nats"):
        told = re.findall(rf"{name}, step (\d+): (\S+) nats|{name}, step (\d+): (\S+) reward", charts[name].drawn)
        shown = {int(a or c): float(b or d) for a, b, c, d in told}
        assert shown == {step.step: pytest.approx(step.metrics[name], rel=1e-5) for step in steps if name in step.metrics}


def test_the_census_closes_for_every_stage_and_family(page: Page) -> None:
    uniform = sum(64 - step for step in range(1, STEPS + 1))
    assert f"{128 * STEPS} = {128 * STEPS} + 0" in page.text
    assert f"{uniform} ({100 * uniform / (128 * STEPS):.1f}%)" in page.text
    assert "192 = 192 + 0" in page.text and "≠" not in page.text


def test_the_selection_table_counts_what_the_selection_counts(page: Page, done: Path) -> None:
    chosen = next(Ledger.open(done, write=False).records(Selection))
    assert f"select: {len(chosen.kept)} of {len(chosen.pass_counts)} tasks kept after 8 attempts each" in page.text
    assert f"too_easy {chosen.rejected['too_easy']}, too_hard {chosen.rejected['too_hard']}" in page.text


def test_evaluations_stand_at_the_rl_step_of_their_policy(done: Path) -> None:
    points = eval_points(read_facts(done))
    assert [(p.name, p.step, p.slot) for p in points] == [
        ("start_eval", 0, -1), ("cold_eval", 0, 0), ("rl/probe/000004", 4, 0), ("final_eval", STEPS, 0)]
    drawn = heldout_curve(points, width=760, css="chart")
    assert drawn.count('class="hollow') == 1 and drawn.count('class="dot') == 3
    assert "rl/probe/000004, RL step 4: 50.0%, 95% interval" in drawn and "n = 8" in drawn


def test_transcripts_are_a_mix_on_the_same_tasks_that_depends_on_no_text(done: Path) -> None:
    found = transcripts(read_facts(done))
    assert found is not None and (found.before, found.after) == ("cold_eval", "final_eval")
    counts = dict(found.counts)
    assert sum(counts.values()) == 23
    assert {kind: sum(card.kind == kind for card in found.cards) for kind in counts} == {k: min(3, n) for k, n in counts.items()}
    for card in found.cards:
        before, after = (side.mark for side in card.sides)
        assert (before, after) == {"improved": ("wrong", "right"), "regressed": ("right", "wrong"),
                                   "both right": ("right", "right"), "both wrong": ("wrong", "wrong")}[card.kind]
    assert found == transcripts(read_facts(done))


def test_a_token_shows_its_log_prob_and_probability_and_its_owner(page: Page, done: Path) -> None:
    found = transcripts(read_facts(done))
    assert found is not None
    card = found.cards[0]
    assert card.prompt is not None and card.prompt.owner == "user" and card.sides[0].parts[0].owner == "policy"
    assert "".join(t.text for t in card.sides[0].parts[0].tokens).startswith("<think>I count to ")
    told = re.findall(r"token \d+: log-prob (−?[\d.e−]+) nats, probability ([\d.]+)%", page.titles)
    assert len(told) > 100
    for logp, chance in told:
        assert 100 * math.exp(float(logp.replace("−", "-"))) == pytest.approx(float(chance), abs=0.02)
    assert re.search(r"token \d+: not sampled, no log-prob", page.titles)


def test_an_absent_reward_part_is_named_with_its_reason(page: Page) -> None:
    assert "language_consistency absent: not configured" in page.text


def test_what_the_source_does_not_give_is_listed_as_inference(page: Page) -> None:
    resolved = recipe("run.seed=7", "tasks.max_tokens=60")
    inferred = [path for path, about in resolved.provenance.items() if about.label == "I"]
    assert f"supplied here ({len(inferred)})" in page.text
    assert "max_tokens 60 user supplied by the user" in page.text
    made = recipe_tables(resolved)
    assert {row[0] for row in made.every.rows} == {path for path, _ in leaves(resolved.settings)} >= set(resolved.provenance) - {
        path for path in resolved.provenance if path not in dict(leaves(resolved.settings))}
    assert {row[0] for row in made.own.rows} == {"run.seed", "tasks.max_tokens"}


def test_lineage_names_the_weights_that_each_stage_began_and_ended_with(page: Page) -> None:
    assert "rl PolicyGradient version 1, weights 010101010101 version 9, weights 090909090909 checkpoints/rl" in page.text


def test_the_page_asks_for_nothing_and_runs_nothing(page: Page, done: Path) -> None:
    assert not {"script", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    links = {value for name, value in page.attributes if name in ("href", "src", "action", "data", "srcdoc", "poster")}
    assert {link for link in links if not (link or "").startswith("#")} == ALLOWED_LINKS
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "default-src 'none'" in "".join(value or "" for name, value in page.attributes if name == "content")
    style = (done / "report.html").read_text().split("</style>")[0]
    assert "url(" not in style and "@import" not in style


def test_the_page_names_no_path_of_the_machine(page: Page, done: Path) -> None:
    assert str(done.parent) not in (done / "report.html").read_text()


def test_a_run_in_progress_is_drawn_and_says_so(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    cold(writer)
    train(writer, 2)
    page = written(tmp_path / "run")          # the writer is still open
    assert "in progress or was stopped" in page.text and "not complete: rl, final_eval" in page.text
    assert "wall time not recorded" in page.text and "peak memory not recorded" in page.text
    assert f"{128 * 2} = {128 * 2} + 0" in page.text
    assert "Transcripts: start_eval and cold_eval" in page.text
    writer.ledger.close()


def test_a_diverged_run_says_what_stopped_it(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    cold(writer)
    writer.ledger.append(RunEnd(status="diverged", detail="the loss is not finite, got nan.\n  fix: lower the rate", observed={}))
    page = written(tmp_path / "run")
    assert "The run diverged and stopped. the loss is not finite, got nan. fix: lower the rate" in page.text
    assert "No training step is on record" not in page.text and "Supervised loss" in page.text


@pytest.mark.parametrize("manifest", [{}, {"name": "x", "machine": None, "model": "m", "packages": {}}])
def test_an_empty_run_names_every_absent_section_and_shows_no_zero(tmp_path: Path, manifest: dict[str, object]) -> None:
    Ledger.create(tmp_path / "run", manifest).close()
    page = written(tmp_path / "run")
    for said in ("No complete held-out evaluation", "No evaluation is on record", "No training step", "No census", "No pass-rate",
                 "no transcripts", "No resolved recipe", "No stage is complete", "No policy was published", "No audit"):
        assert said in page.text
    assert "0%" not in page.text and "svg" not in page.tags


def test_one_evaluation_alone_is_shown_without_a_gain(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.evaluate("start_eval", [i % 2 == 0 for i in range(24)])
    page = written(tmp_path / "run")
    assert "No comparison on record yet" in page.text and "right 12 wrong 12" in page.text
    assert "no tokenizer is on record" in page.text and "I count to" in page.text


def test_a_damaged_log_is_shown_up_to_the_damage(tmp_path: Path) -> None:
    complete_run(tmp_path / "run")
    log = tmp_path / "run" / "events" / "000001.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"kind":"StepReport","observed"' in line)
    log.write_bytes(b"".join([*lines[:at], lines[at].replace(b"grad_norm\":1.25", b"grad_norm\":9.25"), *lines[at + 1:]]))
    page = written(tmp_path / "run")
    assert "could not be read completely" in page.text and "the log is broken at events/000001.jsonl" in page.text
    assert "52.2%" in page.text and "66.7%" not in page.text


def test_missing_trajectories_are_said_not_hidden(tmp_path: Path) -> None:
    complete_run(tmp_path / "run")
    next((tmp_path / "run" / "traces").glob("*final_eval*")).unlink()
    assert "The trajectories could not be read" in written(tmp_path / "run").text


HOSTILE = ("<script>document.title='x'</script><img src=x onerror=alert(1)>", "\x1b[31mred\x1b[0m\x07\x00\r\x9b",
           "abc \u202egnirts\u202c \u2066x", "</div></article></main><h1>out</h1>", "Z" + "\u0340" * 50, "A" * 1_000_000,
           "{{ 7*191 }} {% raw %}", "\" onmouseover=\"alert(1)", "日本語 👩‍👦")


@pytest.mark.parametrize("tokenizer", [True, False])
def test_hostile_text_is_shown_and_never_acts(tmp_path: Path, tokenizer: bool) -> None:
    writer = begin(tmp_path / "run", tasks=len(HOSTILE))
    writer.tasks = [task(i, question=f"{text[:9000]} {i}", reference=text[:9000]) for i, text in enumerate(HOSTILE)]
    writer.ledger.write_table("hostile", writer.tasks)
    first = writer.version
    assert first
    answers = [text[:3000] for text in HOSTILE]
    writer.evaluate("start_eval", [True, False, True] * 3, texts=answers)
    if tokenizer:
        writer.publish("cold_start")
        writer.end("cold_start", "Sft", first, trained=True)
    writer.evaluate("cold_eval", [True, True, False] * 3, texts=answers)
    writer.compare("start_eval", "cold_eval")
    page = written(tmp_path / "run")
    assert not {"script", "img", "h4 h1"} & set(page.tags) and page.tags.count("h1") == 1
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    source = (tmp_path / "run" / "report.html").read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", source)
    assert "1337" not in page.text and "⟨U+202E⟩" in page.text and "⟨U+001B⟩" in page.text
    assert "400 of 9,000 characters" in page.text
    assert ("more tokens" in page.text) == tokenizer


def test_lone_surrogates_and_controls_are_written_out_and_lengths_bounded() -> None:
    assert visible("a\ud800b\u2028c\u200bd\ne\t") == "a⟨U+D800⟩b⟨U+2028⟩c⟨U+200B⟩d\ne\t"
    assert visible("e" + "\u0301" * 40) == "e" + "\u0301" * 3
    assert visible("naïve 日本語 שלום") == "naïve 日本語 שלום"
    assert clip("x" * 1_000_000, 10) == "x" * 10 + " … [10 of 1,000,000 characters]"


def test_hostile_names_in_the_recipe_and_manifest_are_escaped(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run", {"name": "<b>x</b>\ud800", "machine": {"<i>": "\x1b"}}) as ledger:
        ledger.append(RunEnd(status="diverged", detail="<script>1</script>\u202e", observed={"wall_s": 1e300}))
    page = written(tmp_path / "run")
    assert "<b>x</b>⟨U+D800⟩" in page.text and "<i>" in page.text and "script" not in page.tags


def test_what_is_no_run_is_refused_and_an_old_report_is_replaced(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not a run folder"):
        write_report(tmp_path)
    Ledger.create(tmp_path / "run", {}).close()
    write_report(tmp_path / "run").write_text("old")
    assert "old" not in written(tmp_path / "run").words
    assert Ledger.open(tmp_path / "run", write=False).verify().fault is None


def test_a_chart_of_one_value_of_zeros_or_of_extremes_is_drawn() -> None:
    for values in ([0.0], [3.0], [-2.0, -1.0], [1e-300, 2e-300], [1e300, -1e300], [5.0, 5.0]):
        low, high = span(values)
        assert low < high and len(ticks(low, high)) <= 7
        series = Series(name="m", points=tuple((float(i), v) for i, v in enumerate(values)))
        assert "nan" not in line_chart([series], label="m", x_label="x")


def test_the_comparison_names_reports_by_their_content(done: Path) -> None:
    facts = read_facts(done)
    from rollbook.records import Comparison, EvalReport
    ids = {content_id(report) for report in facts.all(EvalReport)}
    assert all({c.before, c.after} <= ids for c in facts.all(Comparison))


def test_the_report_is_drawn_without_torch_transformers_or_matplotlib() -> None:
    code = ("import sys, rollbook.report.page\n"
            "print(sorted({'torch', 'transformers', 'matplotlib', 'scipy'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_long_run_with_long_transcripts_stays_below_three_megabytes(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    cold(writer)
    first = writer.version
    assert first
    step = writer.step(1)
    writer.ledger.append_many(dataclasses.replace(step, step=at) for at in range(2, 601))
    writer.end("rl", "PolicyGradient", first, trained=True)
    long = ["\x1b\u202e" * 2000 + str(i) for i in range(24)]
    writer.evaluate("final_eval", [i % 3 != 0 for i in range(24)], texts=long)
    writer.compare("cold_eval", "final_eval")
    writer.ledger.close()
    page = written(tmp_path / "run")
    assert "600 policy steps on record" in page.text and "one step in 3" in page.text
