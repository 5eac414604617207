"""A preflight samples, judges and says whether there is something to learn; it leaves nothing behind."""

from click.testing import CliRunner
from small_runs import small_settings

from rollbook.cli import main


def asked(*more, overrides=()):
    arguments = ["preflight", "magistral-small", "--scale", "tiny", *more]
    for value in small_settings(*overrides):
        arguments += ["--set", value]
    return CliRunner().invoke(main, arguments)


def test_an_untrained_model_has_no_signal_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = asked("--groups", "2")
    assert result.exit_code == 1, result.output
    assert "signal     no: every group has one reward" in result.output and "of the attempts" in result.output
    assert not list(tmp_path.iterdir())


def test_a_stage_that_does_not_exist_is_refused():
    result = asked("--stage", "lr")
    assert result.exit_code == 2 and "--stage rl" in result.output
