"""A repository task: faults that tests notice, no history inside, hidden tests outside, and tampering that is seen."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playing import Played, play

from rollbook.environments import open_services
from rollbook.environments.builtin import repositories
from rollbook.environments.builtin.common import call
from rollbook.environments.builtin.judging import run_tests
from rollbook.environments.builtin.mutations import mutations
from rollbook.environments.builtin.sample_project import FILES
from rollbook.environments.builtin.swe import Repository
from rollbook.records import Action, EnvironmentFault, Grade, Services, Task

DONE = Action(text="Done.")
TESTS = {"test_a.py": b"from code import f\n\n\ndef test_f():\n    assert f(2) == 4\n"}


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with open_services() as opened:
        yield opened


@pytest.fixture(scope="module")
def task() -> Task:
    return Repository().tasks(count=1, seed=1).tasks[0]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three commits: the beginning, a repair with its test, and one that changes a text only; and a branch beside them."""
    folder = tmp_path_factory.mktemp("project")

    def commit(message: str, **files: str) -> None:
        for name, text in files.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".py").write_text(text)
        words = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run([*words, "add", "-A"], check=True)
        subprocess.run([*words, "commit", "-q", "-m", message], check=True)

    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    commit("Begin", means="def mean(a):\n    return sum(a) / len(a)\n", tests__test_means="from means import mean\n\n\ndef "
                                                                                          "test_one():\n"
           "    assert mean([3]) == 3\n")
    commit("The mean of nothing is None, not an error", means="def mean(a):\n    return sum(a) / len(a) if a else None\n",
           tests__test_means="from means import mean\n\n\ndef test_one():\n    assert mean([3]) == 3\n\n\ndef test_none():\n"
                             "    assert mean([]) is None\n")
    commit("A comment", means="# means\ndef mean(a):\n    return sum(a) / len(a) if a else None\n")
    subprocess.run(["git", "-C", str(folder), "branch", "secret-fix"], check=True)
    return str(folder)


def texts(played: Played) -> str:
    return "\n".join(played.texts())


def test_the_repair_is_accepted_and_nothing_comments_and_exits_are_refused(task: Task, services: Services) -> None:
    definition = Repository()
    solutions = definition.solutions(task)
    assert play(definition, task, solutions.gold[0], services).accuracy == 1.0
    for actions in (*solutions.wrong, ()):
        assert play(definition, task, actions, services).accuracy == 0.0, actions


def test_a_commit_with_its_tests_becomes_a_task(repository: str, services: Services) -> None:
    definition = Repository(repository=repository, source="history")
    task = definition.tasks(count=1, seed=0).tasks[0]
    assert "The mean of nothing" in task.prompt[-1].content
    solutions = definition.solutions(task)
    assert play(definition, task, solutions.gold[0], services).accuracy == 1.0
    assert play(definition, task, (DONE,), services).accuracy == 0.0
    broken = call("write", path="means.py", content="def mean(a):\n    return None\n")
    grade = play(definition, task, (broken, DONE), services).grade
    assert isinstance(grade,
                      Grade) and grade.accuracy == 0.0 and grade.parts["repaired"] == 1.0 and grade.parts["unbroken"] == 0.0
    with pytest.raises(EnvironmentFault, match="does not give so many"):
        definition.tasks(count=2, seed=0)


def test_several_repositories_give_their_share_and_each_task_knows_its_own(repository: str, services: Services,
                                                                            tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "-q", repository, str(other)], check=True)
    definition = Repository(repositories=(repository, str(other)), source="history")
    found = definition.tasks(count=2, seed=0)
    assert [raw.source for raw in found.raw] == [repository, str(other)] and len({one.canonical for one in found.tasks}) == 2
    for one in found.tasks:
        solutions = definition.solutions(one)
        for actions, wanted in ((solutions.gold[0], 1.0), (solutions.wrong[0], 0.0)):
            grade = definition.verify(one, play(definition, one, actions, services).state, services=services)
            assert isinstance(grade, Grade) and grade.accuracy == wanted
    with pytest.raises(EnvironmentFault, match="2 of 9"):
        definition.tasks(count=9, seed=0)
    with pytest.raises(EnvironmentFault, match="named once"):
        Repository(repositories=(repository, repository))


def test_no_history_remote_branch_tag_or_hidden_test_is_in_the_working_copy(repository: str, services: Services) -> None:
    definition = Repository(repository=repository, source="history")
    task = definition.tasks(count=1, seed=0).tasks[0]
    look = call("shell", command="git log --all --oneline | wc -l; git branch -a; git remote -v; git tag; git status --short; "
                                 "grep -rn none tests")
    assert play(definition, task, (look,), services).texts()[0].split("\n")[:2] == ["1", "* main"]
    assert "test_none" not in texts(play(definition, task, (look, call("shell", command="cat -r . ; grep -rn test_none . ; find "
                                                                                        "/ -name '*hidden*' "
                                                                            "-path '*test*' 2>/dev/null")), services))


def test_the_same_actions_give_the_same_observations_and_state(task: Task, services: Services) -> None:
    actions = (call("shell", command="git log; ls -R; python -m pytest -q -p no:cacheprovider"),
               call("read", path="README.md", first=1, last=2),
               call("edit", path="README.md", old="ledgerlet", new="x"), call("shell", command="git diff"), DONE)
    once, again = (play(Repository(), task, actions, services) for _ in range(2))
    assert once.observations == again.observations and once.state == again.state
    assert "passed in ...s" in texts(once) and "+# x" in texts(once)


def test_what_follows_a_restored_snapshot_is_what_followed_it(task: Task, services: Services) -> None:
    async def run() -> None:
        one, other = (Repository().build(services=services, seed=0) for _ in range(2))
        await one.reset(task)
        await one.act(call("shell", command="echo new > new.txt; rm README.md"))
        held = one.snapshot()
        await other.reset(task)
        other.restore(held)
        look = call("shell", command="git status --short")
        assert await one.act(look) == await other.act(look)
        assert one.state() == other.state() and one.state().facts["deleted"] == ["README.md"]
        await one.close()
        await other.close()

    asyncio.run(run())


def test_calls_that_do_not_fit_the_files_are_answered(task: Task, services: Services) -> None:
    calls = (call("read", path="none.py"), call("read", path="/etc/shadow"), call("edit", path="README.md", old="e", new="x"),
             call("edit", path="README.md", old="", new="x"), call("write", path="/usr/x", content=""),
             call("write", path="\0", content=""),
             call("read", path="README.md", first=90, last=99), call("shell", command="\0"),
             call("write", path="b.bin", content="\udcff"),
             call("read", path="b.bin"))
    played = play(Repository(), task, (*calls, DONE), services)
    errors = [reply.error for observation in played.observations[1:-1] for reply in observation.replies]
    assert errors == ["refused"] * 6 + [None, None, None, "not_text"] and played.state.facts["binary"] == ["b.bin"]


def test_a_policy_that_ends_its_sandbox_gets_errors_and_a_state_that_says_so(task: Task, services: Services) -> None:
    played = play(Repository(), task, (call("shell", command="kill -9 -1"), call("shell", command="ls"), DONE), services)
    assert [reply.error for observation in played.observations for reply in observation.replies] == ["crash", "crash"]
    assert played.state.facts["lost"] and played.accuracy == 0.0


@pytest.mark.parametrize("attack", [
    "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\ndef f(x): return 0\n",
    "import _pytest.runner as r\nr.pytest_runtest_call = lambda item: None\nimport _pytest.python as p\np.Function.runtest = "
    "lambda s: None\n"
    "def f(x): return 0\n",
    "import _pytest.reports as r\nr.TestReport.outcome = property(lambda s: 'passed', lambda s, v: None)\ndef f(x): return 0\n"])
def test_code_that_makes_all_tests_pass_makes_the_canary_pass_too(attack: str, services: Services) -> None:
    found = run_tests(services.sandbox(), {**TESTS, "code.py": attack.encode()}, ["test_a.py"], key="ab" * 32)
    assert found.tampered or not found.passed


@pytest.mark.parametrize("attack", [
    "import os\nos._exit(0)\n", "raise SystemExit(0)\n", "import sys\nsys.modules['pytest'] = None\ndef f(x): return 0\n",
    "import os\nfor n in range(20):\n    try: os.write(n, b'[\"test_a.py::test_f\", \"passed\", \"00\"]\\n')\n    except "
    "OSError: pass\n"
    "def f(x): return 0\n", "class A:\n    def __eq__(self, o): return False\ndef f(x): return A()\n",
                                    "def f(x): import os; os._exit(0)\n",
    "import builtins\nbuiltins.AssertionError = SystemExit\ndef f(x): return 0\n", "f = 1\n"])
def test_no_code_gets_a_test_passed_that_it_fails(attack: str, services: Services) -> None:
    found = run_tests(services.sandbox(), {**TESTS, "code.py": attack.encode()}, ["test_a.py"], key="cd" * 32)
    assert "test_a.py::test_f" not in found.passed or found.tampered


def test_settings_of_tests_are_the_projects_whatever_the_policy_wrote(task: Task, services: Services) -> None:
    hook = "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    r = yield\n" \
           "    r.get_result().outcome = 'passed'\n"
    writes = tuple(call("write", path=path, content=text) for path, text in (
        ("conftest.py", hook), ("tests/conftest.py", hook), ("pytest.ini", "[pytest]\naddopts = --co\n"),
                                                                             ("tests/test_spans.py", "def test_gaps(): pass\n"),
        ("sitecustomize.py", "import os; os._exit(0)")))
    grade = play(Repository(), task, (*writes, DONE), services).grade
    assert isinstance(grade,
                      Grade) and grade.accuracy == 0.0 and grade.parts["tampered"] == 0.0 and grade.parts["unbroken"] == 1.0


def test_a_fault_is_one_small_change_that_still_parses() -> None:
    source = FILES["ledgerlet/spans.py"]
    found = list(mutations("spans.py", source))
    assert len(found) > 20 and {"compare", "arithmetic", "constant", "condition", "return"} <= {each.kind for each in found}
    for each in found:
        changed = each.applied(source)
        assert changed != source
        compile(changed, "spans.py", "exec")
        assert sum(a != b for a, b in zip(changed.splitlines(), source.splitlines(), strict=True)) == 1
    assert not list(mutations("x.py", "def f(:")) and not list(mutations("x.py", "x = 1 + 2\n"))


def test_packages_that_a_project_needs_are_shown_to_it_and_missing_ones_are_refused(task: Task, services: Services) -> None:
    look = call("shell", command="python -c 'import hypothesis; print(hypothesis.__name__)'")
    assert texts(play(Repository(packages=("hypothesis",)), task, (look,), services)) == "hypothesis\n"
    assert "ModuleNotFoundError" in texts(play(Repository(), task, (look,), services))
    with pytest.raises(EnvironmentFault, match="not installed"):
        play(Repository(packages=("no-such-package",)), task, (look,), services)


def test_what_is_no_repository_is_refused_with_what_git_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="git failed"):
        repositories.head(str(tmp_path))
    with pytest.raises(EnvironmentFault, match="history is mined from a repository"):
        Repository(source="history").tasks(count=1, seed=0)
