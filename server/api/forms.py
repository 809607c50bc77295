"""Multipart bodies to their parts. In memory; knows nothing of models or of what a part means."""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from server.errors import InvalidInput, PayloadTooLarge

FORM = "multipart/form-data"
Part = tuple[str, bytes]


def read_parts(content_type: str, data: bytes, max_parts: int) -> list[Part]:
    """Name and content of every part, in order."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise InvalidInput(f"{FORM}: no boundary in the content type")
    form = _Form(max_parts)
    callbacks = {name: getattr(form, name) for name in vars(_Form) if name.startswith("on_")}
    try:
        MultipartParser(boundary, callbacks).write(data)  # type: ignore[arg-type]
    except FormParserError as error:
        raise InvalidInput(f"{FORM}: {error}") from None
    if not form.complete:
        raise InvalidInput(f"{FORM}: the body ends before its closing boundary")
    return [(name, bytes(content)) for name, content in form.parts]


class _Form:
    """What python-multipart calls while it reads; keeps the parts with their names, in order."""

    def __init__(self, max_parts: int) -> None:
        self.max_parts = max_parts
        self.parts: list[tuple[str, bytearray]] = []
        self.complete = False
        self._key = self._value = b""

    def on_part_begin(self) -> None:
        self.parts.append(("", bytearray()))
        if len(self.parts) > self.max_parts:
            raise PayloadTooLarge(f"more than {self.max_parts} parts")

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._key += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._key.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            name = options.get(b"name", b"").decode(errors="replace")
            self.parts[-1] = (name, bytearray())
        self._key = self._value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1][1].extend(data[start:end])

    def on_end(self) -> None:
        self.complete = True
