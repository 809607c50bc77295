"""What a client may send, and what it is told about everything else."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image
from pydantic import BaseModel

from models.base import ServedModel
from models.text import TextSample
from server.api.decode import MAX_SAMPLES, Body, Decoded, decode, is_cheap
from server.config import ServerSection
from server.errors import GearshiftError, InvalidInput, PayloadTooLarge, UnsupportedMedia
from tests.fakes import Colors, Double, Tokens

LIMITS = ServerSection()
JSON = "application/json"
STREAM = "application/octet-stream"
BOUNDARY = "frontier"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
ONES = np.ones(4, np.float32)


def send(
    model: ServedModel, data: bytes, content_type: str = JSON, headers: Mapping[str, str] = {}
) -> Decoded:
    return decode(Body(content_type, data, headers), model, LIMITS)


def refusal(
    kind: type[GearshiftError],
    model: ServedModel,
    data: bytes,
    content_type: str = JSON,
    headers: Mapping[str, str] = {},
) -> str:
    with pytest.raises(kind) as raised:
        send(model, data, content_type, headers)
    assert type(raised.value) is kind
    return raised.value.detail


def png(width: int = 2, height: int = 2, color: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), color).save(file, "PNG")
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def form(*parts: tuple[str, bytes]) -> bytes:
    head = 'Content-Disposition: form-data; name="{}"; filename="f"\r\n\r\n'
    written = (
        f"--{BOUNDARY}\r\n{head.format(name)}".encode() + data + b"\r\n" for name, data in parts
    )
    return b"".join(written) + f"--{BOUNDARY}--\r\n".encode()


# JSON


def test_an_object_is_one_sample_and_an_array_is_a_list():
    one = send(Double(), b'{"x": [1, 2, 3, 4]}')
    many = send(Double(), b'[{"x": [1, 2, 3, 4]}]')
    assert (one.is_list, many.is_list) == (False, True)
    for decoded in (one, many):
        assert decoded.samples[0]["x"].tolist() == [1, 2, 3, 4]
        assert decoded.samples[0]["x"].dtype == np.float32


def test_content_type_parameters_and_case_do_not_matter():
    assert send(Tokens(), b'{"text": "hi"}', "Application/JSON; charset=utf-8").samples


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "not JSON: "),
        (b'{"x": ', "not JSON: "),
        (b'{"x": [NaN, 1, 2, 3]}', "not JSON: "),
        (b'{"x": [Infinity, 1, 2, 3]}', "not JSON: "),
        (b"\xff", "not JSON: "),
        (b"[" * 5000, "not JSON: "),
        (b"[]", "an empty list; expected at least one sample"),
        (b"3", "body: expected an object with the fields: x"),
        (b"[3]", "[0]: expected an object with the fields: x"),
        (b"{}", "x: field required"),
        (b'{"x": "1"}', "x: input should be a valid list"),
        (b'{"x": [1, 2, 3]}', "x: list should have at least 4 items"),
        (b'{"x": [1, 2, "a", 4]}', "x[2]: input should be a valid number"),
        (b'{"x": [1, 2, 3, 4], "y": 1}', "y: unknown field; known: x"),
        (b'[{"x": [1, 2, 3, 4]}, {"x": [1, 2, null, 4]}]', "[1].x[2]: input should be"),
        (b'{"x": [1e300, 0, 0, 0]}', "x: NaN, or infinite as float32; expected finite"),
    ],
)
def test_json_that_does_not_fit_is_refused_by_name(data: bytes, detail: str):
    assert refusal(InvalidInput, Double(), data).startswith(detail)


def test_what_preprocess_refuses_is_invalid_and_says_which_sample():
    long = "x" * 33
    expected = "text: 33 bytes, this model takes up to 32"
    assert refusal(InvalidInput, Tokens(), orjson.dumps({"text": long})) == expected
    data = orjson.dumps([{"text": "fine"}, {"text": long}])
    assert refusal(InvalidInput, Tokens(), data) == f"[1]: {expected}"


def test_more_samples_than_a_request_may_have_are_too_large():
    data = orjson.dumps([{"x": [1, 2, 3, 4]}] * (MAX_SAMPLES + 1))
    assert refusal(PayloadTooLarge, Double(), data) == "1025 samples; at most 1024 in one request"


def test_a_text_is_refused_by_its_length_before_it_is_tokenised():
    class Texts(Tokens):
        sample = TextSample

    for content_type, data in (
        (JSON, orjson.dumps({"text": "a" * 100_001})),
        ("text/plain", b"a" * 100_001),
    ):
        detail = refusal(InvalidInput, Texts(), data, content_type)
        assert detail == "text: string should have at most 100000 characters"


def test_a_flood_of_wrong_values_and_long_names_are_not_echoed():
    class Free(Double):
        class sample(BaseModel):
            x: list[float]

    detail = refusal(InvalidInput, Free(), orjson.dumps({"x": ["a"] * 5000}))
    assert detail == "body: 5000 values of the wrong type or range"
    assert len(refusal(InvalidInput, Double(), orjson.dumps({"y" * 9000: 1}))) < 300


def test_a_broken_preprocess_is_not_blamed_on_the_client():
    class Broken(Double):
        def preprocess(self, payload: Mapping[str, Any]) -> dict[str, Any]:
            raise ZeroDivisionError

    class Misnamed(Double):
        def preprocess(self, payload: Mapping[str, Any]) -> dict[str, Any]:
            return {"z": ONES}

    with pytest.raises(ZeroDivisionError):
        send(Broken(), b'{"x": [1, 2, 3, 4]}')
    with pytest.raises(TypeError, match="preprocess of double gave"):
        send(Misnamed(), b'{"x": [1, 2, 3, 4]}')


def test_preprocess_may_leave_the_exact_dtype_and_layout_to_the_server():
    class Careless(Double):
        def preprocess(self, payload: Mapping[str, Any]) -> dict[str, Any]:
            return {"x": np.repeat(np.array(payload["x"], ">f8"), 2)[::2]}

    array = send(Careless(), b'{"x": [1, 2, 3, 4]}').samples[0]["x"]
    assert array.dtype == np.float32
    assert array.dtype.isnative
    assert array.flags.c_contiguous


# Content types


def test_a_content_type_that_nothing_takes_is_refused_with_those_that_are():
    detail = refusal(UnsupportedMedia, Colors(), b"<x/>", "text/xml")
    assert detail == (
        "Content-Type text/xml; colors takes application/json, image/*, multipart/form-data, "
        "application/octet-stream, application/x-npy, application/x-npz"
    )
    detail = refusal(UnsupportedMedia, Double(), b"x", FORM)
    assert "multipart/form-data; double takes application/json, application/oct" in detail


@pytest.mark.parametrize("content_type", ["", "application/x-www-form-urlencoded"])
def test_json_without_its_content_type_is_told_how_to_say_so(content_type: str):
    detail = refusal(UnsupportedMedia, Double(), b'{"x": [1, 2, 3, 4]}', content_type)
    assert detail.endswith("say so with -H 'Content-Type: application/json'")
    assert "-H" not in refusal(UnsupportedMedia, Double(), b"x=1", content_type)


def test_a_compressed_body_is_refused():
    detail = refusal(UnsupportedMedia, Double(), b"\x1f\x8b", JSON, {"content-encoding": "gzip"})
    assert detail == "Content-Encoding gzip: send the body uncompressed"


# Raw bodies


def test_an_image_body_and_a_base64_image_are_the_same_sample():
    raw = send(Colors(), png(), "image/png")
    wrapped = send(Colors(), orjson.dumps({"image": base64.b64encode(png()).decode()}))
    assert raw.samples[0]["pixels"][:, 0, 0].tolist() == [1, 0, 0]
    assert np.array_equal(raw.samples[0]["pixels"], wrapped.samples[0]["pixels"])


@pytest.mark.parametrize("data", [b"", b"not an image", png()[:40]])
def test_what_is_no_image_is_invalid(data: bytes):
    assert refusal(InvalidInput, Colors(), data, "image/jpeg").startswith("image: ")


def test_an_image_of_too_many_pixels_is_refused_in_every_form():
    data = png(64, 64)
    limits = ServerSection(max_pixels=64 * 64 - 1)
    bodies = [
        Body("image/png", data),
        Body(JSON, orjson.dumps({"image": base64.b64encode(data).decode()})),
        Body(FORM, form(("image", data))),
    ]
    for body in bodies:
        with pytest.raises(PayloadTooLarge, match="image: 4096 pixels; at most 4095"):
            decode(body, Colors(), limits)
    assert decode(bodies[0], Colors(), ServerSection(max_pixels=64 * 64)).samples


def test_a_model_that_takes_its_image_as_text_is_protected_too():
    class Base64Text(Colors):
        class sample(BaseModel):
            image: str

    data = orjson.dumps({"image": base64.b64encode(png()).decode()})
    assert send(Base64Text(), data).samples
    detail = refusal(InvalidInput, Base64Text(), b'{"image": "abc"}')
    assert detail.startswith("image: not base64")


def test_a_text_body_is_checked_like_the_field_it_becomes():
    assert send(Tokens(), "é".encode(), "text/plain").samples[0]["ids"].tolist() == [195, 169]
    assert refusal(InvalidInput, Tokens(), b"a\xff", "text/plain") == "text: not UTF-8, at byte 1"
    assert refusal(InvalidInput, Tokens(), b"", "text/plain").startswith("text: string should have")


def test_fields_that_a_raw_body_does_not_have_take_their_defaults():
    class Scaled(Colors):
        class sample(BaseModel):
            image: bytes
            scale: int = 3

        def preprocess(self, payload: Mapping[str, Any]) -> dict[str, Any]:
            return {"pixels": np.full((3, 8, 8), payload["scale"])}

    assert send(Scaled(), png(), "image/png").samples[0]["pixels"].max() == 3


# Multipart


def test_a_part_is_a_sample_and_several_are_a_list():
    one = send(Colors(), form(("file", png())), FORM)
    two = send(Colors(), form(("image", png()), ("files", png(color="blue"))), FORM)
    assert (one.is_list, two.is_list) == (False, True)
    assert [s["pixels"][:, 0, 0].tolist() for s in two.samples] == [[1, 0, 0], [0, 0, 1]]


def test_texts_come_as_parts_too():
    decoded = send(Tokens(), form(("text", b"a"), ("text", b"bc")), FORM)
    assert [sample["ids"].tolist() for sample in decoded.samples] == [[97], [98, 99]]
    detail = refusal(InvalidInput, Tokens(), form(("text", b"a"), ("text", b"\xff")), FORM)
    assert detail == "[1].text: not UTF-8, at byte 0"


@pytest.mark.parametrize(
    ("data", "content_type", "detail"),
    [
        (form(("photo", b"")), FORM, "part 'photo': unknown name; known: image, file, files"),
        (form(("", b"")), FORM, "part '': unknown name"),
        (form(("image", b"GIF8")), FORM, "image: "),
        (form(("image", png()), ("image", b"x")), FORM, "[1]: image: "),
        (form(("image", b"x"))[:-10], FORM, "multipart/form-data: the body ends before"),
        (form(), FORM, "an empty list"),
        (b"", FORM, "multipart/form-data: the body ends before"),
        (b"garbage", FORM, "multipart/form-data: "),
        (form(("image", b"x")), "multipart/form-data", "multipart/form-data: no boundary"),
        (b"x", f"multipart/form-data; boundary={'b' * 300}", "multipart/form-data: "),
    ],
)
def test_a_form_that_does_not_fit_is_refused(data: bytes, content_type: str, detail: str):
    assert refusal(InvalidInput, Colors(), data, content_type).startswith(detail)


def test_more_parts_than_a_request_may_have_are_too_large():
    data = form(*[("text", b"a")] * (MAX_SAMPLES + 1))
    assert "more than 1024 parts" in refusal(PayloadTooLarge, Tokens(), data, FORM)


# Tensors


def raw(shape: str, dtype: str = "float32", **more: str) -> dict[str, str]:
    return {"x-tensor-shape": shape, "x-tensor-dtype": dtype, **more}


def test_raw_tensor_bytes_are_one_sample_or_a_list():
    one = send(Double(), ONES.tobytes(), STREAM, raw("4"))
    many = send(Double(), np.arange(8, dtype="<f4").tobytes(), STREAM, raw("2, 4"))
    assert (one.is_list, many.is_list) == (False, True)
    assert one.samples[0]["x"].tolist() == [1, 1, 1, 1]
    assert [sample["x"].tolist() for sample in many.samples] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_bytes_that_look_like_a_file_are_still_a_tensor_when_its_shape_is_given():
    data = b"PK\x03\x04" + bytes(12)
    assert send(Double(), data, STREAM, raw("4")).samples[0]["x"].tobytes() == data


@pytest.mark.parametrize(
    ("headers", "size", "detail"),
    [
        ({}, 16, "not a .npy or .npz file of plain numbers; raw tensor bytes need the headers"),
        ({"x-tensor-shape": "4"}, 16, "X-Tensor-Dtype: missing, expected float32"),
        (raw("4", "float64"), 32, "X-Tensor-Dtype: float64, expected float32"),
        (raw("4", "object"), 32, "X-Tensor-Dtype: object, expected float32"),
        (raw("four"), 16, "shape four: expected up to 8 sizes above 0"),
        (raw("-4"), 16, "shape -4: expected"),
        (raw("0,4"), 0, "shape 0,4: expected"),
        (raw("9" * 5000), 16, "shape 999"),
        (raw("4"), 15, "15 bytes, expected 16 for float32 [4]"),
        (raw("999999999,999999999"), 16, "16 bytes, expected 3999999992000000004 for float32"),
        (raw("3"), 12, "x: shape [3], expected [4]"),
        (raw("1,1,4"), 16, "x: shape [1, 1, 4], expected [4]"),
        (raw("2,3"), 24, "[0]: x: shape [3], expected [4]"),
        (raw(""), 4, "x: shape [], expected [4]"),
        (raw("4", **{"x-tensor-name": "z"}), 16, "z: unknown input; known: x"),
    ],
)
def test_raw_tensors_that_do_not_fit_are_refused(headers: dict[str, str], size: int, detail: str):
    assert refusal(InvalidInput, Double(), bytes(size), STREAM, headers).startswith(detail)


@pytest.mark.parametrize("content_type", [STREAM, "application/x-npy"])
@pytest.mark.parametrize(
    "array",
    [ONES, ONES.astype(">f4"), np.ones((4, 3), np.float32, order="F").T, np.ones((2, 4), "f4")],
)
def test_npy_files_of_any_layout_are_read(array: Any, content_type: str):
    decoded = send(Double(), npy(array), content_type)
    assert decoded.is_list == (array.ndim == 2)
    for sample, expected in zip(decoded.samples, np.atleast_2d(array), strict=True):
        assert np.array_equal(sample["x"], expected)
        assert sample["x"].dtype.isnative
        assert sample["x"].flags.c_contiguous


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_only_finite_numbers_are_taken(value: float):
    array = np.ones((2, 4), np.float32)
    array[1, 2] = value
    detail = refusal(InvalidInput, Double(), npy(array), STREAM)
    assert detail == "[1]: x: NaN, or infinite as float32; expected finite"


def test_a_pickle_in_an_npy_file_is_never_loaded():
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("unpickled",)

    file = io.BytesIO()
    np.save(file, np.array([Bomb()], object), allow_pickle=True)
    assert "plain numbers" in refusal(InvalidInput, Double(), file.getvalue(), STREAM)


def npy_header(text: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


@pytest.mark.parametrize(
    "data",
    [
        npy(ONES)[:7],
        npy(ONES)[:40],
        npy(ONES)[:-1],
        npy(ONES) + b"more",
        npy(ONES.astype("f8")),
        npy(np.array(["a"])),
        npy(np.zeros(1, [("a", "f4")])),
        npy(np.zeros((0, 4), "f4")),
        npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,), }"),
        npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }", bytes(16)),
        npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4,4,4,4,4,4,4,4,4), }"),
        npy_header("(" * 3000),
        npy_header("{'descr': '<V0', 'fortran_order': False, 'shape': (4,), }"),
    ],
)
def test_npy_files_that_do_not_fit_are_refused(data: bytes):
    assert refusal(InvalidInput, Double(), data, "application/x-npy")


IDS = np.array([1, 2, 3])
MASK = np.ones_like(IDS)


def test_several_inputs_come_as_npz_and_skip_preprocess():
    decoded = send(Tokens(), npz(ids=IDS, mask=MASK), "application/x-npz")
    assert not decoded.is_list
    assert decoded.samples[0]["ids"].tolist() == [1, 2, 3]
    batch = np.stack([IDS, IDS])
    decoded = send(Tokens(), npz(mask=np.ones_like(batch), ids=batch), STREAM)
    assert decoded.is_list
    assert len(decoded.samples) == 2


@pytest.mark.parametrize(
    ("arrays", "detail"),
    [
        ({"ids": IDS}, "mask: expected once, got 0"),
        ({"ids": IDS, "mask": IDS, "x": IDS}, "x: unknown input; known: ids, mask"),
        ({"ids": IDS * 100, "mask": MASK}, "ids: values from 100 to 300; expected 0 to 255"),
        ({"ids": IDS, "mask": MASK[:2]}, "inputs of different seq: {'ids': 3, 'mask': 2}"),
        ({"ids": IDS.astype("i4"), "mask": IDS}, "ids: dtype int32, expected int64"),
        ({"ids": np.zeros(33, int), "mask": np.zeros(33, int)}, "ids: shape [33], expected [seq]"),
        ({"ids": IDS[None], "mask": IDS}, "ids: shape [1, 3], expected [seq] with seq 1 to 32"),
        ({"ids": np.stack([IDS] * 2), "mask": IDS[None]}, "ids, mask: different numbers of sampl"),
        ({"ids": np.array(1), "mask": np.array(1)}, "ids: shape [], expected [seq]"),
    ],
)
def test_npz_files_that_do_not_fit_are_refused(arrays: dict[str, Any], detail: str):
    assert refusal(InvalidInput, Tokens(), npz(**arrays), STREAM).startswith(detail)


def test_one_array_cannot_be_all_of_several_inputs():
    detail = refusal(InvalidInput, Tokens(), npy(IDS), STREAM)
    assert detail == "tokens has 2 inputs: send them in one .npz"


def test_an_npz_that_unpacks_to_too_much_is_refused_before_it_is_unpacked():
    bomb = npz(x=np.zeros(LIMITS.max_body_bytes, np.float32))
    assert len(bomb) < LIMITS.max_body_bytes / 100
    assert "bytes decompressed" in refusal(PayloadTooLarge, Double(), bomb, STREAM)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_packed_as_numpy_never_does_is_refused(method: int):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("x.npy", npy(ONES))
    detail = refusal(InvalidInput, Double(), file.getvalue(), STREAM)
    assert detail == "x.npy: stored or deflated, not encrypted, expected"


def test_no_damage_to_a_tensor_file_is_more_than_invalid():
    random = np.random.default_rng(0)
    for file in (npy(ONES), npz(x=np.ones((2, 4), np.float32))):
        for _ in range(1000):
            damaged = np.frombuffer(file, np.uint8).copy()
            damaged[random.integers(0, len(file), 3)] = random.integers(0, 256, 3)
            try:
                decoded = send(Double(), damaged.tobytes()[: random.integers(4, 999)], STREAM)
            except (InvalidInput, PayloadTooLarge):
                continue
            assert all(np.isfinite(sample["x"]).all() for sample in decoded.samples)


# Where decoding runs


@pytest.mark.parametrize(
    ("model", "data", "content_type", "cheap"),
    [
        (Double(), b"{}", JSON, True),
        (Double(), bytes(20_000), JSON, False),
        (Tokens(), b"{}", JSON, False),
        (Tokens(), b"text", "text/plain", False),
        (Tokens(), npy(ONES), STREAM, True),
        (Tokens(), npz(ids=IDS), STREAM, False),
    ],
)
def test_only_short_bodies_that_need_no_work_are_decoded_on_the_event_loop(
    model: ServedModel, data: bytes, content_type: str, cheap: bool
):
    assert is_cheap(Body(content_type, data), model) is cheap
