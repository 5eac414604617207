"""A permission holds for what was signed, for the files it names, for a time, and for what it says; all else is refused."""

import dataclasses
import sys
from datetime import UTC, datetime, timedelta

import pytest

from rollbook.evaluation.gate import (
    Ground,
    Signed,
    breaches,
    check_gate,
    document,
    measure,
    moment,
    policy_files,
    refused,
    regressions,
    stamp,
    undecided,
)
from rollbook.evaluation.signing import (
    GateRefused,
    KeyRefused,
    SigningUnavailable,
    fingerprint,
    new_key,
    public_key,
    sign,
    verify,
)
from rollbook.evaluation.statistics import wilson
from rollbook.records import EvalReport, Incident, PolicyVersion, ProtocolBundle, RecordError, Task, content_id, digest
from rollbook.records.tasks import Budget

NOW = datetime(2026, 12, 24, tzinfo=UTC)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two key pairs: (private key file, public PEM)."""
    made = []
    for name in ("one", "other"):
        private, public = new_key()
        path = tmp_path_factory.mktemp(name) / "key"
        path.write_bytes(private)
        made.append((path, public))
    return made


def task(number):
    return Task(raw=f"RawTask:{number}", family="sums" if number < 4 else "gcd", prompt=(), reference="1", canonical=str(number),
                predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=8), termination=())


TASKS = [task(number) for number in range(8)]
BUNDLE = ProtocolBundle(name="heldout", tasks="9f", task_count=8, environment="E", verifier="v", template="t", temperature=0.7,
                        top_p=1.0, max_tokens=8, trials=1, seed=1, aggregation="mean")


def version(index, weights):
    return PolicyVersion(index=index, stage="rl", weights=weights, published=weights, parent=None, updates=1, optimizer=None,
                         window=(), healthy=True, acknowledged=(), probe=None)


START, LATER = version(0, "aa"), version(1, "bb")


def report(policy, values, *, accuracy=0.99):
    """A report whose stated accuracy nobody should believe: the outcomes say what was measured."""
    stated = dataclasses.replace(wilson(1, 2), estimate=accuracy)
    return EvalReport(protocol=content_id(BUNDLE), stage=f"eval{policy.index}", policy=policy.id, weights=policy.weights,
                      accuracy=stated, format_rate=None, unscored=values.count(None), in_family=True, mean_tokens=1.0,
                      outcomes={one.id: value for one, value in zip(TASKS, values, strict=True)}, by_family={"sums": accuracy})


BEFORE = report(START, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, None])
AFTER = report(LATER, [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, None])


def ground(*reports, refused=frozenset()):
    return Ground(versions={START.id: START, LATER.id: LATER}, kept={START.id, LATER.id}, protocols={content_id(BUNDLE): BUNDLE},
                  reports={content_id(one): one for one in reports}, tasks={one.id: one for one in TASKS}, refused=refused)


ALLOW = dataclasses.replace(
    undecided(LATER), decision="allow", files={"model.safetensors": "f0", "config.json": "f1"}, thresholds={"heldout": 0.5},
    reports=(content_id(AFTER),), regression_owners={"sums": "maria"}, authority_limits=("serve", "train"), canary="1%",
    rollback="aa", incidents="maria", decided="2026-12-01T00:00:00Z", expires="2027-01-01T00:00:00Z")


def signed(keys, decision=ALLOW):
    named = dataclasses.replace(decision, public_key=digest(keys[0][1]))
    bundle = sign(document(named), keys[0][0])
    return Signed(decision=dataclasses.replace(named, signature=digest(bundle)), bundle=bundle)


def check(one, keys, *, files=ALLOW.files, now=NOW, wanted=("serve",), key=None):
    check_gate(one, files, key=keys[0][1] if key is None else key, now=now, wanted=wanted)


def refusal(match, one, keys, **how):
    """The refusal, with its four parts."""
    with pytest.raises(GateRefused, match=match) as caught:
        check(one, keys, **how)
    error = caught.value
    assert error.exit_code == 1 and all((error.what, error.got, error.why, error.fix)), error
    return error


def test_a_signed_permission_permits_what_it_names(keys):
    one = signed(keys)
    check(one, keys)
    check(one, keys, wanted=("serve", "train"))
    check(one, keys, now=moment(ALLOW.decided))
    check(one, keys, now=moment(ALLOW.expires) - timedelta(seconds=1))


@pytest.mark.parametrize("decision", ["undecided", "refuse"])
def test_anything_but_an_allow_permits_nothing_however_well_signed(keys, decision):
    refusal("no permission", signed(keys, dataclasses.replace(ALLOW, decision=decision)), keys)


def test_an_unsigned_allow_permits_nothing(keys):
    refusal("not signed", Signed(decision=ALLOW, bundle=None), keys)
    refusal("not signed", dataclasses.replace(signed(keys), bundle=None), keys)


CHANGED = {"policy": "PolicyVersion:x", "weights": "cc", "files": {"model.safetensors": "f2"}, "thresholds": {"heldout": 0.1},
           "reports": (), "regression_owners": {}, "authority_limits": ("serve", "deploy"), "canary": None, "rollback": None,
           "incidents": None, "decided": "2026-11-01T00:00:00Z", "expires": "2099-01-01T00:00:00Z", "public_key": None}


def test_a_change_of_any_field_breaks_the_signature(keys):
    one = signed(keys)
    assert set(CHANGED) == {f.name for f in dataclasses.fields(ALLOW)} - {"decision", "signature"}
    for field, value in CHANGED.items():
        tampered = dataclasses.replace(one, decision=dataclasses.replace(one.decision, **{field: value}))
        refusal("another document", tampered, keys)
    no = signed(keys, dataclasses.replace(ALLOW, decision="refuse"))
    refusal("another document", dataclasses.replace(no, decision=dataclasses.replace(no.decision, decision="allow")), keys)


def test_a_changed_or_exchanged_bundle_is_refused(keys):
    one, other = signed(keys), signed(keys, dataclasses.replace(ALLOW, canary="2%"))
    refusal("not the signature", dataclasses.replace(one, bundle=one.bundle[:-1] + b" "), keys)
    refusal("not the signature", dataclasses.replace(one, bundle=other.bundle), keys)
    renamed = dataclasses.replace(one.decision, signature=digest(other.bundle))
    refusal("another document", Signed(decision=renamed, bundle=other.bundle), keys)
    for bad in (b"", b"{}", b"[]", b'{"verificationMaterial": 1}', one.bundle[:200]):
        refusal("not a bundle", Signed(decision=dataclasses.replace(one.decision, signature=digest(bad)), bundle=bad), keys)


def test_a_damaged_signature_inside_a_bundle_is_refused(keys):
    one = signed(keys)
    at = one.bundle.index(b'"sig"') + 20
    swapped = one.bundle[:at] + (b"A" if one.bundle[at:at + 1] != b"A" else b"B") + one.bundle[at + 1:]
    refusal("does not hold", Signed(decision=dataclasses.replace(one.decision, signature=digest(swapped)), bundle=swapped), keys)


def test_another_key_does_not_fit(keys):
    refusal("does not hold", signed(keys), keys, key=keys[1][1])
    forged = sign(document(signed(keys).decision), keys[1][0])
    refusal("does not hold", Signed(decision=dataclasses.replace(ALLOW, public_key=digest(keys[0][1]), signature=digest(forged)),
                                    bundle=forged), keys)


def test_a_permission_is_for_its_files_alone(keys, tmp_path):
    one = signed(keys)
    fewer, other, more = {"model.safetensors": "f0"}, {**ALLOW.files, "config.json": "00"}, {**ALLOW.files, "modeling.py": "f3"}
    for files in ({}, fewer, other, more):
        refusal("another policy", one, keys, files=files)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"a")
    assert policy_files(tmp_path) == {"sub/a": digest(b"a")}


def test_a_permission_ends_and_does_not_begin_early(keys):
    one = signed(keys)
    refusal("expired", one, keys, now=moment(ALLOW.expires))
    refusal("does not hold yet", one, keys, now=moment(ALLOW.decided) - timedelta(seconds=1))
    refusal("when it holds", signed(keys, dataclasses.replace(ALLOW, expires=None)), keys)


def test_a_permission_does_not_reach_beyond_its_limits(keys):
    one = signed(keys)
    assert "deploy" in str(refusal("so far", one, keys, wanted=("serve", "deploy")).got)
    refusal("so far", signed(keys, dataclasses.replace(ALLOW, authority_limits=())), keys)
    refusal("so far", signed(keys, dataclasses.replace(ALLOW, authority_limits=("*",))), keys)


def test_keys_that_do_not_fit_are_refused_with_the_reason(keys, tmp_path):
    with pytest.raises(KeyRefused, match="public key"):
        verify(b"x", signed(keys).bundle, keys[0][0].read_bytes())
    with pytest.raises(KeyRefused, match="private key"):
        public_key(tmp_path / "missing")
    assert public_key(keys[0][0]) == keys[0][1]
    assert fingerprint(keys[0][1]) == fingerprint(keys[0][1].replace(b"\n", b"\r\n")) != fingerprint(keys[1][1])


def test_without_the_package_it_is_said_what_to_install(keys, monkeypatch):
    one = signed(keys)
    monkeypatch.setitem(sys.modules, "model_signing", None)
    for act in (lambda: check(one, keys), lambda: sign(b"x", keys[0][0])):
        with pytest.raises(SigningUnavailable, match="not installed") as caught:
            act()
        assert "pip install" in str(caught.value.fix)


def test_measures_are_taken_from_outcomes_and_the_least_counts():
    held = ground(AFTER)
    assert measure("heldout", [AFTER], held) == pytest.approx(5 / 7)                # the unscored task is not averaged in
    assert measure("heldout/gcd", [AFTER], held) == 1.0
    assert measure("heldout/sums", [AFTER], held) == 0.5
    assert measure("heldout.low", [AFTER], held) == wilson(5, 7).low
    assert measure("heldout", [AFTER, BEFORE], held) == pytest.approx(3 / 7)
    assert measure("heldout", [report(LATER, [None] * 8)], held) is None
    assert measure("other", [AFTER], held) is measure("heldout/none", [AFTER], held) is None


def test_what_nobody_could_score_is_not_right():
    held = ground(AFTER)
    assert measure("heldout", [AFTER], held, unscored=0.0) == pytest.approx(5 / 8)
    few = report(LATER, [1.0, 1.0, 1.0, None, None, None, None, None])
    wanted = dataclasses.replace(ALLOW, reports=(content_id(few),), regression_owners={"sums": "maria", "gcd": "maria"})
    assert "left unscored" in " ".join(one.evidence for one in breaches(wanted, ground(few)))
    assert "left unscored" not in " ".join(one.evidence for one in breaches(ALLOW, held))


def test_a_way_back_leads_to_no_policy_that_was_itself_refused():
    assert not breaches(ALLOW, ground(AFTER, BEFORE))
    assert "itself refused" in breaches(ALLOW, ground(AFTER, BEFORE, refused={START.weights}))[0].evidence


def test_weights_are_refused_by_the_decision_made_last_or_by_an_incident_since():
    no = dataclasses.replace(ALLOW, decision="refuse", decided="2026-12-02T00:00:00Z")
    again = dataclasses.replace(ALLOW, decided="2026-12-04T00:00:00Z")
    back = Incident(weights="bb", what="leaks", severity="major", reporter="m", action="rollback",
                    reported="2026-12-03T00:00:00Z")
    told = dataclasses.replace(back, action="none")
    assert refused([ALLOW], []) == refused([ALLOW], [told]) == refused([ALLOW, no, again], [back]) == frozenset()
    assert refused([ALLOW, no], []) == refused([no, ALLOW], []) == refused([ALLOW], [back]) == {"bb"}


def test_a_family_that_got_worse_is_seen_whatever_the_total_says():
    assert regressions(LATER, ground(BEFORE, AFTER)) == {"sums": (0.75, 0.5)}
    assert regressions(LATER, ground(AFTER)) == {}
    assert regressions(START, ground(BEFORE, AFTER)) == {}                          # what came later is no measure for the start
    half = report(START, [1.0, None, None, None, 0.0, 0.0, 0.0, 0.0])               # pairs alone are compared
    assert regressions(LATER, ground(half, AFTER)) == {}


def test_a_permission_that_keeps_every_rule_breaks_none():
    assert breaches(ALLOW, ground(BEFORE, AFTER)) == []
    assert breaches(undecided(LATER), ground()) == []


@pytest.mark.parametrize(("change", "said"), [
    ({"policy": "PolicyVersion:x"}, "did not publish"), ({"weights": "cc"}, "names weights"), ({"files": {}}, "no checkpoint"),
    ({"thresholds": {}}, "no threshold"), ({"thresholds": {"heldout": 0.8}}, "give 0.7143"),
    ({"thresholds": {"heldout": 0.0}}, "decides nothing"), ({"thresholds": {"heldout": float("nan")}}, "decides nothing"),
    ({"thresholds": {"elsewhere": 0.1}}, "nothing of its policy"),
    ({"reports": (content_id(AFTER), content_id(BEFORE))}, "rests on 2 reports"), ({"regression_owners": {"sums": " "}}, "worse"),
    ({"authority_limits": ()}, "authority"), ({"authority_limits": ("serve", "")}, "authority"), ({"canary": None}, "canary"),
    ({"rollback": None}, "rollback"), ({"rollback": "bb"}, "policy itself"), ({"rollback": "zz"}, "no healthy policy"),
    ({"decided": None}, "no stated time"), ({"expires": "2026-12-01T00:00:00Z"}, "before it was decided"),
    ({"expires": "soon"}, "expires soon")])
def test_each_rule_is_named_when_it_is_broken(change, said):
    found = breaches(dataclasses.replace(ALLOW, **change), ground(BEFORE, AFTER))
    assert [said in one.evidence for one in found] == [True], found
    assert found[0].remedy


def test_what_was_never_evaluated_and_what_is_not_kept_is_refused():
    assert [one.evidence for one in breaches(ALLOW, ground(BEFORE))] == ["its policy was never evaluated"]
    other = dataclasses.replace(AFTER, weights="cc")
    assert [one.evidence for one in breaches(ALLOW, ground(BEFORE, other))] == ["its policy was never evaluated"]
    ill = dataclasses.replace(LATER, healthy=False)
    held = dataclasses.replace(ground(BEFORE, dataclasses.replace(AFTER, policy=ill.id)), versions={START.id: START, ill.id: ill})
    assert any("not healthy" in one.evidence for one in breaches(dataclasses.replace(ALLOW, policy=ill.id), held))
    bare = dataclasses.replace(ground(BEFORE, AFTER), kept={LATER.id})
    assert ["were not kept" in one.evidence for one in breaches(ALLOW, bare)] == [True]


def test_times_are_read_as_utc_and_written_as_they_are_read():
    assert moment("2027-03-01") == datetime(2027, 3, 1, tzinfo=UTC) == moment("2027-03-01T01:00+01:00")
    assert moment(stamp(NOW)) == NOW
    with pytest.raises(RecordError, match="date"):
        moment("next week")
