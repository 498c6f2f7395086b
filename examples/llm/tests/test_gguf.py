from __future__ import annotations

import contextlib
import re
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm import gguf
from llm.errors import ModelFileError

fuzz = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def dequantised(hand_made, tmp_path, kind, shape, raw):
    hand_made.tensors["w"] = (kind, shape, raw)
    return gguf.read(hand_made.write(tmp_path / "m.gguf")).tensors["w"].dequantise()


def test_metadata_of_every_type_is_read_back(hand_made, tmp_path):
    hand_made.metadata = {
        "text": "grüße",
        "flag": True,
        "count": 7,
        "real": 0.5,
        "words": ["a", "", "ß"],
        "numbers": [1, 2, 3],
    }
    file = gguf.read(hand_made.write(tmp_path / "m.gguf"))
    assert file.metadata == hand_made.metadata
    assert file.tensors == {}


def test_wide_and_narrow_numbers_are_read(tmp_path):
    codes = {0: "B", 1: "b", 2: "H", 3: "h", 5: "i", 10: "Q", 11: "q", 12: "d"}
    pairs = [
        struct.pack("<Q1sI" + code, 1, chr(65 + kind).encode(), kind, 5)
        for kind, code in codes.items()
    ]
    head = b"GGUF" + struct.pack("<IQQ", 2, 0, len(pairs))
    path = tmp_path / "m.gguf"
    path.write_bytes(head + b"".join(pairs) + bytes(64))
    assert gguf.read(path).metadata == {chr(65 + kind): 5 for kind in codes}


def test_several_tensors_keep_their_own_bytes_and_shapes(hand_made, tmp_path):
    first, second = torch.arange(6.0).view(2, 3), torch.arange(5.0) - 2
    hand_made.put("first", first)
    hand_made.put("second", second)
    tensors = gguf.read(hand_made.write(tmp_path / "m.gguf")).tensors
    assert torch.equal(tensors["first"].dequantise(), first)
    assert torch.equal(tensors["second"].dequantise(), second)


def test_each_tensor_has_an_aligned_storage_of_its_own(hand_made, tmp_path):
    hand_made.put("a", torch.ones(3))
    stored = gguf.read(hand_made.write(tmp_path / "m.gguf")).tensors["a"]
    one, two = stored.dequantise(), stored.dequantise()
    one.zero_()
    assert torch.equal(two, torch.ones(3))
    assert two.data_ptr() % 64 == 0
    assert two.untyped_storage().nbytes() == 12


def test_half_precision_is_widened(hand_made, tmp_path):
    values = np.array([[1.5, -2.0], [65504.0, 6.1e-5]], np.float16)
    got = dequantised(hand_made, tmp_path, 1, (2, 2), values.tobytes())
    assert torch.equal(got, torch.from_numpy(values.astype(np.float32)))


def test_q8_0_is_scale_times_signed_byte(hand_made, tmp_path):
    bytes_ = [[i - 16 for i in range(32)], [-128, 127] * 16]
    scales = [0.5, -0.25]
    raw = b"".join(struct.pack("<e32b", s, *b) for s, b in zip(scales, bytes_, strict=True))
    want = [[s * v for v in b] for s, b in zip(scales, bytes_, strict=True)]
    assert dequantised(hand_made, tmp_path, 8, (2, 32), raw).tolist() == want


def test_q4_1_is_scale_times_nibble_plus_least(hand_made, tmp_path):
    packed = [(i * 37 + 11) % 256 for i in range(32)]
    raw = struct.pack("<ee16B", 0.5, -3.0, *packed[:16]) + struct.pack(
        "<ee16B", 2.0, 1.0, *packed[16:]
    )
    want = []
    for scale, least, part in ((0.5, -3.0, packed[:16]), (2.0, 1.0, packed[16:])):
        nibbles = [b % 16 for b in part] + [b // 16 for b in part]
        want.append([scale * n + least for n in nibbles])
    assert dequantised(hand_made, tmp_path, 3, (2, 32), raw).tolist() == want


def test_a_missing_file_is_one_clear_error(tmp_path):
    with pytest.raises(ModelFileError, match="No such file"):
        gguf.read(tmp_path / "none.gguf")


def test_a_folder_is_one_clear_error(tmp_path):
    with pytest.raises(ModelFileError, match="directory"):
        gguf.read(tmp_path)


def test_an_empty_file_is_one_clear_error(tmp_path):
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelFileError, match="is empty"):
        gguf.read(tmp_path / "m.gguf")


def test_another_format_is_refused(hand_made, tmp_path):
    hand_made.magic = b"ZIP!"
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        gguf.read(hand_made.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_another_version_is_refused(hand_made, tmp_path, version):
    hand_made.version = version
    with pytest.raises(ModelFileError, match=f"version {version} is not supported"):
        gguf.read(hand_made.write(tmp_path / "m.gguf"))


def test_an_unknown_tensor_type_is_named_with_the_known_ones(hand_made, tmp_path):
    hand_made.tensors["odd"] = (14, (256,), bytes(210))
    with pytest.raises(ModelFileError, match=r"'odd' has type 14.*\n.*Q4_1"):
        gguf.read(hand_made.write(tmp_path / "m.gguf"))


def test_rows_that_fill_no_whole_block_are_refused(hand_made, tmp_path):
    hand_made.tensors["odd"] = (8, (2, 16), bytes(34))
    with pytest.raises(ModelFileError, match="do not fill whole blocks"):
        gguf.read(hand_made.write(tmp_path / "m.gguf"))


def test_too_many_dims_are_refused(hand_made, tmp_path):
    hand_made.tensors["odd"] = (0, (1, 1, 1, 1, 1), bytes(4))
    with pytest.raises(ModelFileError, match="has 5 dims"):
        gguf.read(hand_made.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("align", [0, -32, "x"])
def test_a_senseless_alignment_is_refused(hand_made, tmp_path, align):
    hand_made.metadata["general.alignment"] = float(align) if align == -32 else align
    with pytest.raises(ModelFileError, match=re.escape("general.alignment is")):
        gguf.read(hand_made.write(tmp_path / "m.gguf"))


def test_a_tensor_that_is_there_twice_is_refused(hand_made, tmp_path):
    hand_made.put("weight_a", torch.ones(2))
    hand_made.put("weight_b", torch.ones(2))
    path = tmp_path / "m.gguf"
    path.write_bytes(hand_made.to_bytes().replace(b"weight_b", b"weight_a"))
    with pytest.raises(ModelFileError, match="'weight_a' is there twice"):
        gguf.read(path)


def test_text_that_is_not_utf8_is_refused(hand_made, tmp_path):
    hand_made.metadata["key"] = "word"
    path = tmp_path / "m.gguf"
    path.write_bytes(hand_made.to_bytes().replace(b"word", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(ModelFileError, match="not UTF-8"):
        gguf.read(path)


@fuzz
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(tiny, tmp_path, data):
    whole = tiny.to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 32))
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:cut])
    with pytest.raises(ModelFileError):
        gguf.read(path)


@fuzz
@given(data=st.data())
def test_a_damaged_header_is_read_or_refused_and_nothing_else(hand_made, tmp_path, data):
    hand_made.metadata = {"a": 1, "b": ["x", "yy"], "c": "text", "d": 0.5}
    hand_made.put("first", torch.ones(2, 3))
    hand_made.put("second", torch.ones(4))
    whole = bytearray(hand_made.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(whole))
    with contextlib.suppress(ModelFileError):  # any other exception fails the test
        assert gguf.read(path).path == path
