"""The throttles of published systems: where they agree, where they block, what opens them again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.orchestration.asynchronous.throttle import Counts, capacity
from rollbook.orchestration.supported import check_supported
from rollbook.recipes import load, resolve
from rollbook.records import RecipeError
from rollbook.records.asynchrony import AReaL, AReaLCode, Asynchrony, Magistral, PrimeRl, SkyRl, Verl

MANY = 10**9


def counts(version=0, running=0, waiting=0, accepted=0, rejected=0, fresh=0):
    return Counts(version=version, running=running, waiting=waiting, accepted=accepted, rejected=rejected, fresh=fresh)


@given(batch=st.integers(1, 64), eta=st.integers(0, 8), version=st.integers(0, 50))
def test_areal_starts_attempt_number_batch_times_version_plus_eta_plus_one_and_not_the_next(batch, eta, version):
    last = batch * (version + eta + 1)
    assert capacity(AReaL(eta=eta), counts(version, waiting=last - 1), batch=batch, concurrency=MANY) == 1
    assert capacity(AReaL(eta=eta), counts(version, waiting=last), batch=batch, concurrency=MANY) == 0


@given(batch=st.integers(1, 64), eta=st.integers(0, 8), version=st.integers(0, 50), started=st.integers(0, 4000))
def test_areal_is_the_printed_inequality_for_the_next_attempt(batch, eta, version, started):
    printed = started // batch <= version + eta            # floor((N_r - 1) / B) <= i + eta with N_r = started + 1
    assert (capacity(AReaL(eta=eta), counts(version, waiting=started), batch=batch, concurrency=MANY) > 0) == printed


@given(batch=st.integers(1, 64), eta=st.integers(0, 8), version=st.integers(0, 50), started=st.integers(0, 4000))
def test_areal_areal_code_and_skyrl_agree_where_nothing_was_rejected(batch, eta, version, started):
    allowed = {capacity(rule, counts(version, running=started), batch=batch, concurrency=MANY)
               for rule in (AReaL(eta=eta), AReaLCode(eta=eta), SkyRl(max_staleness=eta))}
    assert len(allowed) == 1


@given(batch=st.integers(1, 64), eta=st.integers(0, 8), version=st.integers(0, 50))
def test_one_publication_opens_room_for_exactly_one_batch(batch, eta, version):
    full = batch * (version + eta + 1)
    for rule in (AReaL(eta=eta), AReaLCode(eta=eta), SkyRl(max_staleness=eta)):
        assert capacity(rule, counts(version, accepted=full), batch=batch, concurrency=MANY) == 0
        assert capacity(rule, counts(version + 1, accepted=full), batch=batch, concurrency=MANY) == batch


def test_what_was_rejected_gives_its_place_back_in_the_code_and_not_in_the_paper():
    held = counts(0, accepted=4, rejected=4)
    assert capacity(AReaL(eta=0), held, batch=8, concurrency=MANY) == 0
    assert capacity(AReaLCode(eta=0), held, batch=8, concurrency=MANY) == 4


def test_with_eta_0_generator_and_trainer_alternate():
    assert capacity(AReaL(eta=0), counts(0), batch=8, concurrency=MANY) == 8
    assert capacity(AReaL(eta=0), counts(0, running=8), batch=8, concurrency=MANY) == 0
    assert capacity(AReaL(eta=0), counts(0, waiting=8), batch=8, concurrency=MANY) == 0
    assert capacity(AReaL(eta=0), counts(1, accepted=8), batch=8, concurrency=MANY) == 8


def test_after_recovery_a_throttle_cannot_let_more_start_than_before():
    """PEERS 20: the capacity counter was not restored with the version, and staleness grew without bound."""
    assert capacity(AReaL(eta=1), counts(5, accepted=0), batch=8, concurrency=MANY) == 56      # what forgetting would allow
    assert capacity(AReaL(eta=1), counts(5, accepted=40), batch=8, concurrency=MANY) == 16


@given(st.sampled_from([AReaL(eta=3), AReaLCode(eta=3), SkyRl(max_staleness=3), PrimeRl(), Verl(staleness=0.5),
                        Magistral(ratio=2.0)]),
       st.integers(0, 20), st.integers(0, 200), st.integers(0, 200), st.integers(0, 200), st.integers(1, 100))
def test_no_throttle_lets_more_run_than_the_concurrency(rule, version, running, waiting, accepted, concurrency):
    held = counts(version, running=running, waiting=waiting, accepted=accepted)
    assert 0 <= capacity(rule, held, batch=16, concurrency=concurrency) <= max(0, concurrency - running)


def test_magistral_bounds_what_is_in_flight_over_the_batch():
    assert capacity(Magistral(ratio=2.0), counts(0, running=20, waiting=11), batch=16, concurrency=MANY) == 1
    assert capacity(Magistral(ratio=2.0), counts(9, running=20, waiting=12), batch=16, concurrency=MANY) == 0


def test_verl_carries_over_what_was_not_used_since_the_last_publication():
    assert capacity(Verl(staleness=0.5), counts(0), batch=16, concurrency=MANY) == 24
    assert capacity(Verl(staleness=0.5), counts(1, waiting=8, fresh=0), batch=16, concurrency=MANY) == 16


def test_negative_counts_are_refused():
    with pytest.raises(RecipeError, match="counted from 0"):
        counts(running=-1)


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"queue": 0}, {"stall_s": 0.0}, {"throttle": AReaL(eta=-1)},
                                   {"throttle": Magistral(ratio=0.0)}, {"throttle": Verl(staleness=float("nan"))}])
def test_settings_under_which_nothing_could_start_are_refused(wrong):
    sound = {"throttle": AReaL(eta=1), "concurrency": 4, "on_update": "keep", "late": "wait", "queue": 4, "stall_s": 9.0}
    Asynchrony(**sound)
    with pytest.raises(RecipeError):
        Asynchrony(**(sound | wrong))


@pytest.mark.parametrize("throttle, concurrency", [("{kind: AReaLCode, eta: 2}", 3), ("{kind: PrimeRl}", 1),
                                                   ("{kind: Magistral, ratio: 0.01}", 64)])
def test_a_stage_whose_first_group_could_never_start_is_refused_before_the_run(throttle, concurrency):
    how = f"{{throttle: {throttle}, concurrency: {concurrency}, on_update: keep, late: wait, queue: 1, stall_s: 9}}"
    recipe = resolve(load("dapo"), "tiny", ("stages.rl.max_policy_age=2", f"stages.rl.asynchrony={how}"), None)
    with pytest.raises(RecipeError, match="no room for a first group of 4"):
        check_supported(recipe.settings)
