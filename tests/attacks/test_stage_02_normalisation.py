"""Stage 2: formatters that change the problem or show the answer."""

import dataclasses

import pytest
from attacked import assert_caught, rows
from short_runs import begun, clean_run, short

from rollbook.models import load, tokenizer
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Message, Segment
from rollbook.rollouts.solve import Rollouts
from rollbook.tasks import TaskError, generators
from rollbook.tasks.expressions import parse
from rollbook.tasks.surface import in_words

REAL = generators.format_prompt


@pytest.fixture(scope="module")
def clean(warm):
    return clean_run(warm)


def formatted(write):
    """A formatter that asks what `write` makes of the question and its value."""
    def format_prompt(expression, system_prompt, control=None):
        *system, user = REAL(expression, system_prompt, control)
        return (*system, dataclasses.replace(user, content=write(user.content, expression)))
    return format_prompt


def run_with(formatter, warm, out, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(generators, "format_prompt", formatter)
        return begun(warm, out)


def test_honest_prompts_pass_and_all_of_them_are_rendered_again(clean):
    row = rows(clean)[2]
    assert row.result == "pass", row
    counts = row.evidence.partition("prompts of ")[2].split(" attempted")[0].split(" of ")
    assert counts[0] == counts[1] != "0"


@pytest.mark.fault(stage=2, injection="the formatter writes the answer in words before the question")
def test_an_answer_in_words_is_caught(warm, tmp_path, monkeypatch):
    def spelled(expression, system_prompt, control=None):
        words = f"{'minus ' if expression.value < 0 else ''}{' '.join(in_words(abs(int(expression.value))))}"
        return (Message(role="user", content=words, origin="raw"), *REAL(expression, system_prompt, control))

    run = run_with(spelled, warm, tmp_path / "run", monkeypatch)
    assert_caught(run, 2, record="Task", evidence="in words")


@pytest.mark.fault(stage=2, injection="the answer as the number of blanks at the end of the question")
def test_an_answer_counted_in_blanks_is_caught(warm, tmp_path, monkeypatch):
    run = run_with(formatted(lambda text, expression: text + " " * (abs(int(expression.value)) % 10)), warm, tmp_path / "run",
                   monkeypatch)
    assert_caught(run, 2, record="Task", evidence="white space")


@pytest.mark.fault(stage=2, injection="a hint at the answer in a system message that is called the recipe's")
def test_a_hint_that_is_called_the_recipes_text_is_caught(warm, tmp_path, monkeypatch):
    def hinted(expression, system_prompt, control=None):
        return (Message(role="system", content="abcdefghij"[int(expression.value) % 10], origin="recipe"),
                *REAL(expression, system_prompt, control))

    run = run_with(hinted, warm, tmp_path / "run", monkeypatch)
    assert_caught(run, 2, record="Task", evidence="recipe text differs")


@pytest.mark.fault(stage=2, injection="the formatter turns every minus into a plus; the numbers survive")
def test_a_changed_operator_is_caught(warm, tmp_path, monkeypatch):
    run = run_with(formatted(lambda text, expression: text.replace("-", "+")), warm, tmp_path / "run", monkeypatch)
    assert_caught(run, 2, record="Task", evidence="expression changed")


@pytest.mark.fault(stage=2, injection="prompts are rendered with the answer appended; tasks and demonstrations do not say so")
def test_a_prompt_that_is_not_the_tasks_is_caught(warm, tmp_path, monkeypatch):
    real = ChatTokenizer.prompt

    def cheating(self, messages):
        try:
            value = parse(messages[-1].content).value
        except TaskError:
            return real(self, messages)
        return real(self, (*messages[:-1], dataclasses.replace(messages[-1], content=f"{messages[-1].content} {value}")))

    with monkeypatch.context() as m:
        m.setattr(ChatTokenizer, "prompt", cheating)
        run = short(warm, tmp_path / "run")
    assert_caught(run, 2, record="Trace", evidence="was sent as")


@pytest.mark.fault(stage=2, injection="a chat template, recorded like any other, that cuts every message")
def test_a_template_that_cuts_messages_is_caught(warm, tmp_path, monkeypatch):
    real = tokenizer.load_tokenizer

    def cutting(folder):
        honest = real(folder)
        template = honest.template.replace("message['content']", "message['content'][:6]")
        assert template != honest.template
        return ChatTokenizer(honest._tokenizer, template, stop=[honest.token_text(i) for i in honest.stop_ids],
                             specials=honest.specials)

    with monkeypatch.context() as m:
        m.setattr(load, "load_tokenizer", cutting)
        run = short(warm, tmp_path / "run")
    assert_caught(run, 2, record="Trace", evidence="reads back as")


@pytest.mark.fault(stage=2, injection="a second observation after an honest prompt, though the task permits no tool")
def test_a_hint_slipped_in_after_the_prompt_is_caught(warm, tmp_path, monkeypatch):
    real = Rollouts.trace

    def slipped(self, task, group, answered, envelope):
        trace = real(self, task, group, answered, envelope)
        prompt, *rest = trace.segments
        hint = Segment(owner="environment", token_ids=(*prompt.token_ids[-3:-1], prompt.token_ids[-1]))
        return dataclasses.replace(trace, segments=(prompt, hint, *rest))

    with monkeypatch.context() as m:
        m.setattr(Rollouts, "trace", slipped)
        run = short(warm, tmp_path / "run")
    assert_caught(run, 2, record="Trace", evidence="tokens of environment")
