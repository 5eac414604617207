"""Settings as mappings and as JSON Schema: strict, round-trip, required where the paper prints no number."""

from __future__ import annotations

import dataclasses
import json

import pytest
from objective_cases import INSTANCES

import rollbook.objectives as ro
from rollbook.objectives import OBJECTIVES, Dapo, ObjectiveError, Unstated
from rollbook.objectives.credit import RULES, MinibatchStandardized
from rollbook.objectives.schema import catalogue_schema, json_schema, schemas_by_name
from rollbook.objectives.settings import from_settings, to_settings


@pytest.mark.parametrize("name", INSTANCES)
def test_settings_survive_json(name: str) -> None:
    settings = json.loads(json.dumps(to_settings(INSTANCES[name])))
    assert from_settings(settings) == INSTANCES[name]


def test_nested_credit_is_built_by_its_class_name() -> None:
    objective = ro.Magistral(low=0.2, high=0.28, ratio_to="anchor", credit=MinibatchStandardized(eps=1e-6, ddof=0))
    settings = to_settings(objective)
    assert settings["credit"] == {"kind": "MinibatchStandardized", "eps": 1e-6, "ddof": 0}
    assert from_settings(settings) == objective


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "Grpo2"},
        {},
        {"kind": "GroupCentered"},
        {"kind": "Gspo", "epsilon": 0.2},
        {"kind": "Grpo", "low": 0.2},
        {"kind": "Gspo", "credit": {"kind": "GroupNormalized", "eps": 1e-6}},
        {"kind": "Gspo", "credit": {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 1, "mean": True}},
    ],
)
def test_unknown_keys_kinds_and_missing_numbers_are_refused(settings: dict) -> None:
    with pytest.raises(ObjectiveError):
        from_settings(settings)


@pytest.mark.parametrize("cls", [*OBJECTIVES.values(), *RULES.values()])
def test_the_schema_requires_what_has_no_number_in_the_paper(cls: type) -> None:
    schema = json_schema(cls)
    fields = dataclasses.fields(cls)
    assert set(schema["properties"]) == {"kind", *(field.name for field in fields)}
    open_fields = {f.name for f in fields if f.default is dataclasses.MISSING or isinstance(f.default, Unstated)}
    assert set(schema["required"]) == {"kind", *open_fields}
    assert schema["additionalProperties"] is False
    for field in fields:
        if field.name not in open_fields and not dataclasses.is_dataclass(field.default):
            assert schema["properties"][field.name]["default"] == field.default


def test_the_catalogue_schema_is_json_and_names_every_objective() -> None:
    schema = json.loads(json.dumps(catalogue_schema()))
    kinds = {record["properties"]["kind"]["const"] for record in schema["$defs"]["objective"]["oneOf"]}
    assert kinds == set(OBJECTIVES) == {cls.__name__ for cls in OBJECTIVES.values()}
    assert schema["$defs"]["objective"]["oneOf"][0]["properties"]["credit"]["$ref"] == "#/$defs/credit"


def test_recipes_get_one_schema_per_name_and_know_which_baselines_need_a_group() -> None:
    schemas = json.loads(json.dumps(schemas_by_name()))
    assert set(schemas) == {*OBJECTIVES, "Corrected", "WithEntropy", "ControlledEntropy"}
    assert schemas["WithEntropy"]["properties"]["objective"] == {"x-objective": True}
    magistral = schemas["Magistral"]
    assert magistral["required"] == ["low", "high", "ratio_to", "credit"] and "kind" not in magistral["properties"]
    assert magistral["properties"]["low"] == {"type": "number", "minimum": 0}
    assert magistral["x-baseline"] == "group" and "x-baseline" not in schemas["Sao"] and "x-baseline" not in schemas["Ppo"]


def test_every_objective_has_the_common_interface() -> None:
    for objective in INSTANCES.values():
        assert isinstance(objective.reads, frozenset) and objective.scope in ("token", "sequence")
        assert objective.credit is not None and objective.aggregate is not None
        for term in objective.extra_terms:
            assert term.name and term.population in ("actions", "correct", "pretraining")


def test_a_whole_number_for_a_coefficient_is_that_float() -> None:
    made = from_settings({**to_settings(Dapo()), "low": 1})
    assert type(made.low) is float and made.low == 1.0
