"""A user's own corpus, questions and problems: read as they are, and refused with their place where they cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playing import play

from rollbook.environments import open_services
from rollbook.environments.builtin.browser import Browsing
from rollbook.environments.builtin.common import call, final_answer, same_answer
from rollbook.environments.builtin.fiction import Page
from rollbook.environments.builtin.index import Index, corpus_index, read_corpus
from rollbook.environments.builtin.math import Mathematics, boxed
from rollbook.environments.builtin.search import SearchQuestions, read_questions
from rollbook.records import Action, EnvironmentFault, Services, Ungraded


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with open_services() as opened:
        yield opened


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """A folder of three pages and two questions about them."""
    folder = tmp_path / "pages"
    (folder / "north").mkdir(parents=True)
    (folder / "north" / "orm.txt").write_text("The lighthouse of Orm is 61 metres tall.\nIt was built by Ada Venn.")
    (folder / "venn.md").write_text("Ada Venn was born in Tesk in 1702.")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "empty.txt").write_text("")
    rows = [{"question": "Where was the builder of the lighthouse of Orm born?", "answers": ["Tesk"]},
            {"question": "How tall is the lighthouse of Orm?", "answer": 61}]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {"corpus": str(folder), "questions": str(tmp_path / "questions.jsonl")}


def test_a_users_pages_are_searched_opened_and_answered_from(own: dict[str, str], services: Services) -> None:
    definition = SearchQuestions(**own)
    tasks = definition.tasks(count=5, seed=0).tasks
    assert [task.reference for task in tasks] == ["Tesk", "61"]
    played = play(definition, tasks[0], (call("search", query="lighthouse of Orm"), call("open", name="venn.md"),
                                         Action(text="Answer: Tesk")),
                  services)
    assert played.texts()[0].startswith("north/orm.txt: The lighthouse of Orm is 61 metres tall.")
    assert "born in Tesk" in played.texts()[1] and played.accuracy == 1.0
    assert play(definition, tasks[1], (Action(text="It is 61 metres."),), services).accuracy == 0.0
    assert definition.image() == SearchQuestions(**own).image()


def test_a_quotation_must_stand_on_the_open_page_and_an_answer_can_be_supported_by_it(own: dict[str, str],
                                                                                      services: Services) -> None:
    definition = Browsing(**own)
    task = definition.tasks(count=2, seed=0).tasks[1]
    actions = (call("quote", text="61 metres"), call("search", query="lighthouse Orm"), call("open", number=1),
               call("quote", text="The lighthouse of Orm is 62 metres"), call("quote", text="lighthouse of Orm  is 61\nmetres"),
               call("find", text="ada"), call("answer", text="61"))
    played = play(definition, task, actions, services)
    errors = [reply.error for observation in played.observations for reply in observation.replies]
    assert errors == ["refused", None, None, "refused", None, None, None]
    assert played.accuracy == 1.0 and played.grade.parts == {"quotes": 1.0, "supported": 1.0}        # type: ignore[union-attr]
    assert played.state.facts["quotes"] == [{"page": "north/orm.txt", "text": "lighthouse of Orm is 61 metres"}]
    unsupported = play(definition, task, (call("answer", text="61"),), services)
    assert unsupported.accuracy == 1.0 and unsupported.grade.parts["supported"] == 0.0               # type: ignore[union-attr]


def test_a_long_page_is_read_in_parts_and_back_and_forth(tmp_path: Path, services: Services) -> None:
    lines = tmp_path / "long.jsonl"
    lines.write_text(json.dumps({"title": "Long", "text": "\n".join(f"line {n}" for n in range(50))}))
    (tmp_path / "q.jsonl").write_text('{"question": "q", "answer": "a"}')
    definition = Browsing(corpus=str(lines), questions=str(tmp_path / "q.jsonl"))
    task = definition.tasks(count=1, seed=0).tasks[0]
    moves = (call("back"), call("open", name="Long"), call("scroll", direction="up"), call("scroll", direction="down"),
             call("scroll", direction="down"), call("scroll", direction="down"), call("find", text="line 3"),
             call("find", text="nothing"),
             call("open"), call("open", number=1), call("open", name="x"))
    played = play(definition, task, moves, services)
    errors = [reply.error for observation in played.observations for reply in observation.replies]
    assert errors == ["refused", None, "refused", None, None, "refused", None, "refused", "bad_arguments", "refused", "refused"]
    assert "lines 21 to 40 of 50" in played.texts()[3] and "lines 4 to 23 of 50" in played.texts()[6]


def test_results_are_ranked_by_bm25_and_equals_by_their_place() -> None:
    index = Index(pages=tuple(Page(name=name, text=text) for name, text in (
        ("a", "salt salt salt trade"), ("b", "salt and amber"), ("c", "nothing here"), ("d", "salt and amber"))))
    assert [page.name for page in index.search("amber", 5)] == ["b", "d"]
    assert [page.name for page in index.search("salt amber", 2)] == ["b", "d"]
    assert index.search("", 5) == [] == index.search("zzz", 5)
    assert index.search("AMBER amber", 1)[0].name == "b"


@pytest.mark.parametrize(("name", "data", "words"), [
    ("bad.jsonl", b"{", "no page"), ("bad.jsonl", b'{"text": "x"}', "no page"),
                                                     ("bad.jsonl", b'{"name": "a", "text": 3}', "no page"),
    ("bad.jsonl", b"[]", "no page"), ("bad.jsonl", b"\xff\xfe", "UTF-8"), ("none", None, "not there")])
def test_a_corpus_that_cannot_be_read_is_refused(tmp_path: Path, name: str, data: bytes | None, words: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(EnvironmentFault, match=words):
        list(read_corpus(tmp_path / name))


def test_an_empty_folder_two_pages_of_one_name_and_half_a_corpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no text files"):
        corpus_index(str(tmp_path))
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"id": 1, "text": "a"}\n\n{"id": 1, "text": "b"}')
    with pytest.raises(EnvironmentFault, match="one name"):
        corpus_index(str(twice))
    with pytest.raises(EnvironmentFault, match="belong together"):
        SearchQuestions(corpus=str(twice)).tasks(count=1, seed=0)


@pytest.mark.parametrize("line", ["{", '{"question": "x"}', '{"question": 3, "answer": "a"}', '{"question": "x", "answers": []}'])
def test_a_line_of_questions_that_is_none_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "q.jsonl").write_text(f'{{"question": "a", "answer": "b"}}\n{line}')
    with pytest.raises(EnvironmentFault) as caught:
        read_questions(tmp_path / "q.jsonl")
    assert ":2" in (caught.value.got or "")


def test_problems_of_a_file_are_compared_by_a_function_of_the_users(tmp_path: Path, services: Services) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text('{"problem": "Half of 7?", "answer": "7/2"}\n{"problem": "No answer", "answer": ""}\n')
    plain = Mathematics(problems=str(file))
    task, empty = plain.tasks(count=2, seed=0).tasks
    assert play(plain, task, (Action(text="\\boxed{3.5}"),), services).accuracy == 1.0
    assert play(plain, task, (Action(text="\\boxed{\\frac{7}{2}}"),), services).accuracy == 0.0
    assert play(Mathematics(problems=str(file), equal="operator:ne"), task, (Action(text="\\boxed{9}"),),
                services).accuracy == 1.0
    assert isinstance(play(plain, empty, (Action(text="\\boxed{1}"),), services).grade, Ungraded)
    with pytest.raises(EnvironmentFault, match="cannot be loaded"):
        play(Mathematics(problems=str(file), equal="nowhere:nothing"), task, (Action(text="\\boxed{9}"),), services)
    file.write_text('{"problem": 3}')
    with pytest.raises(EnvironmentFault, match="no problem"):
        plain.tasks(count=1, seed=0)


def test_the_box_is_the_only_one_and_keeps_its_braces() -> None:
    assert boxed("\\boxed{\\frac{1}{2}} then \\boxed {\\frac{1}{2}}") == "\\frac{1}{2}"
    assert boxed("\\boxed{1} or \\boxed{2}") is None and boxed("\\boxed{1") is None and boxed(None) is None and boxed("1") is None


@pytest.mark.parametrize(("found", "wanted", "same"), [
    ("The Guild of Orm.", ["guild of orm"], True), ("1,204", ["1204"], True), ("1204.0", ["1204"], True), ("12", ["1204"], False),
    ("b; a", ["a", "b"], True), ("a, b and c", ["a", "b", "c"], True), ("a; a", ["a", "b"], False), ("a", ["a", "b"], False),
    ("a; b; c", ["a", "b"], False), (None, ["a"], False), ("", ["a"], False), ("5 metres", ["5"], False), ("1/0", ["1"], False)])
def test_answers_are_compared_as_numbers_names_and_sets(found: str | None, wanted: list[str], same: bool) -> None:
    assert same_answer(found, wanted) is same


def test_the_answer_is_the_last_answer_line_or_the_whole_text() -> None:
    assert final_answer("I think.\nAnswer: a\nno\n**Final answer: b**") == "b**"
    assert final_answer("b") == "b" and final_answer(" ") is None
    assert same_answer(final_answer("**Answer: Tesk**"), ["Tesk"])
