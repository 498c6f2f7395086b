"""Where a result is wrong: in the message, in the line of the report, and on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import jsonschema
import pytest
import torch
from test_report_views import report

from trivet.catalogue.norm import rms_norm
from trivet.contracts import implements
from trivet.judging.statistics import Allowance
from trivet_conformance import Status, from_functions, run
from trivet_conformance.judging.worst import Worst, among, apart, beyond
from trivet_conformance.report import lines
from trivet_conformance.report.page import page


@implements("rms_norm@1", name="one_row_off")
def one_row_off(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    y = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    if y.dim() == 2 and y.shape[0] > 3 and y.shape[1] > 17:
        y[3, 17] += 10
    return y


@pytest.fixture(scope="module")
def failed():
    found = run(from_functions([one_row_off], "toy"), families=["value"], quick=True)
    return next(r for r in found if r.status is Status.FAIL)


def test_a_value_that_is_wrong_is_told_with_its_place(failed):
    assert "; worst at [3, 17]: got " in failed.finding.reason
    rows = failed.finding.worst["rows"]
    assert failed.finding.reason.endswith(f"; 1 of {rows} rows outside")
    assert failed.finding.worst["index"] == [3, 17]
    assert failed.finding.worst["got"] == pytest.approx(failed.finding.worst["wanted"] + 10, 0.1)


def test_the_place_is_in_the_report_and_on_the_page(failed, tmp_path):
    stored = report(tmp_path, failed)
    row = lines.read(tmp_path)[1]
    assert row["worst"]["rows_outside"] == 1
    schema = files("trivet_conformance").joinpath("report", "schema.json").read_text("utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(schema))
    validator.validate(row)
    assert not validator.is_valid(row | {"worst": {"index": [3, 17]}})
    assert "worst at [3, 17]: got" in page(stored)


def test_a_pass_names_no_place(failed, tmp_path):
    passed = replace(failed, finding=replace(failed.finding, status=Status.PASS, worst={}))
    report(tmp_path, passed)
    assert "worst" not in lines.read(tmp_path)[1]


@pytest.mark.parametrize("statistic", ["maximum", "root mean square", "bias"])
def test_the_worst_row_of_the_statistic_that_failed(statistic):
    right = torch.ones(4, 8, dtype=torch.float64)
    result = right.clone().float()
    result[2, 5] = 1.5
    judged = torch.ones_like(right, dtype=torch.bool)
    found = beyond(Allowance(1e-3, 1e-3, 1e-3), statistic, 0, result, right, judged)
    assert found == Worst(0, (2, 5), 1.5, 1.0, 1, 4)


def test_a_result_without_dims_has_a_place_too():
    right, judged = torch.tensor(1.0, dtype=torch.float64), torch.tensor(data=True)
    found = beyond(Allowance(0.1, 0.1, 0.1), "maximum", 0, torch.tensor(2.0), right, judged)
    assert (found.index, found.outside, found.rows) == ((), 1, 1)


def test_choices_are_rows_of_their_own_and_whole_numbers():
    got, right = torch.tensor([4, 123457, 6]), torch.tensor([4, 123456, 7])
    found = among(got != right, 0, got, right, single=True)
    assert found.text == "worst at [1]: got 123457, wanted 123456; 2 of 3 rows outside"


def test_numbers_are_told_with_enough_digits_to_differ():
    assert apart(1.01, 1.0) == ("1.01", "1")
    assert apart(1.0000001, 1.0) == ("1.0000001", "1")
    assert Worst(0, (0,), float("nan"), 1.0, 1, 1).to_json()["got"] == "nan"
