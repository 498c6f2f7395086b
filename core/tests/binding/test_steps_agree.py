from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from random_calls import candidates, several_arms
from stand_ins import device_of
from trivet.selection.facts import Call, decide, normalise


@st.composite
def steps(draw):
    op, arguments, domains, known = draw(several_arms())
    defaults = {n: op.parameters[n].default for n in ("eps", "pairing") if n in op.parameters}
    if "eps" in defaults:
        defaults |= {"weight_offset": 0.0, "weight_in_float32": False, "variance_size": 0}
    arguments = arguments | defaults
    known = {path: value for path, value in known.items() if path not in defaults}
    call = Call(op, arguments)
    sizes = {n: v for n in op.where if type(v := call.value(n)) is int and n not in known}
    told = draw(st.sets(st.sampled_from(sorted(sizes)))) if sizes else set()
    return op, arguments, domains, known, {n: sizes[n] for n in told}


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.filter_too_much])
@given(steps())
def test_a_step_runs_what_a_call_would(case):
    op, arguments, domains, known, told = case
    assume(op.prepare is None)  # such a site may not stay guarded
    call = Call(op, arguments)
    facts = normalise(op, known, site=True)
    every = [term for domain in domains for term in domain]
    assume(  # facts may rule out what single rows would allow
        not any(
            isinstance(decide(op, t, facts), str) and decide(op, t, call) is True for t in every
        )
    )
    naive = [all(decide(op, t, call) is True for t in domain) for domain in domains]
    implementations = list(candidates(op, domains))
    dev = device_of(*implementations)
    facts_and_variables = known | {n: f"{n}_now" for n in told}
    variables = {f"{n}_now": v for n, v in told.items()}
    plan = dev.plan({"site": (op.name, facts_and_variables)})
    if True in naive:
        expected = naive.index(True)
        assert plan.at(**variables).site(**arguments) == expected
        assert plan.site(**arguments) == expected
        taken = plan.at(**variables).providers()["site"].split("|")
        assert implementations[expected].provider in taken
    else:
        assert plan.at(**variables).providers()["site"].endswith("reference")
