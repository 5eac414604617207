"""Programs are judged by tests that are the same for the whole group, compared outside, all of which must pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playing import play

from rollbook.environments import open_services
from rollbook.environments.builtin.code import Programming, chosen_tests, fenced, same_value
from rollbook.records import Action, EnvironmentFault, Grade, Services, Task, ToolCall, Ungraded


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with open_services() as opened:
        yield opened


def answer(code: str, language: str = "python") -> Action:
    return Action(text=f"Here it is.\n```{language}\n{code}\n```")


def own(tmp_path: Path, *rows: dict[str, object]) -> str:
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


DOUBLE = {"prompt": "Double the number.", "tests": [[f"{n}\n", f"{2 * n}\n"] for n in range(30)],
          "gold": {"python": "print(2*int(input()))"}}


def test_cpp_programs_are_compiled_once_and_judged_like_the_others(services: Services) -> None:
    definition = Programming(language="cpp", tests=5)
    task = definition.tasks(count=1, seed=3).tasks[0]
    gold = definition.solutions(task).gold[0]
    assert play(definition, task, gold, services).grade == Grade(accuracy=1.0, parts={"tests_passed": 1.0, "compiled": 1.0},
                                                                 detail="5 of 5 tests")
    assert play(definition, task, (answer("int main() { return x; }", "cpp"),), services).grade == Grade(
        accuracy=0.0, parts={"tests_passed": 0.0, "compiled": 0.0}, detail="0 of 5 tests; not_compiled")


def test_most_tests_passed_is_not_all_tests_passed(tmp_path: Path, services: Services) -> None:
    definition = Programming(tasks_from=own(tmp_path, DOUBLE), tests=30)
    task = definition.tasks(count=1, seed=0).tasks[0]
    grade = play(definition, task, (answer("n = int(input())\nprint(2 * n if n != 13 else 0)"),), services).grade
    assert isinstance(grade, Grade) and grade.accuracy == 0.0 and grade.parts["tests_passed"] == pytest.approx(29 / 30)


def test_the_chosen_tests_depend_on_the_task_alone(tmp_path: Path) -> None:
    task = Programming(tasks_from=own(tmp_path, DOUBLE)).tasks(count=1, seed=0).tasks[0]
    tests = json.loads(task.reference)["tests"]
    assert chosen_tests(task, tests, 20) == chosen_tests(task, tests, 20)
    assert len(chosen_tests(task, tests, 20)) == 20 and chosen_tests(task, tests, 99) == tests
    assert all(test[1] not in task.prompt[-1].content for test in tests[10:])


def test_human_eval_is_judged_by_values_and_its_checks_never_run_beside_a_solution(services: Services) -> None:
    definition = Programming(source="human_eval")
    tasks = definition.tasks(count=164, seed=0).tasks
    assert len(tasks) == 164 and len({task.canonical for task in tasks}) == 164
    for task in (tasks[0], tasks[53]):
        gold = definition.solutions(task).gold[0]
        assert play(definition, task, gold, services).accuracy == 1.0
        assert play(definition, task, (Action(text=task.prompt[-1].content),), services).accuracy == 0.0
    always = ("class Same:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
              "def add(x, y): return Same()\n")
    for cheat in (always, "import os\ndef add(x, y): os._exit(0)\n", "def add(x, y): raise SystemExit(0)\n"):
        assert play(definition, tasks[53], (answer(cheat),), services).accuracy == 0.0


def test_a_task_without_tests_is_ungraded_and_one_without_a_solution_cannot_be_validated(tmp_path: Path,
                                                                                         services: Services) -> None:
    definition = Programming(tasks_from=own(tmp_path, {**DOUBLE, "gold": {}}))
    task = definition.tasks(count=1, seed=0).tasks[0]
    with pytest.raises(EnvironmentFault, match="no solution"):
        definition.solutions(task)
    bare = Task(**{name: getattr(task, name) for name in task.__slots__} | {"reference": ""})
    assert isinstance(play(definition, bare, (answer("print(1)"),), services).grade, Ungraded)


@pytest.mark.parametrize("line", ["{", "[]", '{"prompt": "x"}', '{"prompt": "x", "tests": []}',
                                  '{"prompt": "x", "tests": [[1, 2]]}'])
def test_a_line_that_is_no_task_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line)
    with pytest.raises(EnvironmentFault, match="no programming task") as caught:
        Programming(tasks_from=str(tmp_path / "bad.jsonl")).tasks(count=1, seed=0)
    assert caught.value.got.endswith(":1")


def test_code_is_the_last_fenced_block_also_where_it_was_cut_off() -> None:
    assert fenced("```python\na\n```\ntext\n```py\nb\n```\n") == "b\n"
    assert fenced("```\nprint(1)") == "print(1)"
    assert fenced("print(1)") is None and fenced(None) is None and fenced("```\n```") is None


def test_values_are_compared_as_python_compares_them_and_floats_nearly() -> None:
    assert same_value([1.0000001, {"a": True}], [1.0, {"a": True}]) and same_value(2, 2.0) and same_value(True, 1)
    assert not same_value([1, 2], [1]) and not same_value({"a": 1}, {"b": 1}) and not same_value(1.1, 1.0)
    assert not same_value("1", 1) and not same_value(None, 0)


def test_the_run_tool_shows_output_failures_and_nothing_of_the_tests(services: Services) -> None:
    definition = Programming(run=True)
    task = definition.tasks(count=1, seed=3).tasks[0]

    def run(code: str, stdin: str = "") -> str:
        call = ToolCall(id="r", name="run", arguments={"code": code, "stdin": stdin})
        return play(definition, task, (Action(calls=(call,)),), services).texts()[0]

    assert run("print(input() + '!')", "hi") == "hi!\n"
    assert run("1/0").startswith("exit_status: ")
    assert "No such file" in run("open('/box/tests').read()")
