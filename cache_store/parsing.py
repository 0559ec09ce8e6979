"""JSON documents from outside, with one kind of error for all that can be wrong.

The format number is read first and alone, because a later format may have other fields; nothing is converted.
"""

from __future__ import annotations

from typing import Annotated, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warmrank.cache_store.errors import Corrupt, NewerFormat

_M = TypeVar("_M", bound=BaseModel)
MAX_DOCUMENT_BYTES = 16 << 20  # a manifest has about 200 KB, a launch record 0.3 KB a rank
_SHOWN_FAULTS = 5
_SHOWN_CHARACTERS = 500


class Strict(BaseModel):
    """Base of models of what comes from outside: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def parse_document(model: type[_M], data: bytes, *, what: str, where: str) -> _M:
    """Read one JSON document that declares its ``format``; ``what`` and ``where`` name it in errors.

    The formats understood are those that the model's field of that name allows.

    Raises:
        Corrupt: too large, no JSON object, no format, an earlier one, or fields that break the model.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        expected = f"at most {MAX_DOCUMENT_BYTES} bytes"
        raise Corrupt(what=what, where=where, expected=expected, actual=f"{len(data)} bytes")
    found = _declared_format(data, what=what, where=where)
    supported = get_args(model.model_fields["format"].annotation)
    if found > max(supported):
        raise NewerFormat(what=what, where=where, found=found, supported=max(supported))
    if found < min(supported):
        expected, actual = f"format {max(supported)}", f"format {found}, of an earlier release"
        remedy = "the next publish replaces it"
        raise Corrupt(what=what, where=where, expected=expected, actual=actual, remedy=remedy)
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise Corrupt(what=what, where=where, expected="valid fields", actual=faults_of(error)) from error


class _Declared(BaseModel):
    """Of any document only the format, which takes a tenth of the time of parsing it to Python's values."""

    format: Annotated[int, Field(ge=1)]


def _declared_format(data: bytes, *, what: str, where: str) -> int:
    try:
        return _Declared.model_validate_json(data, strict=True).format
    except ValidationError as error:
        is_json = error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
        expected = "a positive format number" if is_json else "JSON"
        raise Corrupt(what=what, where=where, expected=expected, actual=faults_of(error)) from error


def faults_of(error: ValidationError) -> str:
    """Faults by field, one after the other, cut short."""
    faults = [
        f"{'.'.join(map(str, item['loc'])) or 'document'}: {item['msg']}"[:_SHOWN_CHARACTERS]
        for item in error.errors(include_url=False, include_input=False)
    ]
    more = len(faults) - _SHOWN_FAULTS
    return "; ".join([*faults[:_SHOWN_FAULTS], *([f"and {more} more"] if more > 0 else [])])
