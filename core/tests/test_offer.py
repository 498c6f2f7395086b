from __future__ import annotations

import pytest
import torch

from fake_dists import FakeDists, installed
from trivet.catalogue import operators
from trivet.errors import DeclarationError, PluginBroken, SignatureDrift
from trivet.plugins import Discovery, Status
from trivet.plugins.offer import collect
from trivet.plugins.resolve import reference, resolve
from trivet.settings import Settings

HEAD = """
from trivet.contracts import DeviceInfo, divisible, feature, implements, operator
def trivet_devices():
    return [DeviceInfo("dev", features=frozenset({"wide"}))]
"""

GOOD_ONE = """
@implements("silu_and_mul@1", name="plain")
def good(x):
    return x
"""


@pytest.fixture
def dists(tmp_path, monkeypatch):
    return installed(tmp_path, monkeypatch)


def offer(dists: FakeDists, source: str):
    """What a plugin named ``dev`` offers, and its line."""
    dists.add("dev-dist", "dev", HEAD + source)
    discovery = Discovery(Settings())
    got = collect(discovery, resolve("dev", discovery), operators())
    return got, discovery.report()["dev"]


REFUSED = [
    ("unknown operator", 'implements("no_such@1", name="bad")', "x",
     DeclarationError, "no operator 'no_such'"),
    ("misspelt operator", 'implements("silu_and_mull_@1", name="bad")', "x",
     DeclarationError, "no operator 'silu_and_mull_'"),
    ("unknown version", 'implements("silu_and_mul@9", name="bad")', "x",
     SignatureDrift, "version 9, operator has @1"),
    ("drifted name", 'implements("silu_and_mul@1", name="bad")', "y",
     SignatureDrift, "bad for 'silu_and_mul@1'"),
    ("drifted default", 'implements("silu_and_mul@1", name="bad")', "x=None",
     SignatureDrift, "bad for 'silu_and_mul@1'"),
    ("bad domain name", 'implements("silu_and_mul@1", name="bad", domain=[divisible("hiden", 8)])',
     "x", DeclarationError, "'hiden' is no dim"),
    ("domain nonsense", 'implements("silu_and_mul@1", name="bad", domain=["x > 0"])', "x",
     DeclarationError, "fake_dev_dist.py:11): cannot be read: AttributeError"),
    ("missing source", 'implements("silu_and_mul@1", name="bad", sources=["k.cpp"])', "x",
     DeclarationError, "k.cpp does not exist"),
    ("not marked", "staticmethod", "x", DeclarationError, "is not marked"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mark", "arguments", "error", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_a_refusal_costs_one_implementation(dists: FakeDists, caplog, mark, arguments, error, text):
    source = f"""
{GOOD_ONE}
@{mark}
def bad({arguments}):
    return x
def trivet_implementations(device):
    return [bad, good]
"""
    got, line = offer(dists, source)
    assert [i.provider for i in got.implementations] == ["dev/plain"]
    (refusal,) = got.refusals
    assert type(refusal.error) is error
    assert (refusal.plugin, refusal.dist) == ("dev", "dev-dist")
    assert text in str(refusal)
    assert line.status is Status.FOUND
    assert line.reason == "1 implementation, 1 refused"
    assert text in str(line)
    assert "fake_dev_dist.py:11)" in str(refusal)
    assert "fake_dev_dist.py:11)" in refusal.reason
    assert not refusal.reason.startswith("dev/bad")
    assert not refusal.error.fix or f"; fix: {refusal.error.fix}" in str(line)
    named = "implements" in mark
    assert refusal.provider == ("dev/bad" if named else "dev")
    assert refusal.operator == ("silu_and_mul" if "silu_and_mul@" in mark else "")
    (record,) = [r for r in caplog.records if "refused" in r.getMessage()]
    assert (record.name, record.levelname) == ("trivet.plugins", "WARNING")
    assert refusal.error.what in record.getMessage()
    assert refusal.error.fix in record.getMessage()


def test_a_misspelt_operator_has_its_near_miss_in_full(dists: FakeDists):
    source = """
@implements("silu_and_mull_out@1", name="bad")
def bad(x, *, out):
    pass
def trivet_implementations(device):
    return [bad]
"""
    (refusal,) = offer(dists, source)[0].refusals
    assert "did you mean 'silu_and_mul_out@1'" in refusal.error.fix


HOSTILE = """
class Odd:
    def __repr__(self): raise RuntimeError("no")
    def __getattr__(self, name): raise Panic("no")
class Panic(BaseException):
    pass
class Term:
    @property
    def paths(self): raise Panic("no")
    def __repr__(self): raise Panic("no")
class List(list):
    def __iter__(self): raise Panic("no")
@implements("silu_and_mul@1", name="panics", domain=[Term()])
def panics(x):
    return x
"""


def test_hostile_members_are_refused_one_by_one(dists: FakeDists):
    body = "def trivet_implementations(device): return [Odd(), panics, good]\n"
    got, line = offer(dists, GOOD_ONE + HOSTILE + body)
    assert [i.provider for i in got.implementations] == ["dev/plain"]
    odd, panics = got.refusals
    assert "<Odd, whose repr raises> is not marked" in odd.error.what
    assert (odd.provider, odd.operator) == ("dev", "")
    assert "cannot be read: Panic: no" in panics.error.what
    assert (panics.provider, panics.operator) == ("dev/panics", "silu_and_mul")
    assert line.reason == "1 implementation, 2 refused"


def test_a_list_that_cannot_be_iterated_is_a_line(dists: FakeDists):
    body = "def trivet_implementations(device): return List([good])\n"
    with pytest.raises(PluginBroken, match="trivet_implementations raises: Panic: no"):
        offer(dists, GOOD_ONE + HOSTILE + body)


def test_one_name_claimed_twice_is_refused_the_second_time(dists: FakeDists):
    source = f"""
{GOOD_ONE}
@implements("silu_and_mul@1", name="plain")
def again(x):
    return x
def trivet_implementations(device):
    return [good, again]
"""
    got, _ = offer(dists, source)
    assert [i.function.__name__ for i in got.implementations] == ["good"]
    assert "claimed twice" in str(got.refusals[0])


def test_requirements_are_settled_against_the_device(dists: FakeDists):
    source = """
@implements("silu_and_mul@1", name="wide", requires=[feature("wide")])
def wide(x):
    return x
@implements("silu_and_mul@1", name="wider", requires=[feature("wider")])
def wider(x):
    return x
def trivet_implementations(device):
    return [wider, wide]
"""
    got, line = offer(dists, source)
    assert [i.provider for i in got.implementations] == ["dev/wide"]
    assert [u.implementation.provider for u in got.unmet] == ["dev/wider"]
    assert "feature 'wider' is not here" in got.unmet[0].reason
    assert line.reason == "1 implementation, 1 not for this device"


def test_everything_that_a_plugin_brings_is_in_the_offer(dists: FakeDists):
    source = f"""
{GOOD_ONE}
def trivet_implementations(device):
    return (good,)
def trivet_defaults(device):
    return {{"block_size": (32, "a page")}}
def trivet_memory(device):
    return "allocator of " + device.kind
def trivet_collectives(device):
    return "links"
def trivet_capture(device):
    return "graphs"
"""
    got, line = offer(dists, source)
    assert line.reason == "1 implementation, memory, collectives, capture"
    assert dict(got.defaults) == {"block_size": (32, "a page", "dev")}
    assert dict(got.memory) == {"dev": "allocator of dev"}
    assert dict(got.collectives) == {"dev": "links"}
    assert dict(got.capture) == {"dev": "graphs"}
    assert dict(got.operators) == dict(operators())


def test_a_plugin_may_not_take_a_name_of_core(dists: FakeDists):
    source = """
from trivet.catalogue import operators
def trivet_operators():
    return list(operators().values())[:1]
"""
    with pytest.raises(PluginBroken, match=r"its name must start with 'dev\.'"):
        offer(dists, source)


EXTENDER = """
from trivet.contracts import implements
@implements("silu_and_mul@1", name="extra")
def extra(x):
    return x
def trivet_implementations(device):
    {body}
def trivet_defaults(device):
    return {{"block_size": (8, "ours"), "own": (1, "ours")}}
"""


def test_what_another_wheel_adds_comes_after_the_devices_own(dists: FakeDists):
    dists.add("extra-dist", "an_extra", EXTENDER.format(body="return [extra]"), extends="dev")
    own = "def trivet_implementations(device): return [good]\n"
    defaults = 'def trivet_defaults(device): return {"block_size": (16, "own")}\n'
    got, _ = offer(dists, GOOD_ONE + own + defaults)
    assert [i.provider for i in got.implementations] == ["dev/plain", "an_extra/extra"]
    assert got.defaults["block_size"] == (16, "own", "dev")
    assert got.defaults["own"] == (1, "ours", "an_extra")


def test_a_wheel_that_adds_and_raises_is_left_out(dists: FakeDists):
    dists.add("extra-dist", "an_extra", EXTENDER.format(body="1 / 0"), extends="dev")
    dists.add(
        "dev-dist", "dev", HEAD + GOOD_ONE + "def trivet_implementations(device): return [good]"
    )
    discovery = Discovery(Settings())
    got = collect(discovery, resolve("dev", discovery), operators())
    assert [i.provider for i in got.implementations] == ["dev/plain"]
    line = discovery.report()["an_extra"]
    assert line.status is Status.RAISED
    assert "trivet_implementations raises: ZeroDivisionError" in line.reason


@pytest.mark.parametrize(
    ("body", "text"), [("return []", "it brings nothing"), ("return [1]", "was refused")]
)
def test_a_wheel_that_adds_nothing_is_said_to(dists: FakeDists, body, text):
    source = EXTENDER.format(body=body).partition("def trivet_defaults")[0]
    dists.add("extra-dist", "an_extra", source, extends="dev")
    dists.add("dev-dist", "dev", HEAD)
    discovery = Discovery(Settings())
    collect(discovery, resolve("dev", discovery), operators())
    line = discovery.report()["an_extra"]
    assert line.status is Status.REGISTERED_NOTHING
    assert text in line.reason


def test_the_reference_device_has_core_only(dists: FakeDists):
    got = collect(Discovery(Settings()), reference("a test"), operators())
    assert got.implementations == ()
    assert dict(got.operators) == dict(operators())


def test_the_vendors_own_function_is_what_is_collected(dists: FakeDists):
    got, _ = offer(dists, GOOD_ONE + "def trivet_implementations(device): return [good]")
    x = torch.ones(1)
    assert got.implementations[0].function(x) is x


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ('"block_size": (-3, "why")', "default 'block_size' is dropped: it is -3; int, 1 or more"),
        ('"block_size": (True, "why")', "it is True"),
        ('"block_size": ("16", "why")', "it is '16'"),
        ('"layout": ("HND", "why")', "default 'layout' is dropped: it is 'HND'; str, `NHD`"),
        ('"dtype": ("int32", "why")', "name of a floating dtype"),
        ('"dtype": ("no_such", "why")', "default 'dtype' is dropped"),
    ],
)
def test_a_default_that_cannot_be_is_dropped_and_told(dists: FakeDists, row, text, caplog):
    got, line = offer(dists, f"def trivet_defaults(device): return {{{row}, 'mine': (1, 'x')}}")
    assert line.status is Status.FOUND
    assert set(got.defaults) == {"mine"}
    assert any(text in detail for detail in line.details)
    assert text in caplog.text


def test_an_unknown_default_is_kept_and_told_with_near_misses(dists: FakeDists):
    got, line = offer(
        dists, "def trivet_defaults(device): return {'blocksize': (8, 'x'), 'q': (None, 'y')}"
    )
    assert dict(got.defaults) == {"blocksize": (8, "x", "dev"), "q": (None, "y", "dev")}
    assert line.details == (
        "default 'blocksize' is none that this trivet knows; did you mean 'block_size'?",
        "default 'q' is none that this trivet knows; it is kept as it is",
    )


def test_another_plugins_default_serves_where_the_devices_own_was_dropped(dists: FakeDists):
    dists.add("extra-dist", "an_extra", EXTENDER.format(body="return [extra]"), extends="dev")
    got, _ = offer(dists, 'def trivet_defaults(device): return {"block_size": (0, "own")}')
    assert got.defaults["block_size"] == (8, "ours", "an_extra")


def test_a_dtype_reaches_the_engine_by_name(dists: FakeDists):
    source = 'import torch\ndef trivet_defaults(device): return {"dtype": (torch.bfloat16, "x")}'
    got, line = offer(dists, source)
    assert got.defaults["dtype"] == ("bfloat16", "x", "dev")
    assert line.details == ()


def test_the_layouts_of_the_defaults_are_the_operators():
    from trivet.catalogue.kv_cache import LAYOUTS
    from trivet.contracts.hooks import ENGINE_DEFAULTS

    assert [name for name in (*LAYOUTS, "HND") if ENGINE_DEFAULTS["layout"].takes(name)] == [
        *LAYOUTS
    ]
