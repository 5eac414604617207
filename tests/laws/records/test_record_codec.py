"""The codec: one document per record, one id per meaning, and nothing that does not fit."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbook.records import (
    Acknowledgement,
    Census,
    CodecError,
    Component,
    Credit,
    NotExposed,
    Outcome,
    PolicyVersion,
    Probe,
    RecordError,
    RewardVector,
    Scored,
    Segment,
    Trace,
    Update,
    VerifierStamp,
    canonical,
    content_id,
    decode,
    encode,
)

BRIEF = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STAMP = VerifierStamp(name="math", version="1", digest="77")
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
NOTES = st.dictionaries(st.text(max_size=4), NUMBERS, max_size=3)
SEGMENTS = st.one_of(
    st.builds(Segment, owner=st.sampled_from(["user", "tool"]), token_ids=st.lists(st.integers()).map(tuple)),
    st.builds(Segment, owner=st.just("policy"), token_ids=st.lists(st.integers(), min_size=1).map(tuple), version=st.integers(),
              logps=st.just(NotExposed())),
    st.lists(st.tuples(st.integers(), NUMBERS)).map(lambda pairs: Segment(
        owner="policy", token_ids=tuple(token for token, _ in pairs), logps=tuple(logp for _, logp in pairs), version=1)))
TRACES = st.builds(Trace, attempt=st.text(), task=st.text(), group=st.text(), envelope=st.none() | st.text(),
                   segments=st.lists(SEGMENTS, min_size=1).map(tuple), stop_reason=st.sampled_from(["length", "failed"]),
                   text=st.text(), observed=NOTES)
VECTORS = st.builds(RewardVector, components=st.lists(st.builds(Component, name=st.text(), value=NUMBERS, verifier=st.just(STAMP),
                                                               confidence=NUMBERS, detail=st.text())).map(tuple),
                    absent=st.just(()), composition=st.text(), composition_digest=st.text(), total=NUMBERS,
                    accuracy=st.none() | NUMBERS)
PROBES = st.builds(Probe, token_ids=st.lists(st.integers()).map(tuple), consumer=st.lists(NUMBERS).map(tuple),
                   trainer=st.lists(NUMBERS).map(tuple), dtype=st.text())
POLICIES = st.builds(PolicyVersion, index=st.integers(), stage=st.text(), weights=st.text(), parent=st.none() | st.text(),
                     updates=st.integers(), optimizer=st.none() | st.text(), window=st.lists(st.text()).map(tuple),
                     healthy=st.booleans(), published=st.text(), probe=st.none() | PROBES,
                     acknowledged=st.lists(st.builds(Acknowledgement, consumer=st.text(), weights=st.text())).map(tuple))
UPDATES = st.builds(Update, batch=st.text(), index=st.integers(), tensors=st.text(), loss=NOTES, grad_norm=NUMBERS,
                    grad_clipped=st.booleans(), clip_fraction=st.none() | NUMBERS, ratio_min=st.none() | NUMBERS,
                    ratio_max=st.none() | NUMBERS, entropy_nats=st.none() | NUMBERS, kl_nats=st.none() | NUMBERS,
                    mismatch_k3_nats=st.none() | NUMBERS, learning_rate=NUMBERS, weights_before=st.none() | st.text(),
                    weights_after=st.none() | st.text(), observed=NOTES)
KINDS = (TRACES, st.builds(Scored, trace=st.text(), vector=VECTORS, observed=NOTES), POLICIES, UPDATES,
         st.builds(Outcome, attempt=st.text(), family=st.text(), code=st.sampled_from(["stale", "failed"]), detail=st.text()))
RECORDS = st.one_of(*KINDS)


@BRIEF
@given(RECORDS)
def test_decoding_an_encoded_record_gives_the_record_and_its_id(record) -> None:
    document = json.loads(canonical(encode(record)))
    again = decode(type(record), document)
    assert again == record and content_id(again) == content_id(record)


@BRIEF
@given(RECORDS, NOTES)
def test_an_id_ignores_what_was_observed(record, notes) -> None:
    if hasattr(record, "observed"):
        assert content_id(dataclasses.replace(record, observed=notes)) == content_id(record)


@BRIEF
@given(st.one_of(*(st.tuples(kind, kind) for kind in KINDS)))
def test_an_id_changes_with_every_semantic_field(pair) -> None:
    record, other = pair
    for field in dataclasses.fields(record):
        if field.name != "observed":
            value = getattr(other, field.name)
            changed = dataclasses.replace(record, **{field.name: value})
            same = canonical(encode(value)) == canonical(encode(getattr(record, field.name)))
            assert (content_id(changed) == content_id(record)) == same


def test_an_id_names_the_kind_and_hashes_the_document() -> None:
    assert content_id(Outcome(attempt="a", family="f", code="stale")).startswith("Outcome:")
    first = PolicyVersion(index=0, stage="s", weights="w", parent=None, updates=0, optimizer=None, window=(), healthy=True,
                          acknowledged=(), published="p", probe=None)
    assert content_id(first) != content_id(dataclasses.replace(first, window=("",)))


def test_the_canonical_form_does_not_depend_on_the_order_of_keys() -> None:
    one, other = canonical({"b": 1, "a": [1.5, None, True]}), canonical({"a": [1.5, None, True], "b": 1})
    assert one == other == b'{"a":[1.5,null,true],"b":1}'


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_has_no_id(number: float) -> None:
    with pytest.raises(CodecError, match="not finite"):
        content_id(Component(name="n", value=number, verifier=STAMP))
    with pytest.raises(CodecError, match=r"value must be a finite number"):
        decode(Component, {"name": "n", "value": number, "verifier": encode(STAMP)})


def test_an_unknown_key_is_refused_with_its_path_and_the_nearest_names() -> None:
    document = encode(Scored(trace="Trace:1", vector=RewardVector(
        components=(Component(name="n", value=1.0, verifier=STAMP),), absent=(), composition="c", composition_digest="d",
        total=1.0, accuracy=None)))
    document["vector"]["components"][0]["confidnce"] = 0.5
    with pytest.raises(CodecError) as refusal:
        decode(Scored, document)
    assert "unknown key vector.components[0].confidnce" in str(refusal.value)
    assert "nearest names: confidence" in str(refusal.value)


@pytest.mark.parametrize(("change", "message"), [
    ({"index": "1"}, "index must be an integer"),
    ({"index": 1.0}, "index must be an integer"),
    ({"index": True}, "index must be an integer"),
    ({"healthy": 1}, "healthy must be true or false"),
    ({"window": "Batch:1"}, "window must be a list"),
    ({"window": ["a", 2]}, r"window\[1\] must be a string"),
    ({"parent": 3}, "parent must be a string"),
    ({"kind": "Trace"}, "kind must be PolicyVersion"),
    ({"stage": ...}, "missing key stage"),
])
def test_a_wrong_value_is_refused_with_its_path(change, message: str) -> None:
    document = {"index": 1, "stage": "s", "weights": "w", "parent": None, "updates": 0, "optimizer": None, "window": [],
                "healthy": True, "acknowledged": [], "published": "p", "probe": None, **change}
    with pytest.raises(CodecError, match=message):
        decode(PolicyVersion, {key: value for key, value in document.items() if value is not ...})


def test_a_whole_number_stays_whole_where_integers_are_allowed() -> None:
    credit = Credit(scope="s", rule={"kind": "Centered", "ddof": 0}, traces=(), group_of=(), reward=(), advantage=(), gamma=None,
                    lam=None, baseline="b", normalized_over="n")
    assert content_id(decode(Credit, json.loads(canonical(encode(credit))))) == content_id(credit)


def test_a_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(CodecError, match="no JSON form"):
        encode({"x": object()})
    with pytest.raises(CodecError, match="no JSON form"):
        encode(b"bytes")


def test_records_refuse_what_breaks_their_own_law() -> None:
    with pytest.raises(RecordError, match="does not close"):
        Census(scope="s", issued={"f": 2}, outcomes={"f": {"accepted": 1}}, in_flight={})
    with pytest.raises(RecordError, match="one log-prob per token"):
        Segment(owner="policy", token_ids=(1, 2), logps=(0.0,), version=0)
    with pytest.raises(RecordError, match="one log-prob per token"):
        Segment(owner="policy", token_ids=(1, 2), logps=None, version=0)
    with pytest.raises(RecordError, match="without its log-probs has tokens"):
        Segment(owner="policy", token_ids=(), logps=NotExposed(), version=0)
    with pytest.raises(RecordError, match="only the policy's own"):
        Segment(owner="tool", token_ids=(1,), logps=NotExposed())
    with pytest.raises(RecordError, match="only the policy's own"):
        Segment(owner="tool", token_ids=(1,), logps=(0.0,))
