from __future__ import annotations

import pytest
import torch

from trivet.contracts import DeviceInfo
from trivet.errors import DeclarationError


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kind": ""}, "the kind is no name"),
        ({"kind": 5}, "the kind is no name"),
        ({"index": -1}, "index -1 is none"),
        ({"index": True}, "index True is none"),
        ({"index": "0"}, "index '0' is none"),
        ({"torch_type": "nonsense"}, "Expected one of cpu, "),
        ({"torch_type": "cpu:0"}, 'the type alone, such as "cpu"'),
        ({"torch_type": None}, 'the type alone, such as "cpu"'),
        ({"torch_type": "meta", "index": 300}, "torch.device makes 44 of index 300"),
    ],
)
def test_what_cannot_be_a_device_is_refused_where_it_is_written(arguments, text):
    with pytest.raises(DeclarationError) as caught:
        DeviceInfo(**({"kind": "acme"} | arguments))
    assert text in str(caught.value)


def test_the_torch_device_has_the_index_except_on_the_cpu():
    assert DeviceInfo("acme", 3, torch_type="meta").torch == torch.device("meta", 3)
    assert DeviceInfo("acme", 300).torch == torch.device("cpu")
